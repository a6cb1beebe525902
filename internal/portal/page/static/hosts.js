// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view of Hosts, with their states and the reasons.

import { condition, el, state, table, when } from "./dom.js";
import { all } from "./stream.js";

const list = el("div");

/** The view. */
export const hosts = {
  title: "Hosts",
  element: el("section", { "aria-label": "Hosts" }, list),
  changed(dirty) {
    if (!dirty.has("hosts")) return;
    const open = new Set([...list.querySelectorAll("details[open]")].map((d) => d.dataset.key));
    const sorted = [...all.hosts.entries()].sort(([a], [b]) => a.localeCompare(b));
    list.replaceChildren(sorted.length > 0 ? table("Machines with an agent", ["Host", "State", "Why", "System", "Seen"], sorted.map(([key, host]) => row(key, host, open)))
      : el("p", {}, "There are no Hosts that you may watch."));
  },
};

function row(key, host, open) {
  const { status = {} } = host;
  const ready = condition(host, "Ready");
  const held = condition(host, "RestoreConfirmed");
  const color = condition(host, "Stalled")?.status === "True" || held ? "false" : state(ready).name === "true" ? "true" : "unknown";
  return [key, el("span", { class: "state " + color }, status.state ?? "Unknown"),
    el("div", {}, `${ready?.reason ?? "Pending"}: ${ready?.message ?? ""}`, held && el("p", {}, `${held.reason}: ${held.message}`),
      status.plan?.output && el("details", { "data-key": key, open: open.has(key) }, el("summary", {}, "Last lines"), el("pre", { tabindex: "0" }, status.plan.output))),
    [status.machine?.os, status.machine?.architecture].filter(Boolean).join(", "), when(status.lastSeen) ?? (status.machine ? "now" : "never")];
}
