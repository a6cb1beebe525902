// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The dialogs that grant a role, change its end, and revoke it. The form can print the binding instead of applying it.

import { html, useEffect, useState } from "../lib/html.js";
import { count, short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { yaml } from "../lib/yaml.js";
import { bindingFor, expired, place, resources, rulesOf, sameGrant, selectorOf } from "../core/access.js";
import { apply, drover, merge, remove } from "../core/api.js";
import { may, mayAnywhere } from "../core/rights.js";
import { go, href } from "../core/router.js";
import { bindings, workspaces } from "../core/select.js";
import { keyOf, objects } from "../core/store.js";
import { DialogActions, confirm, openDialog } from "../ui/dialog.js";
import { Field, nameRules } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Command, Note, Problem } from "../ui/parts.js";
import { toast } from "../ui/toast.js";

/** Returns whether a binding is in force and ends within a week. @param {any} binding */
export const endsSoon = (binding) => Boolean(binding.spec.expiresAt) && !expired(binding) && Date.parse(binding.spec.expiresAt) < Date.now() + 7 * 86_400_000;

/** When a binding ends. @param {{ binding: any }} props */
export const Until = ({ binding }) => (!binding.spec.expiresAt ? html`<span class="soft">no end</span>`
  : expired(binding) ? html`<span class="soft">ended <${Time} at=${binding.spec.expiresAt} ago /></span>`
  : html`<span class=${endsSoon(binding) ? "wait" : ""}><${Time} at=${binding.spec.expiresAt} /></span>`);

/** Says how many bindings have ended, below a table of the others. @param {{ n: number }} props */
export const Ended = ({ n }) => (n === 0 ? null : html`<p class="soft">${count(n, "binding")} ${n === 1 ? "has" : "have"} ended. <a href=${href(["access"], { ends: "ended" })}>All bindings that have ended</a></p>`);

/** Opens the form, with values that are known already. @param {Partial<import("../core/access.js").Wanted>} [known] */
export const openGrant = (known = {}) => openDialog("Grant a role", Grant, { known }, { drawer: true });

/** Whether the user may grant roles in a workspace, or in any. @param {string} [workspace] */
export const mayGrant = (workspace) => Object.values(resources).some((resource) => (workspace
  ? may({ verb: "create", resource, namespace: workspace }) : mayAnywhere({ verb: "create", resource })));

const ends = [["", "never"], ["8h", "in 8 hours"], ["1d", "in a day"], ["7d", "in 7 days"], ["30d", "in 30 days"], ["at", "at a time"]];

/** Returns a time in the form of the API, from a choice of the form. @param {string} choice @param {string} at */
export function timeOf(choice, at) {
  if (!choice || (choice === "at" && !at)) return "";
  const length = parseInt(choice, 10) * (choice.endsWith("d") ? 86_400_000 : 3_600_000);
  return (choice === "at" ? new Date(at) : new Date(Date.now() + length)).toISOString().replace(/\.\d+/, "");
}

/** @param {{ end: string, at: string, set: (key: string) => (event: any) => void }} props */
const End = ({ end, at, set }) => html`<${Field} label="Ends" value=${end} onChange=${set("end")} options=${ends.map(([value, label]) => ({ value, label }))} />
  ${end === "at" && html`<${Field} label="Time" type="datetime-local" required value=${at} onInput=${set("at")} help="In the time zone of your browser." />`}`;

