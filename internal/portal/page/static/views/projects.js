// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Projects: groups of namespaces with members and quotas, the list and one Project.

import { html, useMemo, useState } from "../lib/html.js";
import { bytes, cores, quantity } from "../lib/quantity.js";
import { count, own, short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { expired, place, resources } from "../core/access.js";
import { get, list } from "../core/api.js";
import { may } from "../core/rights.js";
import { href, param, setQuery } from "../core/router.js";
import { bindings, targets } from "../core/select.js";
import { bindingState, readyState } from "../core/states.js";
import { derived, keyOf, loaded, object, objects } from "../core/store.js";
import { Search } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Card, Empty, Facts, Heading, Loading, Meter, More, Problem, State, Tabs, useFetch } from "../ui/parts.js";
import { Rows, Table } from "../ui/table.js";
import { Conditions } from "./cluster.js";
import { Ended, Until, askRevoke, mayGrant, openGrant } from "./grant.js";
import { ManifestButton } from "./manifest.js";

const membersOf = (/** @type {any} */ project) => bindings.value.filter((b) => b.spec.projectName === project.metadata.name && b.metadata.namespace === project.metadata.namespace);

const rows = derived(() => {
  const members = new Map();
  for (const binding of bindings.value) {
    const { spec, metadata } = binding;
    const key = `${metadata.namespace}/${spec.projectName}`;
    if (spec.projectName && !expired(binding)) members.set(key, (members.get(key) ?? new Set()).add(spec.subject?.name));
  }
  return [...objects("projects").values()].map((project) => ({
    key: keyOf(project), name: project.metadata.name, project, state: readyState(project), members: members.get(keyOf(project))?.size ?? 0,
    text: [project.metadata.name, project.metadata.namespace, ...(project.spec?.namespaces ?? [])].join(" ").toLowerCase(),
  })).sort((a, b) => (a.key < b.key ? -1 : 1));
});

/** @typedef {typeof rows.value[number]} ProjectRow */

const quota = (/** @type {any} */ project) => Object.entries(project.spec?.resourceQuota ?? {}).map(([key, value]) => `${key} ${value}`).join(", ");

/** @type {import("../ui/table.js").Column<ProjectRow>[]} */
const columns = [
  { id: "name", title: "Project", cell: (r) => r.name, sort: (r) => r.name, width: "18%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} title=${r.state.message.slice(0, 300)} />`, sort: (r) => r.state.name, width: "16%" },
  { id: "workspace", title: "Workspace", cell: (r) => r.project.metadata.namespace, sort: (r) => r.project.metadata.namespace, width: "12%" },
  { id: "clusters", title: "Clusters", cell: (r) => r.project.status?.clusters?.summary ?? "–", sort: (r) => r.project.status?.clusters?.desired ?? "", end: true, width: "10%" },
  { id: "namespaces", title: "Namespaces", cell: (r) => r.project.spec?.namespaces?.length ?? 0, sort: (r) => r.project.spec?.namespaces?.length ?? 0, end: true, width: "12%" },
  { id: "members", title: "Members", cell: (r) => r.members, sort: (r) => r.members, end: true, width: "10%" },
  { id: "quota", title: "Quota per cluster", cell: (r) => quota(r.project) || html`<span class="soft">none</span>`, card: false, width: "22%" },
];

export function Projects() {
  const [query, sort] = [param("q"), param("sort")];
  const all = rows.value;
  const found = useMemo(() => all.filter((r) => query.toLowerCase().split(/\s+/).every((word) => r.text.includes(word))), [all, query]);
  return html`<div class="view fill"><${Heading} title="Projects" beside=${loaded.value && html`<span class="soft">${count(all.length, "project")}</span>`} />
    ${all.length > 0 && html`<div class="toolbar"><${Search} label="Search by name, workspace or namespace" value=${query} onInput=${(/** @type {string} */ q) => setQuery({ q })} /></div>`}
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : html`<${Table} id="projects" label="Projects" rows=${found} columns=${columns} href=${(/** @type {ProjectRow} */ r) => href(["projects", r.project.metadata.namespace, r.name])} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} query=${query}
      empty=${all.length === 0 ? html`<${Empty} icon="projects" title="There are no projects that you can see">A project is a group of namespaces with members and quotas, in one or many clusters.</${Empty}>` : html`<${Empty} title="No project matches"><button type="button" onClick=${() => setQuery({ q: "" })}>Clear the search</button></${Empty}>`} />`}</div>`;
}

