// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// "Why can't I?" asks the hub and the member whether someone may do something, and explains it from the bindings and
// RoleTemplates that the user may watch, like kubectl drover why.

import { html, useState } from "../lib/html.js";
import { command } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { explain } from "../core/access.js";
import { create, review } from "../core/api.js";
import { href, param, setQuery } from "../core/router.js";
import { clusterRows } from "../core/select.js";
import { object, objects } from "../core/store.js";
import { me } from "../core/user.js";
import { Field } from "../ui/form.js";
import { Mark } from "../ui/icons.js";
import { Card, Command, Heading, Loading, More, Note, Problem } from "../ui/parts.js";
import { mayGrant, openGrant } from "./grant.js";

const verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "impersonate"];

/** @typedef {{ member: string, who: string, group: string, verb: string, resource: string, namespace: string }} Question */

/** Asks the API server of a member, or of the hub. @param {Question} q @param {any} attributes */
async function decide({ member, who, group }, attributes) {
  if (!who) return review(member, attributes);
  return (await create({ group: "authorization.k8s.io", resource: "subjectaccessreviews", member }, {
    apiVersion: "authorization.k8s.io/v1", kind: "SubjectAccessReview", spec: { user: who, groups: group.split(",").map((g) => g.trim()).filter(Boolean), resourceAttributes: attributes },
  })).status;
}

export function Why() {
  const [form, setForm] = useState(/** @type {Question} */ ({ member: param("cluster"), who: param("who"), group: "", verb: verbs.includes(param("verb")) ? param("verb") : "get", resource: param("resource"), namespace: param("namespace") }));
  const [state, setState] = useState(/** @type {any} */ ({}));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((was) => ({ ...was, [key]: value })); };
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const [name, ...group] = form.resource.trim().split(".");
    const [resource, subresource] = name.split("/");
    const q = { ...form, member: form.member.trim(), who: form.who.trim(), namespace: form.namespace.trim() };
    setQuery({ cluster: q.member, who: q.who, verb: q.verb, resource: form.resource.trim(), namespace: q.namespace });
    const action = { verb: form.verb, resource: name, group: group.join("."), namespace: q.namespace };
    const question = `${form.verb} ${form.resource.trim()} in ${q.namespace ? "namespace " + q.namespace : "all namespaces"} of ${q.member || "the hub"}`;
    setState({ busy: true });
    try {
      setState({ q, question, action, status: await decide(q, { verb: form.verb, resource, subresource, group: group.join("."), namespace: q.namespace }) });
    } catch (error) { // the hub refuses access to the member and tells what to ask for
      setState({ q, question, action, error });
    }
  };
  return html`<div class="view narrow"><${Heading} title="Why can’t I?" above=${html`<a href=${href(["access"])}>Access</a>`} about="Asks the hub, or a cluster, whether you or someone else may do something, and says why and who can change it." />
    <${Card}><form class="form-grid" onSubmit=${ask}>
      <${Field} label="Cluster (workspace/name)" value=${form.member} onInput=${set("member")} list=${clusterRows.value.map((r) => r.key)} placeholder="empty for the hub itself" />
      <${Field} label="Who" value=${form.who} onInput=${set("who")} placeholder="empty for yourself" />
      <${Field} label="Verb" value=${form.verb} onInput=${set("verb")} options=${verbs} />
      <${Field} label="Resource" value=${form.resource} onInput=${set("resource")} required placeholder="pods, or deployments.apps" />
      <${Field} label="Namespace" value=${form.namespace} onInput=${set("namespace")} placeholder="empty for all" />
      ${form.who.trim() && html`<${Field} label="Groups, separated by commas" value=${form.group} onInput=${set("group")} placeholder="github:acme/web" help="The hub does not know the groups of others." />`}
      <p class="form-end"><button class="primary" disabled=${state.busy}>Ask</button></p></form></${Card}>
    <div role="status">${state.busy && html`<${Loading} label="Asking" rows=${1} />`}
      ${state.status && html`<${Note} name=${state.status.allowed ? "working" : "broken"}><p><b>${`${state.q.who || "You"} may ${state.status.allowed ? "" : "not "}${state.question}.`}</b></p><p>${state.status.reason || (state.status.allowed ? "" : next(state.q.member, state.q.who))}</p></${Note}>`}
      ${state.error && html`<${Problem} error=${state.error} title=${state.q.who ? `${state.q.member || "The hub"} did not answer the question.` : undefined} />`}</div>
    ${state.q?.member && html`<${Explanation} q=${state.q} action=${state.action} />`}</div>`;
}

