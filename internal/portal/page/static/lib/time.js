// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Times, which people read as an age, with the exact time on demand.

import { html, signal } from "./html.js";

/** The current time, in steps of ten seconds. Only <Time> reads it, so that nothing else renders as time passes. */
const now = signal(Date.now());
setInterval(() => { now.value = Date.now(); }, 10_000);

/** @type {[string, number][]} */
const units = [["y", 31_536_000], ["mo", 2_592_000], ["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/**
 * Returns an age such as "5 min", or "in 3 d" for a time in the future. Far times are dates.
 * @param {string | number} time
 */
function age(time, at = Date.now()) {
  const then = typeof time === "number" ? time : Date.parse(time);
  if (Number.isNaN(then) || then <= 0) return "";
  const seconds = Math.round((at - then) / 1000);
  const size = Math.abs(seconds);
  if (size > 63_072_000) return new Date(then).toISOString().slice(0, 10);
  if (seconds < 5 && seconds > -60) return "now"; // clocks differ
  const [unit, length] = units.find(([, each]) => size >= each) ?? ["s", 1];
  const text = `${Math.floor(size / length)} ${unit}`;
  return seconds < 0 ? `in ${text}` : text;
}

/** Returns a time in the zone of the browser: 2026-11-27 10:00:00. @param {number | string} time */
export function exact(time) {
  const at = new Date(time);
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map(two).join("-") + " " + [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(":");
}

const two = (/** @type {number} */ n) => String(n).padStart(2, "0");

/**
 * Shows a time as an age: <${Time} at=${object.metadata.creationTimestamp} ago />.
 * @param {{ at?: string, ago?: boolean }} props
 */
export function Time({ at, ago }) {
  void now.value;
  const text = at ? age(at) : "";
  if (!at || !text) return null;
  return html`<time datetime=${at} title=${exact(at)}>${text}${ago && /^\d+ /.test(text) ? " ago" : ""}</time>`;
}
