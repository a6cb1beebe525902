// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view of one Cluster: its properties, its problems and what to do about them, its Plans, and who can reach it.

import { condition, el, facts, state, table, when } from "./dom.js";
import { all } from "./stream.js";

const dialog = document.getElementById("detail");
let shown = "";

/** Shows a Cluster until the dialog is closed. */
export function show(key) {
  shown = key;
  render();
  dialog.onclose = () => { shown = ""; };
  dialog.showModal();
}

/** Updates the dialog when the shown Cluster changes, or anything that may concern it. */
export function changed(dirty) {
  const clusters = dirty.get("clusters");
  if (!shown || !(clusters?.has(shown) || clusters?.has("") || ["plans", "clusterroletemplatebindings", "projectroletemplatebindings", "projects"].some((kind) => dirty.has(kind)))) return;
  due = true;
  update();
}

// A selection would be lost, so the dialog is updated once the user has copied it and selects something else.
let due = false;
document.addEventListener("selectionchange", update);

function update() {
  const selection = getSelection();
  if (!due || !shown || (!selection.isCollapsed && dialog.contains(selection.anchorNode))) return;
  render();
}

function render() {
  due = false;
  const cluster = all.clusters.get(shown);
  const open = new Set([...dialog.querySelectorAll("details[open]")].map((d) => d.id));
  const close = el("button", { class: "close", onclick: () => dialog.close(), autofocus: true }, "Close");
  if (!cluster) {
    dialog.replaceChildren(close, el("h2", { id: "title" }, shown), el("p", {}, "This Cluster is gone, or you can no longer reach or watch it."));
    return;
  }
  const had = dialog.contains(document.activeElement) && document.activeElement.tagName;
  dialog.replaceChildren(...[close,
    el("h2", { id: "title" }, cluster.metadata.name, " ", el("span", { class: "state " + state(condition(cluster, "Ready")).name }, state(condition(cluster, "Ready")).word)),
    about(cluster), cluster.partial ? reachOnly() : conditions(cluster), plans(cluster), !cluster.partial && who(cluster), kubeconfig(cluster)].filter(Boolean));
  for (const id of open) dialog.querySelector("#" + id)?.setAttribute("open", "");
  if (had === "BUTTON") close.focus();
}

function about({ metadata, status = {} }) {
  return facts([
    ["Workspace", metadata.namespace],
    ["Kubernetes", [status.version, status.distribution].filter(Boolean).join(" ")],
    ["Nodes", status.nodes && `${status.nodes.ready} of ${status.nodes.total} ready`],
    ["CPU requested", share(status, "cpu")],
    ["Memory requested", share(status, "memory")],
    ["Agent", status.agent && [status.agent.version, status.agent.image].filter(Boolean).join(" · ")],
    ["Last seen", when(status.lastSeen)],
    ["Labels", Object.entries(metadata.labels ?? {}).map((pair) => pair.join("=")).join(", ")],
  ]);
}

const share = (status, resource) => status.requested?.[resource] && `${status.requested[resource]} of ${status.allocatable?.[resource] ?? "?"}`;

const reachOnly = () => el("p", { class: "soft" }, "You can reach this Cluster. Its conditions, labels and bindings are visible to users who may watch it on the hub.");

// Problems come first. Their messages tell what to do.
function conditions({ status = {} }) {
  const wrong = (c) => (c.type === "Stalled" ? c.status === "True" : c.status !== "True");
  const sorted = [...(status.conditions ?? [])].sort((a, b) => wrong(b) - wrong(a) || a.type.localeCompare(b.type));
  return el("section", {}, el("h3", {}, "Conditions"), table("Conditions of the Cluster, problems first", ["Condition", "Status", "Since", "Message"],
    sorted.map((c) => [c.type, el("span", { class: "state " + (wrong(c) ? (c.status === "Unknown" ? "unknown" : "false") : "true") }, `${c.status}: ${c.reason}`), when(c.lastTransitionTime) ?? "", c.message])));
}

// A Plan, Project or binding names its Clusters, or selects them by labels.
function reaches(spec, cluster) {
  if (spec.clusterName) return spec.clusterName === cluster.metadata.name;
  const labels = cluster.metadata.labels ?? {};
  const { matchLabels = {}, matchExpressions = [] } = spec.clusterSelector ?? { matchExpressions: [{ operator: "None" }] };
  return Object.entries(matchLabels).every(([key, value]) => labels[key] === value) && matchExpressions.every(({ key, operator, values = [] }) => ({
    In: values.includes(labels[key]), NotIn: !values.includes(labels[key]), Exists: key in labels, DoesNotExist: !(key in labels),
  })[operator] ?? false);
}

const within = (kind, cluster) => [...all[kind].values()].filter((object) => object.metadata.namespace === cluster.metadata.namespace && reaches(object.spec, cluster));

function plans(cluster) {
  const key = cluster.metadata.name;
  const mine = [...all.plans.values()].filter((plan) => plan.metadata.namespace === cluster.metadata.namespace && (plan.status?.members?.some((m) => m.name === key) || reaches(plan.spec, cluster)));
  return mine.length > 0 && el("section", {}, el("h3", {}, "Plans"), table("Plans for this Cluster", ["Plan", "Clusters", "Here"], mine.map((plan) => {
    const here = plan.status?.members?.find((m) => m.name === key);
    return [plan.metadata.name, plan.status?.clusters?.summary ?? "", here ? `${here.reason}${here.nodes ? ", nodes " + here.nodes : ""}${here.message ? ": " + here.message : ""}` : "done, or nothing to do"];
  })));
}

function who(cluster) {
  const projects = new Map(within("projects", cluster).map((project) => [project.metadata.name, project]));
  const rows = within("clusterroletemplatebindings", cluster).map((b) => [subject(b), b.spec.roleTemplateName, "the whole cluster", ends(b)]);
  for (const b of all.projectroletemplatebindings.values()) {
    if (b.metadata.namespace === cluster.metadata.namespace && projects.has(b.spec.projectName)) rows.push([subject(b), b.spec.roleTemplateName, "project " + b.spec.projectName, ends(b)]);
  }
  return el("details", { id: "who" }, el("summary", {}, `Who can: ${rows.length} by bindings`), rows.length > 0 && table("Bindings that you may watch", ["Who", "Role", "Where", "Until"], rows),
    el("p", { class: "soft" }, "Besides, all who may get clusters/proxy on the hub, as far as the member’s own RBAC lets them."));
}

const subject = (binding) => `${binding.spec.subject.kind} ${binding.spec.subject.name}`;
const ends = (binding) => binding.spec.expiresAt ? when(binding.spec.expiresAt) : "";

function kubeconfig(cluster) {
  const name = keyed(cluster);
  const command = `kubectl drover use ${name} --hub ${location.origin}`;
  return el("details", { id: "kubeconfig" }, el("summary", {}, "kubectl"),
    el("p", {}, "With the plugin, which signs you in and renews the token:"), el("pre", { tabindex: "0" }, command),
    el("p", {}, "Its address, for other tools:"), el("pre", { tabindex: "0" }, `${location.origin}/k8s/clusters/${name}`));
}

const keyed = (cluster) => `${cluster.metadata.namespace}/${cluster.metadata.name}`;