/** @param {{ params: Record<string, string> }} props */
export function ProjectView({ params: { workspace, name, tab = "summary" } }) {
  const project = object("projects", `${workspace}/${name}`);
  const above = html`<a href=${href(["projects"])}>Projects</a> <span aria-hidden="true">/</span> ${workspace}`;
  if (!project) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="projects" title="This project is gone, or you may not see it"><a href=${href(["projects"])}>All projects</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const all = membersOf(project);
  const members = all.filter((b) => !expired(b));
  const Body = own(/** @type {Record<string, any>} */ ({ usage: Usage, members: Members }), tab) ?? Summary;
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} ...${readyState(project)} />`}>
      <${ManifestButton} resource="projects" namespace=${workspace} name=${name} />
      ${mayGrant(workspace) && html`<button type="button" class="primary" onClick=${() => openGrant({ workspace, where: "project", project: name })}><${Icon} name="plus" />Add a member</button>`}</${Heading}>
    <${Tabs} label="Parts of the project" tabs=${[{ id: "summary", title: "Summary" }, { id: "usage", title: "Namespaces and quotas" }, { id: "members", title: "Members", n: members.length }]} current=${tab} path=${["projects", workspace, name]} />
    <${Body} project=${project} members=${members} ended=${all.length - members.length} /></div>`;
}

/** @param {{ project: any }} props */
function Summary({ project }) {
  const { spec, status = {}, metadata } = project;
  const failures = status.failures ?? [];
  return html`<div class="columns"><div class="column wide"><${Conditions} object=${project} ready=${["The project is in place", "The project is not in place everywhere"]} />
      ${failures.length > 0 && html`<${Card} title="Clusters where it does not work"><${Rows} label="Failures" head=${["Cluster", "Object", "Why"]} rows=${failures.map((/** @type {any} */ f) => [html`<a href=${href(["clusters", metadata.namespace, f.cluster])}>${f.cluster}</a>`, f.object, short(f.message, 600)])} /></${Card}>`}</div>
    <div class="column"><${Card} title="Facts"><${Facts} pairs=${[["In", place(spec)], ["Clusters", status.clusters?.summary], ["Namespaces", spec.namespaces?.length > 0 && html`<ul class="plain">${spec.namespaces.slice(0, 50).map((/** @type {string} */ n) => html`<li>${n}</li>`)}<${More} all=${spec.namespaces.length} most=${50} /></ul>`],
      ["Quota per cluster", quota(project)], ["Network", spec.networkIsolation === "Project" ? "closed to other namespaces" : "open"], ["Pod security", spec.podSecurity],
      ["Created", metadata.creationTimestamp && html`<${Time} at=${metadata.creationTimestamp} ago />`]]} /></${Card}></div></div>`;
}

/** @param {{ members: any[], ended: number, project: any }} props */
function Members({ members, ended, project }) {
  const mayRevoke = may({ verb: "delete", resource: resources.ProjectRoleTemplateBinding, namespace: project.metadata.namespace });
  return html`<${Card} title="Members">${members.length > 0 ? html`<${Rows} label="Members that you can see" head=${["Who", "Role", "State", "Ends", "Action"]} rows=${members.map((b) => [
    html`<a href=${href(["access", "bindings", b.metadata.namespace, "project", b.metadata.name])}>${b.spec.subject.name}</a> <span class="soft">${b.spec.subject.kind}</span>`, html`<a href=${href(["access", "roles", b.spec.roleTemplateName])}>${b.spec.roleTemplateName}</a>`, html`<${State} ...${bindingState(b)} />`, html`<${Until} binding=${b} />`,
    mayRevoke && html`<button type="button" class="link" aria-label=${`Revoke ${b.spec.roleTemplateName} of ${b.spec.subject.name}`} onClick=${() => askRevoke(b)}>Revoke</button>`])} />`
    : html`<p class="soft">No binding that you can see is for this project.</p>`}<${Ended} n=${ended} />
    <p class="soft">Users with a role in a whole cluster have it in these namespaces, too.</p></${Card}>`;
}

const asked = 40; // namespaces that are asked one by one

// A user of the project may not list quotas in the whole cluster, but in its namespaces. missing says what the rows lack.
/** @param {any} project @param {string} member @param {AbortSignal} signal */
async function quotas(project, member, signal) {
  const ref = { resource: "resourcequotas", member };
  const label = { labelSelector: `cluster.drover.dev/project=${project.metadata.name}` };
  try {
    const [namespaces, all] = await Promise.all([list({ resource: "namespaces", member }, { query: label, signal }), list(ref, { query: { fieldSelector: "metadata.name=drover-project" }, signal })]);
    const found = new Map(all.items.map((q) => [q.metadata.namespace, q]));
    const cut = namespaces.metadata?.continue || all.metadata?.continue;
    return { rows: namespaces.items.map((n) => ({ name: n.metadata.name, quota: found.get(n.metadata.name) })), missing: cut ? "The cluster has more than it lists at once, so the figures are not complete." : "" };
  } catch (/** @type {any} */ problem) {
    if (problem.status !== 403) throw problem;
  }
  /** @type {string[]} */
  const names = project.spec.namespaces ?? [];
  const rows = await /** @type {Promise<{ name: string, quota?: any, error?: any }[]>} */ (Promise.all(names.slice(0, asked).map((name) => get({ ...ref, namespace: name, name: "drover-project" }, { signal })
    .then((value) => ({ name, quota: value }), (error) => ({ name, error: error.status === 404 ? undefined : error })))));
  const unknown = rows.filter((row) => row.error);
  if (unknown.length > 0 && unknown.length === rows.length && unknown[0].error.status !== 403) throw unknown[0].error;
  const reasons = ["You may not list the namespaces of this cluster, so namespaces that the project does not name are missing.",
    names.length > asked && `Only the first ${asked} of ${names.length} namespaces are shown.`, unknown.length > 0 && `The figures are without ${count(unknown.length, "namespace")} whose quota is not known.`];
  return { rows, missing: reasons.filter(Boolean).join(" ") };
}

