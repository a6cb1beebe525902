// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// "Why can't I?" asks the hub and the member whether the user may do something, and tells who could change it.

import { html, useState } from "../lib/html.js";
import { review } from "../core/api.js";
import { href, param } from "../core/router.js";
import { clusterRows } from "../core/select.js";
import { Field } from "../ui/form.js";
import { Card, Heading, Loading, Note, Problem } from "../ui/parts.js";

const verbs = ["get", "list", "watch", "create", "update", "patch", "delete"];

export function Why() {
  const [form, setForm] = useState({ member: param("cluster"), verb: param("verb") || "get", resource: param("resource"), namespace: param("namespace") });
  const [state, setState] = useState(/** @type {any} */ ({}));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((was) => ({ ...was, [key]: value })); };
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const [name, ...group] = form.resource.trim().split(".");
    const [resource, subresource] = name.split("/");
    const [member, namespace] = [form.member.trim(), form.namespace.trim()];
    const question = `${form.verb} ${form.resource.trim()} in ${namespace ? "namespace " + namespace : "all namespaces"} of ${member || "the hub"}`;
    setState({ busy: true });
    try {
      setState({ question, member, status: await review(member, { verb: form.verb, resource, subresource, group: group.join("."), namespace }) });
    } catch (error) { // the hub refuses access to the member and tells what to ask for
      setState({ error });
    }
  };
  return html`<div class="view narrow"><${Heading} title="Why can’t I?" above=${html`<a href=${href(["access"])}>Access</a>`} about="Asks the hub, or a cluster, whether you may do something, and says who can change it." />
    <${Card}><form class="form-grid" onSubmit=${ask}>
      <${Field} label="Cluster (workspace/name)" value=${form.member} onInput=${set("member")} list=${clusterRows.value.map((r) => r.key)} placeholder="empty for the hub itself" />
      <${Field} label="Verb" value=${form.verb} onInput=${set("verb")} options=${verbs} />
      <${Field} label="Resource" value=${form.resource} onInput=${set("resource")} required placeholder="pods, or deployments.apps" />
      <${Field} label="Namespace" value=${form.namespace} onInput=${set("namespace")} placeholder="empty for all" />
      <p class="form-end"><button class="primary" disabled=${state.busy}>Ask</button></p></form></${Card}>
    <div role="status">${state.busy && html`<${Loading} label="Asking" rows=${1} />`}
      ${state.status && html`<${Note} name=${state.status.allowed ? "working" : "broken"}><p><b>${state.status.allowed ? "You may" : "You may not"} ${state.question}.</b></p><p>${state.status.reason || (state.status.allowed ? "" : next(state.member))}</p></${Note}>`}
      ${state.error && html`<${Problem} error=${state.error} />`}</div></div>`;
}

const next = (/** @type {string} */ member) => (member
  ? "The hub lets you in, but the member’s RBAC does not allow it: ask for a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding in the workspace of the Cluster."
  : "Ask an administrator of the hub for a Role or ClusterRole that allows it.");
