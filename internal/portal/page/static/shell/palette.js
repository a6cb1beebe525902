// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The command palette: all commands, and a jump to any Cluster, Plan or Baseline. Ctrl/⌘-K opens it.

import { html, signal, useEffect, useMemo, useRef, useState } from "../lib/html.js";
import { go, href } from "../core/router.js";
import { baselineRows, clusterRows, planRows } from "../core/select.js";
import { Icon, Mark } from "../ui/icons.js";
import { commands } from "./commands.js";

const shown = signal(false);
export const openPalette = () => { shown.value = true; };

/** @param {string} query */
function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (/** @type {string} */ text) => words.every((word) => text.includes(word));
  const found = commands.value.filter((c) => fits(c.title.toLowerCase())).slice(0, 12)
    .map((c) => ({ id: c.id, title: c.title, hint: "", keys: c.keys, icon: c.icon, state: "", run: c.run }));
  if (words.length === 0) return found;
  const clusters = [];
  for (const row of clusterRows.value) {
    if (fits(row.text)) clusters.push({ id: "c " + row.key, title: row.name, hint: `${row.workspace} · ${row.state.word}`, keys: "", icon: "", state: row.state.name, run: () => go(href(["clusters", row.workspace, row.name])) });
    if (clusters.length >= 20) break;
  }
  const rolled = [planRows, baselineRows].flatMap((rows) => rows.value.filter(({ key }) => fits(key.toLowerCase())).slice(0, 8))
    .map(({ kind, object: { metadata: { namespace, name } }, key, state }) => ({ id: kind + " " + key, title: name, hint: `${kind === "plans" ? "Plan" : "Baseline"} in ${namespace}`, keys: "", icon: "", state: state.name, run: () => go(href([kind, namespace, name])) }));
  return [...clusters, ...rolled, ...found];
}

/** A title with the longest word of the query that it contains marked. @param {{ text: string, query: string }} props */
function Title({ text, query }) {
  const lower = text.toLowerCase();
  const [word] = query.toLowerCase().split(/\s+/).filter((each) => each && lower.includes(each)).sort((a, b) => b.length - a.length);
  if (!word) return text;
  const at = lower.indexOf(word), end = at + word.length;
  return html`${text.slice(0, at)}<mark>${text.slice(at, end)}</mark>${text.slice(end)}`;
}

function Open() {
  const ref = useRef(/** @type {any} */ (null));
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => find(query), [query, commands.value]); // a view registers its commands after it is shown
  useEffect(() => { ref.current.showModal(); ref.current.querySelector("input").focus(); }, []);
  useEffect(() => { ref.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }); }, [at]);
  const run = (/** @type {number} */ i) => {
    const entry = found[i];
    if (!entry) return;
    ref.current.close();
    entry.run();
  };
  const keydown = (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((at + step + found.length) % Math.max(found.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      run(at);
    }
  };
  return html`<dialog class="palette" ref=${ref} aria-label="Commands" onClose=${() => { shown.value = false; }} onMouseDown=${(/** @type {MouseEvent} */ e) => { if (e.target === ref.current) ref.current.close(); }}>
    <div class="palette-in"><div class="palette-search"><${Icon} name="search" /><input role="combobox" aria-label="Search commands, clusters and plans" aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${found[at] ? "palette-" + at : undefined} placeholder="Search commands, clusters, plans" autocomplete="off" spellcheck=${false} value=${query}
      onInput=${(/** @type {any} */ e) => { setQuery(e.target.value); setAt(0); }} onKeyDown=${keydown} /><kbd>Esc</kbd></div>
    <ul id="palette-list" role="listbox" aria-label="Results">${found.map((entry, i) => html`
      <li key=${entry.id} id=${"palette-" + i} role="option" aria-selected=${String(i === at)} onClick=${() => run(i)} onMouseMove=${() => setAt(i)}>
        ${entry.state ? html`<${Mark} name=${entry.state} />` : html`<${Icon} name=${entry.icon ?? "chevron"} />`}<span class="palette-title"><${Title} text=${entry.title} query=${query} /></span><span class="soft palette-hint">${entry.hint}</span>${entry.keys && html`<kbd>${entry.keys}</kbd>`}</li>`)}</ul>
    ${found.length === 0 && html`<p class="soft palette-none" role="status">Nothing has these words.</p>`}</div></dialog>`;
}

export const Palette = () => (shown.value ? html`<${Open} />` : null);