/** One figure of a namespace, or why there is none. @param {any} n @param {string} key */
function figure({ quota, error }, key) {
  if (error) return html`<span class="soft">${error.status === 403 ? "not allowed to see" : short(error.message, 120)}</span>`;
  if (!quota) return html`<span class="soft">no quota</span>`;
  if (quota.status?.hard?.[key] === undefined) return html`<span class="soft">no limit</span>`;
  return html`<span class="number">${shown(key, quantity(quota.status.used?.[key]))} <span class="soft">of ${shown(key, quantity(quota.status.hard[key]))}</span></span>`;
}

const unit = (/** @type {string} */ key) => (/memory|storage/.test(key) ? "bytes" : /cpu$/.test(key) ? "cores" : "");
const shown = (/** @type {string} */ key, /** @type {number} */ n) => (unit(key) === "bytes" ? bytes(n) : cores(n));

/** @param {{ project: any }} props */
function Usage({ project }) {
  const { metadata, spec, status = {} } = project;
  const clusters = [...objects("clusters").values()].filter((c) => c.metadata.namespace === metadata.namespace && targets(spec, c)).map((c) => c.metadata.name).sort();
  const [chosen, choose] = useState("");
  const cluster = [chosen, param("cluster")].find((name) => clusters.includes(name)) ?? clusters[0] ?? "";
  const counts = new Map((status.namespaces ?? []).map((/** @type {any} */ n) => [n.cluster, n.count]));
  if (clusters.length === 0) return html`<${Card}><${Empty} icon="clusters" title="The project is in no cluster that you can see" /></${Card}>`;
  return html`<${Card} title="Usage" actions=${html`<label class="inline">Cluster <select value=${cluster} onChange=${(/** @type {any} */ e) => choose(e.target.value)}>${clusters.slice(0, 1000).map((c) => html`<option value=${c}>${c}${counts.has(c) ? ` (${count(counts.get(c), "namespace")})` : ""}</option>`)}</select></label>`}>
    <${UsageIn} key=${cluster} project=${project} member=${`${metadata.namespace}/${cluster}`} /></${Card}>`;
}

/** @param {{ project: any, member: string }} props */
function UsageIn({ project, member }) {
  const { value, error, loading, retry } = useFetch((signal) => quotas(project, member, signal), [member, project.metadata.generation]);
  if (error) return html`<${Problem} title="The usage is not known." error=${error} retry=${retry} />`;
  if (!value) return loading && html`<${Loading} label="Asking the cluster" rows=${3} />`;
  const { rows: found, missing } = value;
  const keys = [...new Set([...Object.keys(project.spec.resourceQuota ?? {}), ...found.flatMap((/** @type {any} */ n) => Object.keys(n.quota?.status?.hard ?? n.quota?.spec?.hard ?? {}))])].sort().slice(0, 24);
  const sum = (/** @type {string} */ key) => found.reduce((/** @type {number} */ total, /** @type {any} */ n) => total + quantity(n.quota?.status?.used?.[key]), 0);
  const all = keys.filter((key) => own(project.spec.resourceQuota, key) !== undefined);
  return html`${all.length > 0 && html`<div class="usage"><${Facts} pairs=${all.map((key) => [key, html`<${Meter} label=${`${key} of the project`} used=${sum(key)} total=${quantity(project.spec.resourceQuota[key])} unit=${unit(key)} word="used" />`])} /></div>`}
    ${found.length > 0 ? html`<${Rows} label="Namespaces" head=${["Namespace", ...keys]} rows=${found.map((/** @type {any} */ n) => [n.name, ...keys.map((key) => figure(n, key))])} />` : !missing && html`<p class="soft">The project has no namespace in this cluster yet.</p>`}
    ${missing && html`<p class="soft">${missing}</p>`}
    ${keys.length === 0 && html`<p class="soft">The project has no quota.</p>`}<p><button type="button" onClick=${retry}><${Icon} name="again" />Refresh</button></p>`;
}
