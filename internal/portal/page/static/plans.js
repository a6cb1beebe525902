// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view of Plans shows their waves, the Clusters in progress, and failures.

import { condition, el, facts, state, table, when } from "./dom.js";
import { all } from "./stream.js";

const list = el("div");

/** The view. */
export const plans = {
  title: "Plans",
  element: el("section", { "aria-label": "Plans" }, list),
  changed(dirty) {
    if (!dirty.has("plans")) return;
    const open = new Set([...list.querySelectorAll("details[open]")].map((d) => d.dataset.key));
    const sorted = [...all.plans.entries()].sort(([a], [b]) => a.localeCompare(b));
    list.replaceChildren(...(sorted.length > 0 ? sorted.map(([key, plan]) => card(key, plan, open)) : [el("p", {}, "There are no Plans that you may watch.")]));
  },
};

function card(key, plan, open) {
  const { status = {} } = plan;
  const ready = condition(plan, "Ready");
  const more = (name, text, content) => content && el("details", { "data-key": key + name, open: open.has(key + name) }, el("summary", {}, text), content);
  return el("article", { class: "card", "aria-label": "Plan " + key },
    el("h2", {}, key, " ", el("span", { class: "state " + color(plan, ready) }, ready?.reason ?? "Unknown")),
    el("p", {}, ready?.message ?? ""),
    facts([["Version", status.latestVersion], ["Clusters", status.clusters?.summary], ["Nodes", status.nodes?.summary]]),
    (status.waves ?? []).map(wave),
    more("members", `In progress or waiting: ${status.members?.length ?? 0}`, status.members?.length > 0 && table("Clusters that are not done", ["Cluster", "Wave", "Nodes", "Why", "Since"],
      status.members.map((m) => [m.name, m.wave, m.nodes ?? "", m.message ? `${m.reason}: ${m.message}` : m.reason, when(m.since)]))),
    more("failures", `Failures: ${status.failures?.length ?? 0}`, status.failures?.length > 0 && table("Nodes on which the plan failed", ["Cluster", "Node", "Why", "Last lines"],
      status.failures.map((f) => [f.cluster, f.node, `${f.reason}: ${f.message}`, el("pre", { tabindex: "0" }, f.log ?? "")]))));
}

// A Plan in progress is not ready, but this is not a problem.
const color = (plan, ready) => (condition(plan, "Stalled")?.status === "True" ? "false" : state(ready).name === "true" ? "true" : "unknown");

// The bar shows the complete Clusters. If Clusters failed, it has another color, and the label has their number.
function wave({ name, clusters, soakUntil }) {
  return el("div", {}, el("label", {}, `${name}: ${clusters.summary}${clusters.failed ? `, ${clusters.failed} failed` : ""}`, soakUntil && [" · soaks until ", when(soakUntil)],
    el("progress", { class: clusters.failed ? "failed" : "", max: Math.max(clusters.total, 1), value: clusters.complete })));
}
