// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The fleet as a table or as tiles, with search and filters in the address.

import { html, signal, useMemo } from "../lib/html.js";
import { count, digits, own } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { download, kubeconfig } from "../core/kubeconfig.js";
import { mayAnywhere } from "../core/rights.js";
import { href, param, setQuery } from "../core/router.js";
import { certificates, clusterRows, fleet, tally } from "../core/select.js";
import { loaded } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { Search } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Empty, Heading, Labels, Loading, Meter, Segments, State, copy } from "../ui/parts.js";
import { ColumnMenu, Table } from "../ui/table.js";
import { Tiles } from "../ui/tiles.js";
import { openImport } from "./import.js";
import { editLabels, mayLabel } from "./labels.js";

/** @typedef {import("../core/select.js").ClusterRow} ClusterRow */

const order = { broken: 0, waiting: 1, working: 2 };

/** @type {import("../ui/table.js").Column<ClusterRow>[]} */
const columns = [
  { id: "name", title: "Name", cell: (r) => r.name, sort: (r) => r.name, width: "20%" },
  { id: "state", title: "State", cell: (r) => html`<${State} name=${r.state.name} word=${r.state.word} title=${r.state.message.slice(0, 300)} />`, sort: (r) => `${order[r.state.name]}${r.state.word}`, width: "19%" },
  { id: "workspace", title: "Workspace", cell: (r) => r.workspace, sort: (r) => r.workspace, width: "12%" },
  { id: "version", title: "Kubernetes", cell: (r) => html`${r.version} <span class="soft">${r.distribution}</span>`, sort: (r) => r.version, width: "17%" },
  { id: "nodes", title: "Nodes", cell: (r) => (r.nodes ? html`<span class=${r.nodes.ready < r.nodes.total ? "bad" : ""}>${r.nodes.ready === r.nodes.total ? r.nodes.total : `${r.nodes.ready} of ${r.nodes.total}`}</span>` : "–"), sort: (r) => r.nodes?.total ?? "", width: "9%", end: true },
  { id: "cpu", title: "CPU", cell: (r) => html`<${Meter} label="CPU requested" used=${r.cpu.used} total=${r.cpu.total} unit="cores" compact />`, sort: (r) => (r.cpu.total ? r.cpu.used / r.cpu.total : ""), width: "11%" },
  { id: "memory", title: "Memory", cell: (r) => html`<${Meter} label="Memory requested" used=${r.memory.used} total=${r.memory.total} unit="bytes" compact />`, sort: (r) => (r.memory.total ? r.memory.used / r.memory.total : ""), width: "11%" },
  { id: "agent", title: "Agent", cell: (r) => html`${r.agent}${r.outdated && html` <span class="wait">not up to date</span>`}`, sort: (r) => r.agent, width: "14%", off: true },
  { id: "labels", title: "Labels", cell: (r) => html`<${Labels} pairs=${r.pairs} most=${3} />`, sort: (r) => r.pairs.join(), width: "30%", off: true, card: false },
  { id: "age", title: "Age", cell: (r) => html`<${Time} at=${r.created} />`, sort: (r) => r.created, width: "8%", off: true },
];

const selection = signal(/** @type {Set<string>} */ (new Set()));
const to = (/** @type {ClusterRow} */ row) => href(["clusters", row.workspace, row.name]);

/** What rows can be grouped by. @type {Record<string, (row: ClusterRow) => string>} */
const groupings = { workspace: (r) => r.workspace, state: (r) => r.state.word, version: (r) => r.version, distribution: (r) => r.distribution };

/** Returns the grouping that the address names: one of the above, or label:KEY. @param {string} name */
function grouping(name) {
  if (name.startsWith("label:")) return (/** @type {ClusterRow} */ r) => own(r.labels, name.slice(6)) ?? "";
  return own(groupings, name);
}

/** Filters beside the three states, which are shown only while they find something. @type {[string, string, () => Set<ClusterRow>][]} */
const remarks = [
  ["outdated", "Agent not up to date", () => new Set(clusterRows.value.filter((r) => r.outdated))],
  ["expiring", "Certificate expires", () => new Set(certificates.value.map(({ row }) => row))],
];

