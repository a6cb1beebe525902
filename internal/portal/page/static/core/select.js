// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Facts about the fleet that several views show. Each is computed at most once per frame, from the store.

import { expires } from "../lib/certificate.js";
import { quantity } from "../lib/quantity.js";
import { own } from "../lib/text.js";
import { baselineState, clusterState, condition, planState } from "./states.js";
import { derived, keyOf, objects } from "./store.js";

/** @typedef {ReturnType<typeof rowOf>} ClusterRow */

/** @type {WeakMap<object, ClusterRow>} */
const rows = new WeakMap(); // an object of the store is replaced when it changes, and never modified

/** @param {any} cluster */
function rowOf(cluster) {
  const { metadata, status = {} } = cluster;
  const state = clusterState(cluster);
  /** @type {Record<string, string>} */
  const labels = metadata.labels ?? {};
  const pairs = Object.entries(labels).map(([key, value]) => `${key}=${value}`);
  const outdated = condition(cluster, "AgentUpToDate")?.status === "False";
  return {
    key: keyOf(cluster), cluster, state, labels, pairs, outdated,
    name: /** @type {string} */ (metadata.name), workspace: /** @type {string} */ (metadata.namespace),
    version: /** @type {string} */ (status.version ?? ""), distribution: /** @type {string} */ (status.distribution ?? ""),
    nodes: /** @type {{ ready: number, total: number } | undefined} */ (status.nodes),
    cpu: { used: quantity(status.requested?.cpu), total: quantity(status.allocatable?.cpu) },
    memory: { used: quantity(status.requested?.memory), total: quantity(status.allocatable?.memory) },
    agent: /** @type {string} */ (status.agent?.version ?? ""), created: /** @type {string} */ (metadata.creationTimestamp ?? ""),
    text: [metadata.name, metadata.namespace, status.version, status.distribution, state.word, state.reason, state.name, ...pairs].join(" ").toLowerCase(),
  };
}

/** Returns the row of one Cluster. @param {any} cluster @returns {ClusterRow} */
export function clusterRow(cluster) {
  let row = rows.get(cluster);
  if (!row) rows.set(cluster, row = rowOf(cluster));
  return row;
}

const by = (/** @type {{ key: string }} */ a, /** @type {{ key: string }} */ b) => (a.key < b.key ? -1 : a.key > b.key ? 1 : 0);

/** All Clusters as rows, by key. */
export const clusterRows = derived(() => [...objects("clusters").values()].map(clusterRow).sort(by));

/** All workspaces that have a Cluster or a Project. */
export const workspaces = derived(() => [...new Set([...objects("clusters").values(), ...objects("projects").values()].map((o) => /** @type {string} */ (o.metadata.namespace)))].sort());

/** Counts of a list by a function, the largest first. @template T @param {Iterable<T>} list @param {(item: T) => string} name */
export function tally(list, name) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const item of list) counts.set(name(item), (counts.get(name(item)) ?? 0) + 1);
  return [...counts].map(([key, n]) => ({ key, n })).sort((a, b) => b.n - a.n || (a.key < b.key ? -1 : 1));
}

/** The fleet in numbers. */
export const fleet = derived(() => {
  const all = clusterRows.value;
  const states = { working: 0, waiting: 0, broken: 0 };
  const nodes = { ready: 0, total: 0 };
  const cpu = { used: 0, total: 0 };
  const memory = { used: 0, total: 0 };
  let outdated = 0;
  for (const row of all) {
    states[row.state.name]++;
    nodes.ready += row.nodes?.ready ?? 0;
    nodes.total += row.nodes?.total ?? 0;
    cpu.used += row.cpu.used;
    cpu.total += row.cpu.total;
    memory.used += row.memory.used;
    memory.total += row.memory.total;
    if (row.outdated) outdated++;
  }
  return { total: all.length, states, nodes, cpu, memory, outdated };
});

/** Objects of a kind with their state: at work and broken first. @param {string} kind @param {typeof planState} stateOf */
const rowsOf = (kind, stateOf) => derived(() => {
  const order = { broken: 0, waiting: 1, working: 2 };
  return [...objects(kind).values()].map((object) => ({ key: keyOf(object), kind, object, state: stateOf(object) }))
    .sort((a, b) => order[a.state.name] - order[b.state.name] || by(a, b));
});

export const planRows = rowsOf("plans", planState);
export const baselineRows = rowsOf("baselines", baselineState);

/** Returns whether the spec of a Plan, Project or binding names a Cluster, or selects it by labels. @param {any} spec @param {any} cluster */
export function targets(spec, cluster) {
  if (spec.clusterName) return spec.clusterName === cluster.metadata.name;
  if (!spec.clusterSelector) return false;
  const { labels } = cluster.metadata;
  const { matchLabels = {}, matchExpressions = [] } = spec.clusterSelector;
  return Object.entries(matchLabels).every(([key, value]) => own(labels, key) === value) &&
    matchExpressions.every((/** @type {{ key: string, operator: string, values?: string[] }} */ { key, operator, values = [] }) => {
      const value = /** @type {string | undefined} */ (own(labels, key));
      switch (operator) {
        case "In": return value !== undefined && values.includes(value);
        case "NotIn": return value === undefined || !values.includes(value);
        case "Exists": return value !== undefined;
        case "DoesNotExist": return value === undefined;
        default: return false;
      }
    });
}

/** Returns the objects of a kind in the workspace of a Cluster that target it. @param {string} kind @param {any} cluster */
export const within = (kind, cluster) => [...objects(kind).values()].filter((o) => o.metadata.namespace === cluster.metadata.namespace && targets(o.spec ?? {}, cluster));

/** Returns bindings to a Cluster, with their place in it. @param {any} cluster */
export function bindingsOf(cluster) {
  const projects = new Set(within("projects", cluster).map((project) => project.metadata.name));
  const inProjects = [...objects("projectroletemplatebindings").values()].filter((b) => b.metadata.namespace === cluster.metadata.namespace && projects.has(b.spec.projectName));
  return [...within("clusterroletemplatebindings", cluster).map((binding) => ({ binding, where: "Whole cluster" })),
    ...inProjects.map((binding) => ({ binding, where: `Project ${binding.spec.projectName}` }))];
}

/** All bindings, of clusters and projects. */
export const bindings = derived(() => [...objects("clusterroletemplatebindings").values(), ...objects("projectroletemplatebindings").values()]);

/** Clusters whose certificate for direct access expires within a month, the first one first. */
export const certificates = derived(() => clusterRows.value.filter((row) => row.cluster.status?.directAuthority).map((row) => ({ row, at: expiry(row) }))
  .filter(({ at }) => at > 0 && at < Date.now() + 30 * 86_400_000).sort((a, b) => a.at - b.at));

/** @type {WeakMap<ClusterRow, number>} */
const expiries = new WeakMap();

/** @param {ClusterRow} row */
function expiry(row) {
  let at = expiries.get(row);
  if (at === undefined) expiries.set(row, at = expires(row.cluster.status.directAuthority));
  return at;
}
