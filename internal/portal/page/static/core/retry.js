// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Pausing and resuming a Plan, and trying its failed nodes again, as kubectl drover plan does it.

import { Refusal, drover, get, merge } from "./api.js";
import { condition } from "./states.js";

const limit = 30_000; // milliseconds until members have to have paused
const look = 500; // milliseconds between two looks at the Plan
const listed = 20; // members in the status of a Plan

/** @param {any} plan */
const refOf = ({ metadata: { namespace, name } }) => ({ ...drover, resource: "plans", namespace, name });

/** Pauses or resumes a Plan or Baseline. @param {any} object @param {boolean} paused */
export const setPaused = (object, paused, resource = "plans") => merge({ ...refOf(object), resource }, { metadata: { uid: object.metadata.uid }, spec: { paused } });

/** Returns whether a Plan has nodes whose last attempt failed. @param {any} plan */
export const hasFailed = ({ status = {} }) => (status.failures?.length ?? 0) + (status.clusters?.failed ?? 0) + (status.nodes?.failed ?? 0) > 0;

// Changes spec.paused if check allows it. The status changes meanwhile, which is no conflict.
/** @param {any} plan @param {boolean | null} value @param {(now: any) => boolean} check */
async function change(plan, value, check) {
  for (let tries = 0; ; tries++) {
    const now = await read(plan);
    if (!check(now)) return { before: now, after: now };
    try {
      return { before: now, after: await merge(refOf(plan), { metadata: { resourceVersion: now.metadata.resourceVersion }, spec: { paused: value } }) };
    } catch (/** @type {any} */ problem) {
      if (problem.status !== 409 || tries >= 5) throw problem;
    }
  }
}

/** @param {any} plan */
async function read(plan) {
  const now = await get(refOf(plan));
  if (now.metadata.uid !== plan.metadata.uid) throw new Error("The Plan was deleted in the meantime.");
  return now;
}

// Waits until all members with failures have paused, and returns those that have not. It reads the Plan again and again,
// because the stream may be behind.
/** @param {any} plan @param {number} generation @returns {Promise<string[]>} */
async function pausedMembers(plan, generation) {
  const { failures = [], members = [] } = plan.status ?? {};
  const failed = new Set([...failures.map((/** @type {any} */ f) => f.cluster), ...members.filter((/** @type {any} */ m) => m.reason === "NodeFailed").map((/** @type {any} */ m) => m.name)]);
  let left = ["Drover has not looked at the Plan yet"];
  for (const end = Date.now() + limit; Date.now() < end; await new Promise((next) => setTimeout(next, look))) {
    const now = await read(plan);
    if (!now.spec.paused) throw new Refusal("Someone else has resumed the Plan before its members had paused.", 0, "If a GitOps tool owns spec.paused, set it to true in its source and back again. Otherwise, try again.");
    if ((now.status?.observedGeneration ?? 0) < generation) continue;
    const open = unpaused(now, failed);
    left = open.map(({ text }) => text);
    if (open.every(({ away }) => away)) break;
  }
  return left;
}

/** The members that keep their failure, and whether they are away. @param {any} plan @param {Set<string>} failed @returns {{ text: string, away: boolean }[]} */
function unpaused(plan, failed) {
  const { clusters, members = [] } = plan.status;
  const complete = condition(plan, "Complete");
  if (!clusters) return complete?.reason === "Paused" ? [] : [{ text: complete?.message ?? "Drover has not looked at the Plan yet", away: false }];
  const open = members.filter((/** @type {any} */ m) => m.reason !== "Paused" && (m.reason === "NodeFailed" || failed.has(m.name)))
    .map((/** @type {any} */ m) => ({ text: `${m.name}: ${m.message || m.reason}`, away: m.reason === "MembersAway" }));
  return clusters.failed > listed ? [...open, { text: `${clusters.failed - listed} more`, away: false }] : open;
}

/**
 * Tries failed nodes again: pauses the Plan until members with failures have paused, and resumes it. Returns the members
 * that keep their failure.
 * @param {any} plan @returns {Promise<string[]>}
 */
export async function retry(plan) {
  const { before, after } = await change(plan, true, (now) => {
    if (now.spec.paused) throw new Error("The Plan is paused. Resume it, which also tries failed nodes again.");
    return true;
  });
  const { generation } = after.metadata;
  let left = /** @type {string[]} */ ([]);
  try {
    left = await pausedMembers(before, generation);
  } finally {
    await change(plan, before.spec.paused === false ? false : null, (now) => {
      if (now.spec.paused && now.metadata.generation !== generation) throw new Error("Someone else has changed the Plan meanwhile.");
      return now.spec.paused;
    }).catch((/** @type {any} */ problem) => { throw new Refusal(problem.message, problem.status ?? 0, "The Plan may still be paused. If it is, resume it."); });
  }
  return left;
}
