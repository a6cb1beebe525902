// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The nodes of one Cluster, fetched through the hub when they are shown.

import { html, useMemo } from "../lib/html.js";
import { bytes, cores, quantity } from "../lib/quantity.js";
import { count, short, words } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { list } from "../core/api.js";
import { may } from "../core/rights.js";
import { param, setQuery } from "../core/router.js";
import { Icon } from "../ui/icons.js";
import { Empty, Loading, Problem, State, useFetch } from "../ui/parts.js";
import { Table } from "../ui/table.js";

/** @typedef {import("../core/states.js").StateName} StateName */

// Members send nodes, so fields can have any type.
/** @param {any} node */
function nodeRow({ metadata, spec, status }) {
  /** @type {any[]} */
  const conditions = Array.isArray(status?.conditions) ? status.conditions.slice(0, 100).filter(Boolean) : [];
  const ready = conditions.find((c) => c.type === "Ready");
  // All other conditions of nodes are problems when they are True, for example MemoryPressure.
  const wrong = conditions.filter((c) => c.type !== "Ready" && c.status === "True").map((c) => words(c.type));
  const roles = Object.keys(metadata.labels ?? {}).filter((key) => key.startsWith("node-role.kubernetes.io/")).map((key) => key.slice(24));
  /** @type {StateName} */
  const name = ready?.status !== "True" || wrong.length > 0 ? "broken" : spec?.unschedulable ? "waiting" : "working";
  const word = ready?.status !== "True" ? (ready?.status === "Unknown" ? "Not reporting" : "Not ready") : wrong[0] ?? (spec?.unschedulable ? "Cordoned" : "Ready");
  return { key: metadata.name, name: metadata.name, state: { name, word, title: short(ready?.message, 300) }, roles: short(roles.sort().join(", "), 200),
    version: short(status?.nodeInfo?.kubeletVersion, 60), system: [short(status?.nodeInfo?.osImage, 100), short(status?.nodeInfo?.architecture, 60)].filter(Boolean).join(", "),
    cpu: quantity(status?.allocatable?.cpu), memory: quantity(status?.allocatable?.memory), created: short(metadata.creationTimestamp, 60) };
}

/** @typedef {ReturnType<typeof nodeRow>} NodeRow */

const order = { broken: 0, waiting: 1, working: 2 };

/** @type {import("../ui/table.js").Column<NodeRow>[]} */
const columns = [
  { id: "name", title: "Node", cell: (r) => r.name, sort: (r) => r.name, width: "22%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} />`, sort: (r) => `${order[r.state.name]}${r.state.word}`, width: "17%" },
  { id: "roles", title: "Roles", cell: (r) => r.roles || html`<span class="soft">none</span>`, sort: (r) => r.roles, width: "14%" },
  { id: "version", title: "Kubelet", cell: (r) => r.version, sort: (r) => r.version, width: "14%" },
  { id: "system", title: "System", cell: (r) => html`<span title=${short(r.system, 200)}>${short(r.system, 100)}</span>`, sort: (r) => r.system, width: "16%", card: false, wide: true },
  { id: "cpu", title: "Cores", cell: (r) => cores(r.cpu), sort: (r) => r.cpu, width: "8%", end: true },
  { id: "memory", title: "Memory", cell: (r) => bytes(r.memory), sort: (r) => r.memory, width: "10%", end: true },
  { id: "age", title: "Age", cell: (r) => html`<${Time} at=${r.created} />`, sort: (r) => r.created, width: "8%" },
];

/** @param {{ row: import("../core/select.js").ClusterRow }} props */
export function Nodes({ row }) {
  const allowed = may({ verb: "list", resource: "nodes", group: "" }, row.key);
  if (allowed === undefined) return html`<${Loading} label="Loading the nodes" />`;
  if (!allowed) return html`<${Empty} icon="hosts" title="You may not list the nodes of this cluster">A role for the whole cluster allows it, for example cluster-viewer.</${Empty}>`;
  return html`<${NodeTable} member=${row.key} />`;
}

/** @param {{ member: string }} props */
function NodeTable({ member }) {
  const { value, error, loading, retry } = useFetch((signal) => list({ resource: "nodes", member }, { signal }), [member]);
  const rows = useMemo(() => (value?.items ?? []).map(nodeRow).sort((a, b) => order[a.state.name] - order[b.state.name] || (a.key < b.key ? -1 : 1)), [value]);
  if (error) return html`<${Problem} title="The nodes cannot be shown." error=${error} retry=${retry} />`;
  if (!value) return html`<${Loading} label="Loading the nodes" />`;
  return html`<div class="toolbar"><span class="soft" role="status">${count(rows.length, "node")}${value.metadata?.continue && ", the first of more"}, as the cluster lists them now</span><div class="tools"><button type="button" disabled=${loading} onClick=${retry}><${Icon} name="again" />Refresh</button></div></div>
    <${Table} id="nodes" label="Nodes" rows=${rows} columns=${columns} sort=${param("sort")} onSort=${(/** @type {string} */ sort) => setQuery({ sort })} empty=${html`<${Empty} icon="hosts" title="The cluster has no nodes" />`} />`;
}
