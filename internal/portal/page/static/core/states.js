// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The three states that the page knows, in people's words: working, waiting and broken. A binding may also have ended.

import { own, words } from "../lib/text.js";

/** @typedef {"working" | "waiting" | "broken"} StateName */
/** @typedef {{ type: string, status: string, reason: string, message: string, lastTransitionTime: string }} Condition */

/** Returns the condition of an object with a type. @param {any} object @param {string} type @returns {Condition | undefined} */
export const condition = (object, type) => object.status?.conditions?.find((/** @type {Condition} */ c) => c.type === type);

// Reasons for which a Cluster is not ready yet, but nothing is wrong.
const waiting = new Set(["AwaitingAgent", "AwaitingReport", "Pending", "Removing", "AgentWaiting", "AgentUpdating"]);

/** @type {Record<string, string>} */
const clusterWords = {
  Connected: "Ready", ConnectedByNodeAgent: "Ready", AwaitingAgent: "Waiting for its agent", AwaitingReport: "Waiting for its first report",
  Pending: "Just created", Removing: "Being removed", TunnelLost: "Disconnected", ApiServerUnhealthy: "API server unhealthy",
  TokenExpired: "Import expired", TokenUsed: "Token used up", TokenInvalid: "Token invalid", VersionSkew: "Agent version unsupported",
  IdentityMismatch: "Wrong identity", AlreadyImported: "Imported elsewhere", RegistrationFailed: "Registration failed",
  SecretConflict: "Secret name taken", TooManyClusters: "Too many clusters", TooManyTunnels: "Too many tunnels", AgentTooFast: "Agent refused: sends too much",
};

/**
 * Returns the state of a Cluster, with a short word for it.
 * @param {any} cluster @returns {{ name: StateName, word: string, reason: string, message: string, since: string }}
 */
export function clusterState(cluster) {
  const ready = condition(cluster, "Ready");
  const reason = ready?.reason ?? "Pending";
  const removing = Boolean(cluster.metadata.deletionTimestamp);
  /** @type {StateName} */
  const name = ready?.status === "True" ? "working" : removing || !ready || ready.status === "Unknown" || waiting.has(reason) ? "waiting" : "broken";
  const word = removing ? "Being removed" : name === "working" ? "Ready" : own(clusterWords, reason) ?? words(reason);
  return { name, word, reason, message: ready?.message ?? "", since: ready?.lastTransitionTime ?? "" };
}

/**
 * Returns the state of an object with the conditions Ready and Stalled: a Plan, a Project, a binding.
 * @param {any} object @returns {{ name: StateName, word: string, message: string, since: string }}
 */
export function readyState(object) {
  const ready = condition(object, "Ready");
  const stalled = condition(object, "Stalled")?.status === "True";
  const name = stalled ? "broken" : ready?.status === "True" ? "working" : "waiting";
  return { name, word: words(ready?.reason ?? "Pending"), message: ready?.message ?? "", since: ready?.lastTransitionTime ?? "" };
}

/** Returns the state of a binding. An expired binding is Ready in all members, but gives no access. @param {any} binding */
export function bindingState(binding) {
  const state = readyState(binding);
  return { ...state, name: state.name === "working" && condition(binding, "Ready")?.reason === "Expired" ? "ended" : state.name };
}

/** Returns the state of a Plan: failed nodes are broken, even if others are still at work. @param {any} plan */
export function planState(plan) {
  const state = readyState(plan);
  const { nodes, clusters, failures } = plan.status ?? {};
  const failed = (nodes?.failed ?? 0) + (clusters?.failed ?? 0) + (failures?.length ?? 0) > 0;
  if (state.name === "waiting" && failed) return { ...state, name: /** @type {StateName} */ ("broken"), word: "Nodes failed" };
  return state;
}

/** Returns the state of a Baseline: failed clusters are broken, even if others are still at work. @param {any} baseline */
export function baselineState(baseline) {
  const state = readyState(baseline);
  return state.name === "waiting" && baseline.status?.clusters?.failed > 0 ? { ...state, name: /** @type {StateName} */ ("broken") } : state;
}

/** Returns the state of a Host. @param {any} host */
export function hostState(host) {
  const held = condition(host, "RestoreConfirmed");
  const state = readyState(host);
  return { ...state, name: held ? /** @type {StateName} */ ("broken") : state.name, word: host.status?.state ?? "Unknown", held };
}

// Whether a condition is a problem: all but Stalled are good when True.
const wrong = (/** @type {Condition} */ c) => (c.type === "Stalled" ? c.status === "True" : c.status !== "True");

