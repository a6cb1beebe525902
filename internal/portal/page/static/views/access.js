// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Access: who has which role where. A first version; the bindings that the user may watch.

import { html, useMemo } from "../lib/html.js";
import { Time } from "../lib/time.js";
import { href, param, setQuery } from "../core/router.js";
import { bindings } from "../core/select.js";
import { derived, keyOf, loaded } from "../core/store.js";
import { Search } from "../ui/form.js";
import { Empty, Heading, Loading } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const rows = derived(() => bindings.value.map((binding) => {
  const { metadata, spec } = binding;
  const where = spec.projectName ? `project ${spec.projectName}` : spec.clusterName ? `cluster ${spec.clusterName}` : "selected clusters";
  return { key: (spec.projectName ? "p " : "c ") + keyOf(binding), name: metadata.name, binding, where, text: [spec.subject?.name, spec.subject?.kind, spec.roleTemplateName, where, metadata.namespace].join(" ").toLowerCase() };
}).sort((a, b) => (a.text < b.text ? -1 : 1)));

/** @type {import("../ui/table.js").Column<typeof rows.value[number]>[]} */
const columns = [
  { id: "who", title: "Who", cell: (r) => html`${r.binding.spec.subject?.name} <span class="soft">${r.binding.spec.subject?.kind}</span>`, sort: (r) => r.binding.spec.subject?.name ?? "", width: "26%" },
  { id: "role", title: "Role", cell: (r) => r.binding.spec.roleTemplateName, sort: (r) => r.binding.spec.roleTemplateName },
  { id: "where", title: "Where", cell: (r) => r.where, sort: (r) => r.where },
  { id: "workspace", title: "Workspace", cell: (r) => r.binding.metadata.namespace, sort: (r) => r.binding.metadata.namespace, width: "11rem" },
  { id: "until", title: "Until", cell: (r) => (r.binding.spec.expiresAt ? html`<${Time} at=${r.binding.spec.expiresAt} />` : html`<span class="soft">no end</span>`), sort: (r) => r.binding.spec.expiresAt ?? "", width: "9rem" },
];

export function Access() {
  const [query, sort] = [param("q"), param("sort")];
  const all = rows.value;
  const found = useMemo(() => all.filter((r) => query.toLowerCase().split(/\s+/).every((word) => r.text.includes(word))), [all, query]);
  return html`<div class="view fill"><${Heading} title="Access"><a class="button" href=${href(["access", "why"])}>Why can’t I?</a></${Heading}>
    <div class="toolbar"><${Search} label="Search by person, role, cluster or project" value=${query} onInput=${(/** @type {string} */ q) => setQuery({ q })} /></div>
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : html`<${Table} id="access" label="Bindings that you may watch" rows=${found} columns=${columns} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })}
      query=${query} empty=${html`<${Empty} icon="access" title=${all.length === 0 ? "There are no bindings that you may watch" : "No binding has these words"} />`} />`}</div>`;
}
