// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view "Why can't I?" asks the hub and the member whether the user may do something, and tells who could change it.

import { may } from "./api.js";
import { el, field } from "./dom.js";
import { all } from "./stream.js";

const clusters = el("datalist", { id: "all-clusters" });
const cluster = el("input", { list: "all-clusters", autocomplete: "off", placeholder: "empty for the hub itself" });
const verb = el("select", {}, ["get", "list", "watch", "create", "update", "patch", "delete"].map((value) => el("option", {}, value)));
const resource = el("input", { required: true, autocomplete: "off", placeholder: "pods, or deployments.apps" });
const namespace = el("input", { autocomplete: "off", placeholder: "empty for all" });
const said = el("div", { role: "status" });

/** The view. */
export const can = {
  title: "Why can’t I?",
  element: el("section", { "aria-label": "Why can’t I?", class: "card" }, el("h2", {}, "Why can’t I?"),
    el("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); answer(); } }, clusters,
      field("Cluster (workspace/name)", cluster), field("Verb", verb), field("Resource", resource), field("Namespace", namespace), el("p", {}, el("button", { class: "main" }, "Ask"))),
    said),
  changed(dirty) {
    if (dirty.has("clusters")) clusters.replaceChildren(...[...all.clusters.keys()].sort().map((value) => el("option", { value })));
  },
};

async function answer() {
  const [name, ...group] = resource.value.trim().split(".");
  const [kind, subresource] = name.split("/");
  const asked = { verb: verb.value, resource: kind, subresource, group: group.join("."), namespace: namespace.value.trim() };
  const member = cluster.value.trim();
  const words = `${asked.verb} ${resource.value.trim()} in ${asked.namespace ? "namespace " + asked.namespace : "all namespaces"} of ${member || "the hub"}`;
  said.replaceChildren(el("p", {}, "Asking."));
  try {
    const status = await may(member, asked);
    said.replaceChildren(el("p", { class: status.allowed ? "state true" : "error" }, `${status.allowed ? "You may " : "You may not "}${words}.`), el("p", {}, status.reason || (status.allowed ? "" : next(member))));
  } catch (problem) { // the hub refuses access to the member and tells what to ask for
    said.replaceChildren(el("p", { class: "error" }, problem.message));
  }
}

const next = (member) => member
  ? "The hub lets you in, but the member’s RBAC does not allow it: ask for a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding in the workspace of the Cluster."
  : "Ask an administrator of the hub for a Role or ClusterRole that allows it.";