/** @type {Record<string, [string, string]>} */
const titles = { // what a condition says when it is good, and when it is not
  Ready: ["The cluster can be used", "The cluster cannot be used"],
  Registered: ["The agent has joined", "No agent has joined"],
  Connected: ["The agent is connected", "The agent is not connected"],
  AgentUpToDate: ["The agent is up to date", "The agent is not up to date"],
  AgentUnmanaged: ["", "Drover cannot update the agent"],
  GuardsApplied: ["Projects are protected", "Projects are not protected"],
  DirectAccess: ["Access without the hub works", "Access without the hub does not work"],
  Stalled: ["", "Someone has to act"],
  Maintained: ["The agent does its work", "No replica of the agent leads, so nothing is delivered or repaired"],
  Withdrawn: ["Nothing is left over", "Objects of Drover are left over"],
  Continuous: ["The cluster’s state is continuous", "The cluster was restored from a backup"],
  RestoreConfirmed: ["Nothing is held back", "Changes are held back since the hub was restored"],
  LatestResolved: ["The version is known", "The version is not known"],
  Complete: ["Done in all clusters", "Not done in all clusters yet"],
  QuotaFits: ["The quota suffices for all namespaces", "The quota does not suffice for all namespaces"],
};

/** What to do about a reason of a Cluster. HubRestored is also a reason of other kinds. @type {Record<string, string>} */
const remedies = {
  TokenExpired: "The token was not used in time. A new command has a new token.",
  TokenUsed: "A revoked agent has used your token. Put a new one into your Secret.",
  TokenInvalid: "Correct the Secret in spec.registration.tokenSecretRef. A token has at least 32 characters.",
  TunnelLost: "If the agent stays away, look at its pods, and at the network between the cluster and this hub. In the cluster:",
  ApiServerUnhealthy: "Look at the logs of the cluster’s API server and etcd.",
  AlreadyImported: "Delete this Cluster, or release the other one (docs/operations/moving.md).",
  AgentRolledBack: "The new agent did not become ready. Change spec.agent and look at the agent’s events.",
  AgentNotReady: "Look at the pods of the agent.",
  AgentProfileDiffers: "The agent was installed with another profile. Apply the manifest in its registration Secret again.",
  AgentUnmanaged: "To let Drover update the agent, apply the manifest in its registration Secret again.",
  ConnectedByNodeAgent: "Only a node agent is connected, and nothing is delivered. In the cluster:",
  NoLeader: "Check the agent’s pods and its Lease.",
  StillInForce: "Remove the objects that the message names.",
  HubRestored: "Review the changes that are held back, then confirm them.",
};

/** @type {Record<string, string>} */
const commands = {
  AgentNotReady: "kubectl -n drover-agent get pods", NoLeader: "kubectl -n drover-agent get pods,leases",
  TunnelLost: "kubectl -n drover-agent logs deployment/drover-agent --tail=50", AgentRolledBack: "kubectl -n drover-agent get events --sort-by=.lastTimestamp",
  HubRestored: "kubectl drover restored", ConnectedByNodeAgent: "kubectl -n drover-agent get deployment,pods",
};

/**
 * Returns the conditions of an object in people's words, problems first. ready says what Ready means, if it is no Cluster.
 * The conditions of other kinds are False while Drover is at work: they are broken only with the reason of Stalled, or
 * while changes are held back.
 * @param {any} object @param {[string, string]} [ready]
 */
export function explained(object, ready) {
  /** @type {Condition[]} */
  const conditions = object.status?.conditions ?? [];
  const stalled = conditions.find((c) => c.type === "Stalled" && wrong(c))?.reason;
  const broken = (/** @type {Condition} */ c) => (ready ? c.reason === stalled || c.type === "RestoreConfirmed" : c.status !== "Unknown" && !waiting.has(c.reason));
  // Ready repeats the reason of another condition, so it would say the same twice.
  const told = new Set(conditions.filter((c) => c.type !== "Ready" && wrong(c)).map((c) => c.reason));
  const order = { broken: 0, waiting: 1, ended: 2, working: 3 };
  return conditions.filter((c) => c.type !== "Ready" || !wrong(c) || !told.has(c.reason)).map((c) => {
    const bad = wrong(c);
    const [good, not] = c.type === "Ready" ? ready ?? titles.Ready : own(titles, c.status === "Unknown" ? c.reason : c.type) ?? own(titles, c.type) ?? [words(c.type), `${words(c.type)}: not yet`];
    const name = /** @type {StateName | "ended"} */ (!bad ? (c.reason === "Expired" ? "ended" : "working") : broken(c) ? "broken" : "waiting");
    const helps = ready ? bad && c.reason === "HubRestored" : bad || (c.type === "Connected" && c.reason === "ConnectedByNodeAgent");
    return { type: c.type, name, title: bad ? not : good, reason: c.reason, message: c.message, since: c.lastTransitionTime, remedy: helps ? own(remedies, c.reason) ?? "" : "", command: helps ? own(commands, c.reason) ?? "" : "" };
  }).sort((a, b) => order[a.name] - order[b.name] || a.type.localeCompare(b.type));
}
