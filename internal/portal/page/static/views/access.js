// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Access: who has which role where, one binding, and what RoleTemplates allow.

import { html, useMemo } from "../lib/html.js";
import { count, own, short } from "../lib/text.js";
import { Time, exact } from "../lib/time.js";
import { yaml } from "../lib/yaml.js";
import { expired, place, resources, rulesOf } from "../core/access.js";
import { href, param, setQuery } from "../core/router.js";
import { bindings } from "../core/select.js";
import { bindingState, readyState } from "../core/states.js";
import { derived, keyOf, loaded, object, objects } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { Search } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Card, Command, Empty, Facts, Heading, Loading, Note, State, Tabs } from "../ui/parts.js";
import { Rows, Table } from "../ui/table.js";
import { Conditions } from "./cluster.js";
import { Ended, Until, askRevoke, endsSoon, kindOf, mayChange, mayGrant, openEnd, openGrant } from "./grant.js";

/** @type {WeakMap<object, ReturnType<typeof rowOf>>} */
const known = new WeakMap();

/** @param {any} binding */
function rowOf(binding) {
  const { metadata, spec } = binding;
  const where = place(spec);
  const subject = spec.subject ?? {};
  return {
    key: `${kindOf(binding)} ${keyOf(binding)}`, name: metadata.name, binding, where, who: short(subject.name, 253), kind: subject.kind,
    role: short(spec.roleTemplateName, 253), workspace: String(metadata.namespace), state: bindingState(binding),
    text: [subject.name, subject.kind, spec.roleTemplateName, where, metadata.namespace, metadata.name].join(" ").toLowerCase(),
  };
}

const rows = derived(() => bindings.value.map((binding) => {
  let row = known.get(binding);
  if (!row) known.set(binding, row = rowOf(binding));
  return row;
}).sort((a, b) => (a.text < b.text ? -1 : 1)));

/** @typedef {ReturnType<typeof rowOf>} BindingRow */

const toBinding = (/** @type {any} */ binding) => href(["access", "bindings", binding.metadata.namespace, binding.spec.projectName ? "project" : "cluster", binding.metadata.name]);

/** @type {import("../ui/table.js").Column<BindingRow>[]} */
const columns = [
  { id: "who", title: "Who", cell: (r) => html`${r.who} ${r.kind === "Group" && html`<span class="soft">group</span>`}`, sort: (r) => r.who, width: "22%" },
  { id: "role", title: "Role", cell: (r) => r.role, sort: (r) => r.role, width: "17%" },
  { id: "where", title: "Where", cell: (r) => r.where, sort: (r) => r.where, width: "25%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} title=${r.state.message.slice(0, 300)} />`, sort: (r) => r.state.name, width: "14%" },
  { id: "workspace", title: "Workspace", cell: (r) => r.workspace, sort: (r) => r.workspace, width: "12%" },
  { id: "until", title: "Ends", cell: (r) => html`<${Until} binding=${r.binding} />`, sort: (r) => r.binding.spec.expiresAt ?? "", width: "10%" },
];

/** @type {Record<string, (row: BindingRow) => string>} */
const groupings = { person: (r) => `${r.who}${r.kind === "Group" ? " (group)" : ""}`, role: (r) => r.role, place: (r) => r.where, workspace: (r) => r.workspace };

const tabs = [{ id: "bindings", title: "Bindings" }, { id: "roles", title: "Roles" }];

const Top = () => {
  const grant = mayGrant();
  useCommands(grant ? [{ id: "grant", title: "Grant a role", icon: "plus", run: () => openGrant() }] : [], [grant]);
  return html`<${Heading} title="Access"><a class="button" href=${href(["access", "why"])}><${Icon} name="help" />Why can’t I?</a>
    ${grant && html`<button type="button" class="primary" onClick=${() => openGrant()}><${Icon} name="plus" />Grant a role</button>`}</${Heading}>`;
};

export function Access() {
  const [query, sort, ends, group] = ["q", "sort", "ends", "group"].map(param);
  const all = rows.value;
  const [ended, ending] = useMemo(() => [all.filter((r) => expired(r.binding)), all.filter((r) => endsSoon(r.binding))], [all]);
  const found = useMemo(() => (ends === "ended" ? ended : ends === "soon" ? ending : all).filter((r) => query.toLowerCase().split(/\s+/).every((word) => r.text.includes(word))), [all, query, ends]);
  const chips = [["", "All", all.length], ["soon", "Ending within a week", ending.length], ["ended", "Ended", ended.length]];
  return html`<div class="view fill"><${Top} /><${Tabs} label="Parts of access" tabs=${tabs} current="bindings" path=${["access"]} />
    <div class="toolbar"><${Search} label="Search by person, role, cluster or project" value=${query} onInput=${(/** @type {string} */ q) => setQuery({ q })} />
      <div class="chips" role="group" aria-label="End">${chips.map(([value, label, n]) => html`<button type="button" class="chip" aria-pressed=${String(ends === value)} onClick=${() => setQuery({ ends: String(value) })}>${label} <span class="number">${n}</span></button>`)}</div>
      <select aria-label="Group by" value=${group} onChange=${(/** @type {any} */ e) => setQuery({ group: e.target.value })}><option value="">No groups</option>${Object.keys(groupings).map((name) => html`<option value=${name}>By ${name}</option>`)}</select></div>
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : html`<${Table} id="access" label="Bindings that you can see" rows=${found} columns=${columns} href=${(/** @type {BindingRow} */ r) => toBinding(r.binding)} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} groupOf=${own(groupings, group)} query=${query + ends}
      empty=${all.length === 0 ? html`<${Empty} icon="access" title="There are no bindings that you can see">A binding gives a person or a group a role in clusters or in a project.</${Empty}>` : html`<${Empty} title="No binding matches"><button type="button" onClick=${() => setQuery({ q: "", ends: "" })}>Clear the search</button></${Empty}>`} />`}</div>`;
}