/** What can be done with the selected Clusters. It floats, so that the table does not move. */
function Selected() {
  const keys = selection.value;
  if (keys.size === 0) return null;
  const spaces = new Set([...keys].map((key) => key.split("/")[0]));
  const mayEdit = spaces.size <= 20 && [...spaces].every((namespace) => mayLabel(namespace));
  const clear = () => { selection.value = new Set(); };
  return html`<div class="selection" role="group" aria-label="Selected clusters"><span role="status">${count(keys.size, "cluster")} selected</span>
    ${mayEdit && html`<button type="button" onClick=${() => editLabels([...keys], clear)}><${Icon} name="tag" />Edit labels</button>`}
    <button type="button" onClick=${() => download(kubeconfig(location.origin, [...keys].sort()), "clusters.kubeconfig.yaml")}><${Icon} name="download" />Kubeconfig</button>
    <button type="button" onClick=${() => copy([...keys].join("\n"), "Names")}><${Icon} name="copy" />Copy names</button>
    <button type="button" class="icon-button" aria-label="Clear the selection" onClick=${clear}><${Icon} name="close" /></button></div>`;
}

export function Clusters() {
  const [query, state, group, sort, shape] = ["q", "state", "group", "sort", "view"].map(param);
  const all = clusterRows.value;
  const { total, states } = fleet.value;
  const remarked = useMemo(() => remarks.map(([name, label, find]) => ({ name, label, found: find() })).filter(({ name, found }) => found.size > 0 || name === state), [all, state]);
  const rows = useMemo(() => {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const only = remarked.find(({ name }) => name === state)?.found;
    return words.length === 0 && !state ? all : all.filter((r) => (!state || (only ? only.has(r) : r.state.name === state)) && words.every((word) => r.text.includes(word)));
  }, [all, query, state, remarked]);
  const groupOf = useMemo(() => grouping(group), [group]);
  const keys = useMemo(() => tally(all.slice(0, 2000).flatMap((r) => Object.keys(r.labels)), (key) => key).slice(0, 30).map(({ key }) => key), [all]);
  const mayImport = mayAnywhere({ verb: "create", resource: "clusters" });
  useCommands(mayImport ? [{ id: "import", title: "Import a cluster", icon: "plus", run: openImport }] : [], [mayImport]);
  const counted = rows.length === total ? count(total, "cluster") : `${digits(rows.length)} of ${count(total, "cluster")}`;
  const nothing = total === 0
    ? html`<${Empty} icon="clusters" title="There are no clusters that you can see">${mayImport ? "Import the first one with a single command." : "Ask an administrator of a workspace for access."}</${Empty}>`
    : html`<${Empty} title="No cluster matches"><button type="button" onClick=${() => setQuery({ q: "", state: "" })}>Clear the search</button></${Empty}>`;
  return html`<div class="view fill"><${Heading} title="Clusters" beside=${loaded.value && html`<span class="soft" role="status">${counted}</span>`}>
      ${mayImport && html`<button type="button" class="primary" onClick=${openImport}><${Icon} name="plus" />Import a cluster</button>`}</${Heading}>
    <div class="toolbar">
      <${Search} label="Search by name, workspace, version, state or label" placeholder="Search: prod region=eu" value=${query} onInput=${(/** @type {string} */ q) => setQuery({ q })} />
      <div class="chips" role="group" aria-label="State">${[["", "All", total], ["broken", "Broken", states.broken], ["waiting", "Waiting", states.waiting], ["working", "Working", states.working], ...remarked.map(({ name, label, found }) => [name, label, found.size])].map(([value, label, n]) => html`
        <button type="button" class=${"chip " + value} aria-pressed=${String(state === value)} onClick=${() => setQuery({ state: String(value) })}>${label} <span class="number">${digits(n)}</span></button>`)}</div>
      <select aria-label="Group by" value=${group} onChange=${(/** @type {any} */ e) => setQuery({ group: e.target.value })}>
        <option value="">No groups</option>${Object.keys(groupings).map((name) => html`<option value=${name}>By ${name}</option>`)}${keys.map((key) => html`<option value=${"label:" + key}>By label ${key}</option>`)}</select>
      <div class="tools">${shape !== "tiles" && html`<${ColumnMenu} id="clusters" columns=${columns} />`}
      <${Segments} label="Show as" value=${shape || "table"} options=${[{ value: "table", label: "Table", icon: "table" }, { value: "tiles", label: "Tiles", icon: "tiles" }]} onChange=${(/** @type {string} */ v) => setQuery({ view: v === "table" ? "" : v })} /></div>
    </div>
    ${!loaded.value && total === 0 ? html`<${Loading} label="Loading the clusters" />`
      : shape === "tiles" ? html`<${Tiles} id="clusters" label="Clusters" rows=${rows} href=${to} empty=${nothing} />`
      : html`<${Table} id="clusters" label="Clusters" rows=${rows} columns=${columns} href=${to} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} selection=${selection} groupOf=${groupOf} query=${query + state} empty=${nothing} />`}<${Selected} /></div>`;
}
