// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Tiles: many objects at a glance. Like tables, only rows of tiles in sight are elements.

import { Pure, html } from "../lib/html.js";
import { Mark } from "./icons.js";
import { useWindow } from "./virtual.js";

class Tile extends Pure {
  render() {
    const { tile, to } = /** @type {any} */ (this.props);
    return html`<li><a class=${"tile " + tile.state.name} href=${to}><span class="tile-name"><${Mark} name=${tile.state.name} />${tile.name}</span>
      <small>${[tile.workspace, tile.version].filter(Boolean).join(" · ")}</small><small class="tile-state">${tile.state.word}</small></a></li>`;
  }
}

/** @param {{ id: string, label: string, rows: any[], href: (row: any) => string, empty?: any }} props */
export function Tiles({ id, label, rows, href, empty }) {
  const height = 92;
  const view = useWindow({ id: id + " tiles", rows: 1e6, height, shown: rows.length > 0 });
  const columns = Math.max(1, Math.floor((view.width + 8) / 208));
  const lines = Math.ceil(rows.length / columns);
  const last = Math.min(view.last, lines);
  if (rows.length === 0) return empty;
  return html`<div class="table-scroll tiles-scroll" ref=${view.ref} role="region" aria-label=${label} tabindex="0">
    <div style=${{ height: view.before + "px" }}></div>
    <ul class="tiles" aria-label=${label} style=${{ gridTemplateColumns: `repeat(${columns}, minmax(0, 1fr))` }}>${rows.slice(view.first * columns, last * columns).map((row) => html`<${Tile} key=${row.key} tile=${row} to=${href(row)} />`)}</ul>
    <div style=${{ height: Math.max(0, lines - last) * height + "px" }}></div></div>`;
}