/** @param {{ params: Record<string, string> }} props */
export function BindingView({ params: { workspace, kind, name } }) {
  const binding = object(resources[kind === "project" ? "ProjectRoleTemplateBinding" : "ClusterRoleTemplateBinding"], `${workspace}/${name}`);
  const above = html`<a href=${href(["access"])}>Access</a> <span aria-hidden="true">/</span> ${workspace}`;
  if (!binding) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="access" title="This binding is gone, or you may not see it"><a href=${href(["access"])}>All bindings</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const { spec, status = {}, metadata } = binding;
  const { who, role, where } = rowOf(binding);
  const manifest = { apiVersion: "cluster.drover.dev/v1", kind: kindOf(binding), metadata: { namespace: metadata.namespace, name: metadata.name }, spec };
  return html`<div class="view"><${Heading} title=${`${who} is ${role}`} above=${above} beside=${html`<${State} ...${bindingState(binding)} />`}>
      ${mayChange("patch", binding) && html`<button type="button" onClick=${() => openEnd(binding)}><${Icon} name="clock" />Change the end</button>`}
      ${mayChange("delete", binding) && html`<button type="button" onClick=${() => askRevoke(binding, true)}><${Icon} name="trash" />Revoke</button>`}</${Heading}>
    ${expired(binding) && html`<${Note} name="ended">This binding has ended. It gives no access.</${Note}>`}
    <div class="columns"><div class="column wide"><${Conditions} object=${binding} ready=${expired(binding) ? ["The role has ended", "The role has ended"] : ["The role is in force", "The role is not in force everywhere"]} />
      ${status.failures?.length > 0 && html`<${Card} title="Clusters where it does not work"><${Rows} label="Clusters where it does not work" head=${["Cluster", "Object", "Why"]} rows=${status.failures.map((/** @type {any} */ f) => [html`<a href=${href(["clusters", workspace, f.cluster])}>${f.cluster}</a>`, f.object, short(f.message, 600)])} /></${Card}>`}
      <${Card} title="Manifest"><${Command} text=${yaml(manifest)} what="Manifest" lines /></${Card}></div>
    <div class="column"><${Card} title="Facts"><${Facts} pairs=${[[spec.subject.kind, html`<a href=${href(["access"], { q: who })}>${who}</a>`], ["Role", html`<a href=${href(["access", "roles", role])}>${role}</a>`],
      ["Where", spec.projectName ? html`<a href=${href(["projects", workspace, spec.projectName])}>${where}</a>` : where], ["Clusters", status.clusters?.summary],
      ["Ends", spec.expiresAt ? html`<${Until} binding=${binding} /> <span class="soft">${exact(spec.expiresAt)}</span>` : "no end"], ["Created", metadata.creationTimestamp && html`<${Time} at=${metadata.creationTimestamp} ago />`]]} /></${Card}></div></div></div>`;
}

const templates = derived(() => {
  const used = new Map();
  for (const { role, binding } of rows.value) if (!expired(binding)) used.set(role, (used.get(role) ?? 0) + 1);
  return [...objects("roletemplates").values()].map((template) => ({ key: template.metadata.name, name: template.metadata.name, template, state: readyState(template), uses: used.get(template.metadata.name) ?? 0 })).sort((a, b) => (a.key < b.key ? -1 : 1));
});

