// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Projects: groups of namespaces. A first version; the projects that the user may watch.

import { html } from "../lib/html.js";
import { count } from "../lib/text.js";
import { param, setQuery } from "../core/router.js";
import { readyState } from "../core/states.js";
import { derived, keyOf, loaded, objects } from "../core/store.js";
import { Empty, Heading, Loading, State } from "../ui/parts.js";
import { Table } from "../ui/table.js";

const rows = derived(() => [...objects("projects").values()].map((project) => ({ key: keyOf(project), name: project.metadata.name, project, state: readyState(project) })).sort((a, b) => (a.key < b.key ? -1 : 1)));

/** @type {import("../ui/table.js").Column<typeof rows.value[number]>[]} */
const columns = [
  { id: "name", title: "Project", cell: (r) => r.name, sort: (r) => r.name, width: "26%" },
  { id: "state", title: "State", cell: (r) => html`<${State} name=${r.state.name} word=${r.state.word} />`, sort: (r) => r.state.name, width: "12rem" },
  { id: "workspace", title: "Workspace", cell: (r) => r.project.metadata.namespace, sort: (r) => r.project.metadata.namespace },
  { id: "namespaces", title: "Namespaces", cell: (r) => count(r.project.spec?.namespaces?.length ?? 0, "namespace") },
];

export function Projects() {
  const all = rows.value;
  return html`<div class="view fill"><${Heading} title="Projects" />${!loaded.value && all.length === 0 ? html`<${Loading} />`
    : html`<${Table} id="projects" label="Projects" rows=${all} columns=${columns} sort=${param("sort")} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })}
      empty=${html`<${Empty} icon="projects" title="There are no Projects that you may watch">A Project is a group of namespaces with members and quotas, in one or many clusters.</${Empty}>`} />`}</div>`;
}
