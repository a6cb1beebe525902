// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Tables. 10,000 rows are smooth, because only rows in sight are elements. On narrow screens, rows are cards.

import { Pure, classes, html, signal, useCallback, useEffect, useMemo, useRef } from "../lib/html.js";
import { density, list as stored, store } from "../lib/prefs.js";
import { digits } from "../lib/text.js";
import { go } from "../core/router.js";
import { Icon } from "./icons.js";
import { Empty, Menu } from "./parts.js";
import { useWindow } from "./virtual.js";

/**
 * A column. cell renders a row's value, sort returns what the column is sorted by. Columns that are off are shown when
 * the user chooses them. The first column names the row and contains its link. Columns with card: false are not in cards.
 * Columns that are wide are only on wide screens.
 * @template R
 * @typedef {{ id: string, title: string, cell: (row: R) => any, sort?: (row: R) => string | number, width?: string, end?: boolean, off?: boolean, card?: boolean, wide?: boolean }} Column
 */

/** Whether a media query matches. @param {string} query */
function media(query) {
  const list = matchMedia(query);
  const matches = signal(list.matches);
  list.addEventListener("change", () => { matches.value = list.matches; });
  return matches;
}

const isNarrow = media("(max-width: 45rem)");
const isWide = media("(min-width: 70rem)");

/** @type {Map<string, import("../third_party/signals.js").Signal<string[]>>} */
const choices = new Map();

/** The ids of the chosen columns of a table. @param {string} id @param {Column<any>[]} columns */
function chosen(id, columns) {
  const known = choices.get(id);
  if (known) return known;
  const choice = signal(stored("columns." + id) ?? columns.filter((c) => !c.off).map((c) => c.id));
  choices.set(id, choice);
  return choice;
}

/** A menu to choose columns. @param {{ id: string, columns: Column<any>[] }} props */
export function ColumnMenu({ id, columns }) {
  const choice = chosen(id, columns);
  const toggle = (/** @type {string} */ column) => {
    const now = choice.value;
    choice.value = now.includes(column) ? now.filter((/** @type {string} */ each) => each !== column) : [...now, column];
    store("columns." + id, choice.value.join(","));
  };
  return html`<${Menu} label=${html`<${Icon} name="columns" />`} name="Columns" class="icon-button framed"><div class="menu-list" role="group" aria-label="Columns">${columns.slice(1).map((c) => html`
    <label class="check"><input type="checkbox" checked=${choice.value.includes(c.id)} onChange=${() => toggle(c.id)} /> ${c.title}</label>`)}</div></${Menu}>`;
}

/** Sorts rows by "name" or "-name". Rows without a value come last. @template R @param {R[]} rows @param {Column<R>[]} columns @param {string} sort */
function sorted(rows, columns, sort) {
  const down = sort.startsWith("-");
  const by = columns.find((column) => column.id === sort.replace(/^-/, ""))?.sort;
  if (!by) return rows;
  const empty = (/** @type {any} */ v) => v === "" || v === undefined;
  return rows.map((row) => /** @type {[any, R]} */ ([by(row), row])).sort(([a], [b]) => {
    if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b));
    return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
  }).map(([, row]) => row);
}

function measureRow() {
  const root = getComputedStyle(document.documentElement);
  return Math.round((parseFloat(root.getPropertyValue("--row")) || 2.75) * (parseFloat(root.fontSize) || 16));
}

class Row extends Pure {
  render() {
    const { row, columns, index, to, selected, onSelect, selectable, height } = /** @type {any} */ (this.props);
    const click = (/** @type {any} */ event) => {
      if (!to || event.defaultPrevented || event.target.closest("a,button,input,label,summary,pre") || String(getSelection())) return;
      if (event.ctrlKey || event.metaKey) open(to, "_blank", "noopener");
      else go(to);
    };
    return html`<tr class=${classes(to && "link", selected && "selected")} aria-rowindex=${index + 2} style=${{ height: height + "px" }} onClick=${click}>
      ${selectable && html`<td class="select"><input type="checkbox" aria-label=${`Select ${row.name ?? row.key}`} checked=${selected} onChange=${() => onSelect(row)} /></td>`}
      ${columns.map((/** @type {Column<any>} */ c, /** @type {number} */ i) => (i === 0
        ? html`<th scope="row">${to ? html`<a href=${to}>${c.cell(row)}</a>` : c.cell(row)}</th>`
        : html`<td class=${classes(c.end && "end", c.card === false && "no-card")} data-head=${c.title}>${c.cell(row)}</td>`))}</tr>`;
  }
}

/**
 * Shows rows. Each has a key; name is read to people who select it. href makes it a link. With selection, a signal of a
 * Set of keys, rows can be selected. groupOf puts rows below headings. sort is "column" or "-column"; onSort makes
 * headings buttons. A row is rendered again only if it is another object, so keep unchanged rows identical. After a change
 * of query, sort or groupOf, the table is scrolled to its beginning.
 * @param {{ id: string, label: string, rows: any[], columns: Column<any>[], href?: (row: any) => string, sort?: string, onSort?: (sort: string) => void,
 *   selection?: { value: Set<string> }, groupOf?: (row: any) => string, query?: string, empty?: any }} props
 */