const next = (/** @type {string} */ member, /** @type {string} */ who) => (who ? "Nothing there allows it." : member
  ? "The hub lets you in, but nothing in the cluster allows it: ask for a role in the cluster, or in a project of it."
  : "Ask an administrator of the hub for a Role or ClusterRole that allows it.");

/** @param {{ q: Question, action: import("../core/access.js").Action }} props */
function Explanation({ q, action }) {
  const cluster = object("clusters", q.member);
  const who = q.who || me.value.username;
  const groups = q.who ? q.group.split(",").map((g) => g.trim()) : me.value.groups ?? [];
  const resource = action.resource + (action.group ? "." + action.group : "");
  const text = action.namespace ? command`kubectl drover why ${who} ${action.verb} ${resource} --cluster ${q.member} -n ${action.namespace}`
    : command`kubectl drover why ${who} ${action.verb} ${resource} --cluster ${q.member}`;
  if (!cluster || cluster.partial || objects("roletemplates").size === 0) return html`<${Card} title="Explanation"><p class="soft">You may not see this cluster’s bindings and the roles, so the page cannot explain the answer. An administrator can, with this command:</p><${Command} text=${text} /></${Card}>`;
  const about = (/** @type {{ kind: string, name: string }} */ s) => (s.kind === "Group" ? groups.includes(s.name) : s.name === who);
  const { chains, missing } = explain(cluster, action, about);
  const others = explain(cluster, action, (s) => !about(s)).chains;
  const line = (/** @type {any} */ g) => html`<strong>${g.binding.spec.subject.name}</strong> is <a href=${href(["access", "roles", g.role])}>${g.role}</a> in ${g.where} <span class="soft">${g.binding.metadata.name}</span>`;
  return html`<${Card} title=${`What the bindings of ${who} say`} actions=${mayGrant(cluster.metadata.namespace) && html`<button type="button" onClick=${() => openGrant({ workspace: cluster.metadata.namespace, cluster: cluster.metadata.name, name: who })}>Grant a role</button>`}>
      <ul class="tree" aria-label="Explanation">${chains.map((g) => html`<li><${Mark} name=${g.external ? "waiting" : "working"} /><div><p>${line(g)}${g.binding.spec.expiresAt && html`, until <${Time} at=${g.binding.spec.expiresAt} />`}</p>
        <p class="soft">${g.path.length > 1 && g.path.join(" → ") + ": "}${g.external ? `The ClusterRole ${g.external} of the cluster decides.` : ruleText(g.rule)}</p></div></li>`)}
      ${missing.slice(0, 50).map((g) => html`<li><${Mark} name="broken" /><div><p>${line(g)}</p><p class="soft">${g.lack}</p></div></li>`)}<${More} all=${missing.length} most=${50} />
      ${chains.length + missing.length === 0 && html`<li><${Mark} name="broken" /><div><p>No binding in the workspace names ${q.who ? "this user or these groups" : "you or one of your groups"}.</p></div></li>`}</ul>
      <p class="soft">The cluster’s own roles and bindings may allow more.</p></${Card}>
    <${Card} title="Who else may do it">${others.length > 0 ? html`<ul class="tree" aria-label="Who else">${others.slice(0, 30).map((g) => html`<li><${Mark} name=${g.external ? "waiting" : "working"} /><div><p>${line(g)}</p></div></li>`)}<${More} all=${others.length} most=${30} /></ul>` : html`<p class="soft">No binding that you can see grants it to anyone else.</p>`}
      <p class="soft">kubectl also shows the objects in the cluster:</p><${Command} text=${text} /></${Card}>`;
}

const ruleText = (/** @type {any} */ rule) => `${(rule.verbs ?? []).join(", ")} ${(rule.resources ?? []).slice(0, 20).join(", ")}${rule.apiGroups?.some(Boolean) ? ` of ${rule.apiGroups.map((/** @type {string} */ g) => g || "core").join(", ")}` : ""}`;
