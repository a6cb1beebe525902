// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// What the user may do, as reviews by the API server. Answers are kept for a minute.

import { signal } from "../lib/html.js";
import { review } from "./api.js";

/** @typedef {import("./api.js").Attributes} Attributes */

const fresh = 60_000;
const most = 500;

/** @type {Map<string, { at: number, answer: import("../third_party/signals.js").Signal<boolean | undefined> }>} */
const known = new Map();

/** Forgets all answers, for example after the user's rights have changed. */
export const forget = () => known.clear();

/**
 * Returns whether the user may do something: true, false, or undefined until it is known. Components that call it
 * render again when the answer arrives. An error counts as true: the API server decides in any case, and its refusal
 * says more than a missing button.
 * @param {Attributes} attributes @param {string} [member]
 * @returns {boolean | undefined}
 */
export function may(attributes, member = "") {
  const full = { group: "cluster.drover.dev", ...attributes };
  const key = member + " " + JSON.stringify(Object.entries(full).sort());
  let entry = known.get(key);
  if (!entry || entry.at < Date.now() - fresh) {
    if (known.size >= most) known.clear();
    const answer = entry?.answer ?? signal(/** @type {boolean | undefined} */ (undefined));
    entry = { at: Date.now(), answer };
    known.set(key, entry);
    review(member, full).then((status) => { answer.value = status.allowed === true; }, () => { answer.value = true; });
  }
  return entry.answer.value;
}
