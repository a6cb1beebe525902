// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Hosts: machines with an agent, their state, and the reason.

import { html, useMemo } from "../lib/html.js";
import { short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { param, setQuery } from "../core/router.js";
import { hostState } from "../core/states.js";
import { derived, keyOf, loaded, objects } from "../core/store.js";
import { openDialog } from "../ui/dialog.js";
import { Empty, Facts, Heading, Loading, Log, Note, State } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const rows = derived(() => [...objects("hosts").values()].map((host) => ({ key: keyOf(host), name: host.metadata.name, host, state: hostState(host) })).sort((a, b) => (a.key < b.key ? -1 : 1)));

/** @typedef {typeof rows.value[number]} HostRow */

const why = (/** @type {HostRow} */ { host, state }) => short([host.status?.conditions?.find((/** @type {any} */ c) => c.type === "Ready")?.reason ?? "Pending", state.message].filter(Boolean).join(": "), 300);

/** @type {import("../ui/table.js").Column<HostRow>[]} */
const columns = [
  { id: "name", title: "Host", cell: (r) => r.key, sort: (r) => r.key, width: "22%" },
  { id: "state", title: "State", cell: (r) => html`<${State} name=${r.state.name} word=${r.state.word} />`, sort: (r) => r.state.word, width: "11rem" },
  { id: "why", title: "Why", cell: (r) => html`<span>${why(r)}</span>${r.host.status?.plan?.output && html` <button type="button" class="link" onClick=${() => openDialog(r.key, LastLines, { row: r })}>Last lines</button>`}` },
  { id: "system", title: "System", cell: (r) => [r.host.status?.machine?.os, r.host.status?.machine?.architecture].filter(Boolean).join(", "), width: "12rem" },
  { id: "seen", title: "Seen", cell: (r) => (r.host.status?.lastSeen ? html`<${Time} at=${r.host.status.lastSeen} ago />` : r.host.status?.machine ? "now" : "never"), sort: (r) => r.host.status?.lastSeen ?? "", width: "8rem" },
];

/** @param {{ row: HostRow }} props */
const LastLines = ({ row }) => html`<div class="dialog-body">${row.state.held && html`<${Note} name="broken">${row.state.held.reason}: ${row.state.held.message}</${Note}>`}
  <${Facts} pairs=${[["State", row.state.word], ["Why", why(row)]]} /><${Log} text=${row.host.status.plan.output} label="Last lines" /></div>`;

export function Hosts() {
  const all = rows.value;
  const sort = param("sort");
  const empty = useMemo(() => html`<${Empty} icon="hosts" title="There are no Hosts that you may watch">A Host is a machine with Drover’s host agent.</${Empty}>`, []);
  return html`<div class="view fill"><${Heading} title="Hosts" />${!loaded.value && all.length === 0 ? html`<${Loading} />`
    : html`<${Table} id="hosts" label="Machines with an agent" rows=${all} columns=${columns} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} empty=${empty} />`}</div>`;
}
