// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Pausing and resuming a Plan, and trying its failed nodes again, as kubectl drover plan does it.

import { effect } from "../lib/html.js";
import { drover, get, merge } from "./api.js";
import { object } from "./store.js";

const limit = 30_000; // milliseconds until members have to have paused

/** @param {any} plan */
const refOf = ({ metadata: { namespace, name } }) => ({ ...drover, resource: "plans", namespace, name });

/** Pauses or resumes a Plan. @param {any} plan @param {boolean} paused */
export const setPaused = (plan, paused) => merge(refOf(plan), { metadata: { uid: plan.metadata.uid }, spec: { paused } });

/** Returns whether a Plan has nodes whose last attempt failed. @param {any} plan */
export const hasFailed = ({ status = {} }) => (status.failures?.length ?? 0) + (status.clusters?.failed ?? 0) + (status.nodes?.failed ?? 0) > 0;

// Changes spec.paused unless another user changes the spec. The status changes meanwhile, which is no conflict.
/** @param {any} plan @param {boolean | null} value @param {(now: any) => void} check */
async function change(plan, value, check) {
  for (let tries = 0; ; tries++) {
    const now = await get(refOf(plan));
    if (now.metadata.uid !== plan.metadata.uid) throw new Error("The Plan was deleted in the meantime.");
    check(now);
    try {
      return { before: now, after: await merge(refOf(plan), { metadata: { resourceVersion: now.metadata.resourceVersion }, spec: { paused: value } }) };
    } catch (/** @type {any} */ problem) {
      if (problem.status !== 409 || tries >= 5) throw problem;
    }
  }
}

// Waits until all members with failures have paused, and returns those that have not.
/** @param {any} plan @param {number} generation @returns {Promise<string[]>} */
function pausedMembers(plan, generation) {
  const key = `${plan.metadata.namespace}/${plan.metadata.name}`;
  const members = (/** @type {any} */ p) => p?.status?.members ?? [];
  const failed = new Set([...(plan.status?.failures ?? []).map((/** @type {any} */ f) => f.cluster), ...members(plan).filter((/** @type {any} */ m) => m.reason === "NodeFailed").map((/** @type {any} */ m) => m.name)]);
  return new Promise((done) => {
    let left = ["Drover has not looked at the Plan yet"];
    let stop = () => {};
    const end = () => { clearTimeout(timer); queueMicrotask(() => stop()); done(left); };
    const timer = setTimeout(end, limit);
    stop = effect(() => {
      const now = object("plans", key);
      if (!now || (now.status?.observedGeneration ?? 0) < generation) return;
      const open = members(now).filter((/** @type {any} */ m) => m.reason !== "Paused" && (m.reason === "NodeFailed" || failed.has(m.name)));
      left = open.map((/** @type {any} */ m) => `${m.name}: ${m.message || m.reason}`);
      if (open.every((/** @type {any} */ m) => m.reason === "MembersAway") && (now.status?.clusters?.failed ?? 0) - 20 <= 0) end();
    });
  });
}

/**
 * Tries failed nodes again: pauses the Plan until members with failures have paused, and resumes it. Returns the members
 * that keep their failure.
 * @param {any} plan @returns {Promise<string[]>}
 */
export async function retry(plan) {
  const { before, after } = await change(plan, true, (now) => {
    if (now.spec.paused) throw new Error("The Plan is paused. Resume it, which also tries failed nodes again.");
  });
  const { generation } = after.metadata;
  let left = /** @type {string[]} */ ([]);
  try {
    left = await pausedMembers(plan, generation);
  } finally {
    await change(plan, before.spec.paused === false ? false : null, (now) => {
      if (now.metadata.generation !== generation) throw new Error("Someone else has changed the Plan meanwhile, so it was left as it is. If it is paused, resume it.");
    });
  }
  return left;
}
