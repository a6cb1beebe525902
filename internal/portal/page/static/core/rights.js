// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// What the user may do, as reviews by the API server. Answers are kept for a minute.

import { signal } from "../lib/html.js";
import { review } from "./api.js";

/** @typedef {import("./api.js").Attributes} Attributes */

const fresh = 60_000; // milliseconds for which an answer is kept
const most = 500; // answers that are kept

/** @type {Map<string, { at: number, answer: import("../third_party/signals.js").Signal<boolean | undefined> }>} */
const known = new Map();

/** Asks all questions again when they are needed, for example after the user's rights have changed. Until then, actions stay. */
export const forget = () => { for (const entry of known.values()) entry.at = 0; };

// Forgets old answers, and returns whether there were any.
function makeRoom() {
  for (const [key, { at }] of known) if (at < Date.now() - fresh) known.delete(key);
  return known.size < most;
}

/**
 * Returns whether the user may do something: true, false, or undefined until it is known. Components that call it
 * render again when the answer arrives. An error counts as true: the API server decides in any case, and its refusal
 * says more than a missing button. So does a question beyond the limit, which is not asked: if it replaced an answer that
 * is shown, the page would ask both again and again. A list of objects asks once for their namespace.
 * @param {Attributes} attributes @param {string} [member]
 * @returns {boolean | undefined}
 */
export function may(attributes, member = "") {
  const full = { group: "cluster.drover.dev", ...attributes };
  const key = member + " " + JSON.stringify(Object.entries(full).sort());
  let entry = known.get(key);
  if (!entry || entry.at < Date.now() - fresh) {
    if (!entry && known.size >= most && !makeRoom()) return true;
    const answer = entry?.answer ?? signal(/** @type {boolean | undefined} */ (undefined));
    const asked = { at: Date.now(), answer };
    const tell = (/** @type {boolean} */ allowed) => { if (known.get(key) === asked) answer.value = allowed; }; // not asked again since
    known.set(key, asked);
    review(member, full).then((status) => tell(status?.allowed === true), () => tell(true));
    return answer.value;
  }
  return entry.answer.value;
}