/** @param {{ known: any, close: () => void }} props */
function Grant({ known, close }) {
  const [form, setForm] = useState({ workspace: workspaces.value.length === 1 ? workspaces.value[0] : "", kind: "User", name: "", role: "", where: "cluster", cluster: "", selector: "", project: "", end: "", at: "", ...known });
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState(/** @type {any} */ (null));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((/** @type {any} */ was) => ({ ...was, [key]: value })); };
  const { workspace, where } = form;
  useEffect(() => {
    let left = false;
    bindingFor({ ...form, name: form.name.trim(), until: timeOf(form.end, form.at) }).then((binding) => { if (!left) setMade(binding); });
    return () => { left = true; };
  }, [form]);
  const context = where === "project" ? "Project" : "Cluster";
  // Nothing is asked for each letter of a workspace that the user types.
  const mayBind = (/** @type {string} */ name) => !workspaces.value.includes(workspace) || may({ verb: "bind", resource: "roletemplates", namespace: workspace, name }) !== false;
  const roles = [...objects("roletemplates").values()].filter((t) => t.spec.context === context && !t.spec.locked && mayBind(t.metadata.name)).map((t) => t.metadata.name).sort();
  const inWorkspace = (/** @type {string} */ kind) => [...objects(kind).values()].filter((o) => o.metadata.namespace === workspace).map((o) => o.metadata.name).sort();
  const people = [...new Set([...bindings.value.map((b) => b.spec.subject).filter((s) => s?.kind === form.kind).map((s) => s.name), ...(form.kind === "User" ? [...objects("users").keys()].map((n) => "local:" + n) : [])])].sort();
  const existingOf = (/** @type {any} */ binding) => objects(resources[/** @type {"ProjectRoleTemplateBinding"} */ (binding.kind)]).get(keyOf(binding));
  const existing = made && existingOf(made);
  const taken = existing && !sameGrant(existing, made);
  const unknown = form.kind === "Group" && form.name.trim() && !form.name.includes(":"); // kubectl drover grant refuses it as well
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    if (unknown) return setError(new Error(`The group ${form.name.trim()} has no provider: use the name that clusters see, such as github:acme/web.`));
    if (where === "selector" && !selectorOf(form.selector)) return setError(new Error("The labels are not of the form env=prod, tier=edge, with each key once."));
    setBusy(true);
    try {
      const binding = await bindingFor({ ...form, name: form.name.trim(), until: timeOf(form.end, form.at) });
      const present = existingOf(binding);
      if (present && !sameGrant(present, binding)) throw new Error(`The binding ${binding.metadata.name} grants something else.`);
      await apply({ ...drover, resource: resources[/** @type {"ProjectRoleTemplateBinding"} */ (binding.kind)], namespace: workspace, name: binding.metadata.name }, { ...binding, metadata: { ...binding.metadata, uid: present?.metadata.uid } });
      toast(`${binding.spec.subject.name} has the role ${form.role} in ${place(binding.spec)}.`);
      close();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
    return undefined;
  };
  return html`<form onSubmit=${submit}><div class="dialog-body">
    <div class="form-grid"><${Field} label="Grant to a" value=${form.kind} onChange=${set("kind")} options=${["User", "Group"]} />
      <${Field} label="Name" value=${form.name} onInput=${set("name")} list=${people} required data-focus maxlength="253" help=${form.kind === "User" ? "For example github:alice. A name without a colon is a user of this hub with a password." : "For example github:acme/web."} /></div>
    <div class="form-grid"><${Field} label="Workspace" value=${workspace} onInput=${set("workspace")} list=${workspaces.value} ...${nameRules} />
      <${Field} label="Where" value=${where} onChange=${set("where")} options=${[{ value: "cluster", label: "a cluster" }, { value: "selector", label: "clusters with labels" }, { value: "project", label: "a project" }]} /></div>
    ${where === "cluster" && html`<${Field} label="Cluster" value=${form.cluster} onInput=${set("cluster")} list=${inWorkspace("clusters")} ...${nameRules} />`}
    ${where === "selector" && html`<${Field} label="Labels" value=${form.selector} onInput=${set("selector")} required placeholder="env=prod, region=eu" help="All clusters of the workspace that have them, now and later." />`}
    ${where === "project" && html`<${Field} label="Project" value=${form.project} onInput=${set("project")} list=${inWorkspace("projects")} ...${nameRules} />`}
    <${Field} label="Role" value=${form.role} onChange=${set("role")} required options=${[{ value: "", label: roles.length > 0 ? "Choose a role" : "There is no role that you may grant here" }, ...roles]} />
    ${form.role && html`<${Brief} name=${form.role} />`}
    <${End} end=${form.end} at=${form.at} set=${set} />
    ${taken && html`<${Note} name="broken">${`The binding ${made.metadata.name} grants something else: ${short(existing.spec.subject?.name)} has the role ${existing.spec.roleTemplateName} in ${place(existing.spec)}. Revoke it first.`}</${Note}>`}
    ${existing && !taken && html`<${Note}>This is granted already${expired(existing) ? ", but has ended" : ""}. Granting it again changes its end.</${Note}>`}
    ${made && !unknown && html`<details class="fold"><summary><${Icon} name="chevron" />As YAML, for a repository or kubectl apply</summary><${Command} text=${yaml(made)} what="Manifest" lines /></details>`}
    ${error && html`<${Problem} title="The role was not granted." error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${busy}>${busy ? "Granting …" : "Grant"}</button></${DialogActions}></form>`;
}

/** @param {{ name: string }} props */
function Brief({ name }) {
  const { rules, external, problem } = rulesOf(name);
  const list = rules.slice(0, 4).map(({ rule }) => `${(rule.verbs ?? []).join(", ")} ${(rule.resources ?? rule.nonResourceURLs ?? []).slice(0, 6).join(", ")}`);
  return html`<p class="soft message">${problem || (external ? `As far as the ClusterRole ${external} of each cluster allows.` : `${list.join("; ")}${rules.length > 4 ? `; and ${rules.length - 4} more rules` : ""}.`.slice(0, 400))} <a href=${href(["access", "roles", name])}>All that it allows</a></p>`;
}

/** @param {any} binding @returns {import("../core/access.js").BindingKind} */
export const kindOf = (binding) => (binding.spec.projectName ? "ProjectRoleTemplateBinding" : "ClusterRoleTemplateBinding");

/** The part of a path that names a binding. @param {any} binding */
export const refOf = (binding) => ({ ...drover, resource: resources[kindOf(binding)], namespace: binding.metadata.namespace, name: binding.metadata.name });

/** Whether the user may do something with a binding. @param {string} verb @param {any} binding */
export const mayChange = (verb, binding) => { const { resource, namespace, name } = refOf(binding); return may({ verb, resource, namespace, name }); };

/** Asks and revokes. @param {any} binding @param {boolean} [leave] */
export function askRevoke(binding, leave) {
  const { subject, roleTemplateName: role } = binding.spec;
  confirm({
    title: "Revoke this role?", action: "Revoke", danger: true,
    text: html`<p><b>${subject.name}</b> loses the role <b>${role}</b> in ${place(binding.spec)}. Connected clusters enforce it within seconds, others when they connect.</p><p class="soft">Other bindings may still grant the same: “Why can’t I?” shows them.</p>`,
    run: async () => {
      await remove(refOf(binding), binding.metadata.uid);
      toast(`${subject.name} no longer has the role ${role} in ${place(binding.spec)}.`);
      if (leave) go(href(["access"]));
    },
  });
}

/** Opens the form for the end of a grant. @param {any} binding */
export const openEnd = (binding) => openDialog("Change when it ends", ChangeEnd, { binding });

/** @param {{ binding: any, close: () => void }} props */
function ChangeEnd({ binding, close }) {
  const [form, setForm] = useState({ end: "7d", at: "" });
  const [error, setError] = useState(/** @type {any} */ (null));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((was) => ({ ...was, [key]: value })); };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    try {
      await merge(refOf(binding), { metadata: { uid: binding.metadata.uid }, spec: { expiresAt: timeOf(form.end, form.at) || null } });
      toast("The end is changed.");
      close();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form onSubmit=${submit}><div class="dialog-body"><p>${binding.spec.subject.name} has the role ${binding.spec.roleTemplateName} in ${place(binding.spec)}.</p>
    <${End} end=${form.end} at=${form.at} set=${set} />${error && html`<${Problem} title="The end was not changed." error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary">Change</button></${DialogActions}></form>`;
}