/** @type {import("../ui/table.js").Column<typeof templates.value[number]>[]} */
const roleColumns = [
  { id: "name", title: "Role", cell: (r) => r.name, sort: (r) => r.name, width: "24%" },
  { id: "context", title: "Granted in", cell: (r) => (r.template.spec.context === "Project" ? "projects" : "clusters"), sort: (r) => r.template.spec.context, width: "14%" },
  { id: "about", title: "Rules", cell: (r) => (r.template.spec.external ? html`<span class="soft">ClusterRole</span> ${r.template.spec.external}` : html`${count(r.template.spec.rules?.length ?? 0, "rule")}${r.template.spec.inherits?.length > 0 && html` <span class="soft">and ${r.template.spec.inherits.join(", ")}</span>`}`), width: "28%" },
  { id: "uses", title: "Granted to", cell: (r) => r.uses, sort: (r) => r.uses, end: true, width: "14%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} />${r.template.spec.locked && html` <span class="soft">locked</span>`}`, sort: (r) => r.state.name, width: "20%" },
];

export function Roles() {
  const all = templates.value;
  return html`<div class="view fill"><${Top} /><${Tabs} label="Parts of access" tabs=${tabs} current="roles" path=${["access"]} />
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : html`<${Table} id="roles" label="Roles" rows=${all} columns=${roleColumns} href=${(/** @type {any} */ r) => href(["access", "roles", r.name])} sort=${param("sort")} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })}
      empty=${html`<${Empty} icon="access" title="There are no roles that you can see">The ClusterRole drover-roletemplate-viewer of the hub allows it.</${Empty}>`} />`}</div>`;
}

const listed = (/** @type {string[] | undefined} */ list) => (list?.includes("*") ? "all" : [...(list ?? []).slice(0, 60), ...(list && list.length > 60 ? [`and ${list.length - 60} more`] : [])].join(", "));

/** @param {{ params: Record<string, string> }} props */
export function RoleView({ params: { name } }) {
  const template = object("roletemplates", name);
  const above = html`<a href=${href(["access", "roles"])}>Roles</a>`;
  if (!template) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="access" title="This role is gone, or you may not see it" />` : html`<${Loading} />`}</div>`;
  const { rules, problem, external } = rulesOf(name);
  const { spec } = template;
  const all = rows.value.filter((r) => r.role === name);
  const uses = all.filter((r) => !expired(r.binding));
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} ...${readyState(template)} />`} about=${template.metadata.annotations?.["kubernetes.io/description"]}>
      ${!spec.locked && mayGrant() && html`<button type="button" class="primary" onClick=${() => openGrant({ role: name, where: spec.context === "Project" ? "project" : "cluster" })}>Grant this role</button>`}</${Heading}>
    ${problem && html`<${Note} name="broken">${problem} It grants nothing.</${Note}>`}
    ${spec.locked && html`<${Note}>This role is locked: it cannot be granted to more people, except by users with the right to escalate it.</${Note}>`}
    <${Card} title="What it allows">${external ? html`<p>As much as the ClusterRole <code>${external}</code> of each cluster.</p>` : rules.length === 0 ? html`<p class="soft">Nothing.</p>`
      : html`<${Rows} label="Rules" head=${["May", "Resources", "API group", "From"]} rows=${rules.map(({ rule, path }) => [html`<b>${listed(rule.verbs)}</b>`,
        html`${listed(rule.resources ?? rule.nonResourceURLs)}${rule.resourceNames && html` <span class="soft">only ${listed(rule.resourceNames)}</span>`}`,
        rule.nonResourceURLs ? html`<span class="soft">paths</span>` : (rule.apiGroups ?? []).map((g) => (g === "*" ? "all" : g || "core")).join(", "), path.length > 1 ? html`<span class="soft">${path.slice(1).join(" → ")}</span>` : html`<span class="soft">itself</span>`])} />`}</${Card}>
    <${Card} title=${`Granted to: ${uses.length}`}>${uses.length > 0 ? html`<${Rows} label="Bindings with this role" head=${["Who", "Where", "Workspace", "Ends"]} rows=${uses.map((r) => [html`<a href=${toBinding(r.binding)}>${r.who}</a>`, r.where, r.workspace, html`<${Until} binding=${r.binding} />`])} />` : html`<p class="soft">No binding that you can see grants this role now.</p>`}<${Ended} n=${all.length - uses.length} /></${Card}></div>`;
}