export function Table({ id, label, rows, columns, href, sort = "", onSort, selection, groupOf, query, empty }) {
  const choice = chosen(id, columns).value;
  const cards = isNarrow.value;
  const wide = isWide.value;
  const shown = useMemo(() => columns.filter((c, i) => i === 0 || (choice.includes(c.id) && (wide || !c.wide))), [columns, choice, wide]);
  const widths = useMemo(() => {
    // All columns stay in sight: percentages shrink together when the user has chosen many columns.
    const sum = shown.reduce((n, c) => n + (c.width?.endsWith("%") ? parseFloat(c.width) : 0), 0);
    const scale = Math.min(1, (selection ? 95 : 100) / sum);
    return shown.map((c) => (c.width?.endsWith("%") ? `${parseFloat(c.width) * scale}%` : c.width ?? "auto"));
  }, [shown, Boolean(selection)]);
  const ordered = useMemo(() => {
    const all = sorted(rows, columns, sort);
    if (!groupOf) return all;
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const row of all) {
      const name = groupOf(row);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name)?.push(row);
    }
    return [...groups].sort(([a], [b]) => (a < b ? -1 : 1)).flatMap(([name, members]) => [{ group: name || "–", n: members.length, key: "group " + name }, ...members]);
  }, [rows, columns, sort, groupOf]);
  const inCards = shown.slice(1).filter((c) => c.card !== false).length;
  const rowHeight = useMemo(measureRow, [density.value, cards]); // not while scrolling: it makes the browser compute styles
  const height = cards ? 60 + Math.ceil(inCards / 2) * 40 : rowHeight;
  const view = useWindow({ id, rows: ordered.length, height });
  const first = useRef(true);
  useEffect(() => {
    if (!first.current && view.ref.current) view.ref.current.scrollTop = 0;
    first.current = false;
  }, [sort, groupOf, query]);
  useEffect(() => { if (view.ref.current && view.ref.current.scrollTop > ordered.length * height) view.ref.current.scrollTop = 0; }, [ordered.length]);
  const keys = selection?.value;
  const select = useCallback((/** @type {any} */ row) => {
    if (!selection) return;
    const next = new Set(selection.value);
    if (!next.delete(row.key)) next.add(row.key);
    selection.value = next;
  }, [selection]);
  const everything = useMemo(() => Boolean(keys && rows.length > 0 && rows.every((row) => keys.has(row.key))), [rows, keys]);
  if (rows.length === 0) return empty ?? html`<${Empty} title="Nothing here" />`;
  const columnCount = shown.length + (selection ? 1 : 0);
  return html`<div class="table-scroll" ref=${view.ref} role="region" aria-label=${label} tabindex="0">
    <table class=${cards ? "cards" : "grid"} aria-rowcount=${ordered.length + 1} aria-label=${label}>
      <colgroup>${selection && html`<col style=${{ width: "2.5rem" }} />`}${widths.map((width) => html`<col style=${{ width }} />`)}</colgroup>
      <thead><tr aria-rowindex="1">${selection && html`<th class="select" scope="col"><input type="checkbox" aria-label="Select all" checked=${everything} onChange=${() => { if (selection) selection.value = everything ? new Set() : new Set(rows.map((row) => row.key)); }} /></th>`}
        ${shown.map((c) => html`<${Head} column=${c} sort=${sort} onSort=${onSort} />`)}</tr></thead>
      <tbody>
        ${view.before > 0 && html`<tr class="space" aria-hidden="true" style=${{ height: view.before + "px" }}><td colspan=${columnCount}></td></tr>`}
        ${ordered.slice(view.first, view.last).map((row, i) => (row.group !== undefined
          ? html`<tr class="group" key=${row.key} aria-rowindex=${view.first + i + 2} style=${{ height: height + "px" }}><th scope="rowgroup" colspan=${columnCount}>${row.group} <span class="badge">${row.n}</span></th></tr>`
          : html`<${Row} key=${row.key} row=${row} columns=${shown} index=${view.first + i} to=${href?.(row)} height=${height} selectable=${Boolean(selection)} selected=${keys?.has(row.key) ?? false} onSelect=${select} />`))}
        ${view.after > 0 && html`<tr class="space" aria-hidden="true" style=${{ height: view.after + "px" }}><td colspan=${columnCount}></td></tr>`}
      </tbody></table></div>`;
}

/** @param {{ column: Column<any>, sort: string, onSort?: (sort: string) => void }} props */
function Head({ column, sort, onSort }) {
  const now = sort === column.id ? "ascending" : sort === "-" + column.id ? "descending" : undefined;
  return html`<th scope="col" class=${classes(column.end && "end")} aria-sort=${now}>${onSort && column.sort
    ? html`<button type="button" class=${classes("head", now)} onClick=${() => onSort(now === "ascending" ? "-" + column.id : now === "descending" ? "" : column.id)}>${column.title}<${Icon} name="sort" size=${12} /></button>`
    : column.title}</th>`;
}

const longest = 200; // rows of a short table

/**
 * A short table without scrolling, sorting or links, for parts of a view. It shows the first 200 rows.
 * @param {{ label: string, head: string[], rows: any[][] }} props
 */
export const Rows = ({ label, head, rows }) => html`<div class="rows-scroll"><table class="rows"><caption class="hidden">${label}</caption>
  <thead><tr>${head.map((cell) => html`<th scope="col">${cell}</th>`)}</tr></thead>
  <tbody>${rows.slice(0, longest).map((row) => html`<tr>${row.map((cell, i) => html`<td data-head=${head[i]}>${cell}</td>`)}</tr>`)}</tbody></table>${rows.length > longest && html`<p class="soft">${`And ${digits(rows.length - longest)} more.`}</p>`}</div>`;
