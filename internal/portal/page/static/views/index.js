// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// All views, in the order in which addresses are matched, and the sections of the navigation.

import { html } from "../lib/html.js";
import { baselineRows, fleet, planRows } from "../core/select.js";
import { Access, BindingView, RoleView, Roles } from "./access.js";
import { Account } from "./account.js";
import { BaselineView, Baselines } from "./baselines.js";
import { ClusterView } from "./cluster.js";
import { Clusters } from "./clusters.js";
import { HostView, Hosts } from "./hosts.js";
import { Overview } from "./overview.js";
import { PlanView, Plans } from "./plans.js";
import { ProjectView, Projects } from "./projects.js";
import { Why } from "./why.js";

const failed = (/** @type {typeof planRows} */ rows) => badge(rows.value.filter((row) => row.state.name === "broken").length, "broken", "failed");
const badge = (/** @type {number} */ n, /** @type {string} */ name, /** @type {string} */ word) => (n > 0 ? html`<span class=${"badge " + name} aria-label=${`${n} ${word}`}>${n}</span>` : null);

/** @type {import("../shell/shell.js").Section[]} */
export const sections = [
  { id: "overview", title: "Overview", icon: "overview", path: [], key: "o" },
  { id: "clusters", title: "Clusters", icon: "clusters", path: ["clusters"], key: "c", badge: () => badge(fleet.value.states.broken, "broken", "broken") },
  { id: "plans", title: "Plans", icon: "plans", path: ["plans"], key: "p", badge: () => failed(planRows) },
  { id: "baselines", title: "Baselines", icon: "baselines", path: ["baselines"], key: "b", badge: () => failed(baselineRows) },
  { id: "projects", title: "Projects", icon: "projects", path: ["projects"], key: "r" },
  { id: "access", title: "Access", icon: "access", path: ["access"], key: "a" },
  { id: "hosts", title: "Hosts", icon: "hosts", path: ["hosts"], key: "h" },
];

/** @type {import("../shell/shell.js").View[]} */
export const views = [
  { path: "", title: "Overview", section: "overview", component: Overview },
  { path: "clusters", title: "Clusters", section: "clusters", component: Clusters },
  { path: "clusters/:workspace/:name/:tab?", title: (p) => `${p.name} · ${p.workspace}`, section: "clusters", component: ClusterView },
  { path: "plans", title: "Plans", section: "plans", component: Plans },
  { path: "plans/:workspace/:name", title: (p) => `${p.name} · ${p.workspace}`, section: "plans", component: PlanView },
  { path: "baselines", title: "Baselines", section: "baselines", component: Baselines },
  { path: "baselines/:workspace/:name", title: (p) => `${p.name} · ${p.workspace}`, section: "baselines", component: BaselineView },
  { path: "projects", title: "Projects", section: "projects", component: Projects },
  { path: "projects/:workspace/:name/:tab?", title: (p) => `${p.name} · ${p.workspace}`, section: "projects", component: ProjectView },
  { path: "access", title: "Access", section: "access", component: Access },
  { path: "access/why", title: "Why can’t I?", section: "access", component: Why },
  { path: "access/roles", title: "Roles", section: "access", component: Roles },
  { path: "access/roles/:name", title: (p) => p.name, section: "access", component: RoleView },
  { path: "access/bindings/:workspace/:kind/:name", title: (p) => `${p.name} · ${p.workspace}`, section: "access", component: BindingView },
  { path: "hosts/:tab?", title: "Hosts", section: "hosts", component: Hosts },
  { path: "hosts/:workspace/:name", title: (p) => `${p.name} · ${p.workspace}`, section: "hosts", component: HostView },
  { path: "account", title: "Account", section: "", component: Account },
];
