// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// What the user may do, as reviews by the API server. Answers are kept for a minute.

import { signal } from "../lib/html.js";
import { list, review } from "./api.js";
import { derived, loaded, objects } from "./store.js";

/** @typedef {import("./api.js").Attributes} Attributes */

const fresh = 60_000; // milliseconds for which an answer is kept
const most = 500; // answers that are kept
const reach = 50; // workspaces that are asked one by one

/** @typedef {{ at: number, round: number, answer: import("../third_party/signals.js").Signal<boolean | undefined> }} Entry */

/** @type {Map<string, Entry>} */
const known = new Map();
const round = signal(0); // how often the user's rights have changed

/** Asks all questions that the page shows again, because the user's rights have changed. Until then, actions stay. */
export const forget = () => { round.value++; };

const old = (/** @type {Entry} */ entry) => entry.round !== round.peek() || entry.at < Date.now() - fresh;

// Forgets old answers, and returns whether there were any.
function makeRoom() {
  for (const [key, entry] of known) if (old(entry)) known.delete(key);
  return known.size < most;
}

/**
 * Returns whether the user may do something: true, false, or undefined until it is known. Components that call it
 * render again when the answer arrives or the user's rights change. An error counts as true: the API server decides in any case, and its refusal
 * says more than a missing button. So does a question beyond the limit, which is not asked: if it replaced an answer that
 * is shown, the page would ask both again and again. A list of objects asks once for their namespace.
 * @param {Attributes} attributes @param {string} [member]
 * @returns {boolean | undefined}
 */
export function may(attributes, member = "") {
  const full = { group: "cluster.drover.dev", ...attributes };
  const key = member + " " + JSON.stringify(Object.entries(full).sort());
  const now = round.value;
  const entry = known.get(key);
  if (!entry || old(entry)) {
    if (!entry && known.size >= most && !makeRoom()) return true;
    const answer = entry?.answer ?? signal(/** @type {boolean | undefined} */ (undefined));
    const asked = { at: Date.now(), round: now, answer };
    const tell = (/** @type {boolean} */ allowed) => { if (known.get(key) === asked) answer.value = allowed; }; // not asked again since
    known.set(key, asked);
    review(member, full).then((status) => tell(status?.allowed === true), () => tell(true));
    return answer.value;
  }
  return entry.answer.value;
}

const spaces = derived(() => [...new Set(["clusters", "projects", "hosts"].flatMap((kind) => [...objects(kind).values()].map((o) => /** @type {string} */ (o.metadata.namespace))))].sort());

// The answer for all namespaces, and unless it allows it, the answers for workspaces.
/** @param {Attributes} attributes @returns {[boolean | undefined, (boolean | undefined)[]]} */
function ask(attributes) {
  const everywhere = may(attributes);
  return [everywhere, everywhere === false ? spaces.value.slice(0, reach).map((namespace) => may({ ...attributes, namespace })) : []];
}

/** Whether the user may do something in any workspace. @param {Attributes} attributes */
export const mayAnywhere = (attributes) => ask(attributes).flat().includes(true);

/** @type {Map<string, { namespaces: (string | undefined)[], cut: boolean }>} */
const found = new Map(); // what places() has returned, so that a list stays while a new workspace is asked

/**
 * Returns where the user may do something, or undefined until it is known. The only namespace is undefined if the user may
 * do it in all. Otherwise each workspace with an object that the user can see is asked, up to a limit; cut tells whether
 * there are more.
 * @param {Attributes} attributes
 * @returns {{ namespaces: (string | undefined)[], cut: boolean } | undefined}
 */
export function places(attributes) {
  const [everywhere, answers] = ask(attributes);
  const key = JSON.stringify(Object.entries(attributes).sort());
  if (everywhere === undefined || (!everywhere && !loaded.value) || answers.includes(undefined)) return found.get(key);
  const now = everywhere ? { namespaces: [undefined], cut: false } : { namespaces: spaces.value.filter((_, i) => answers[i]), cut: spaces.value.length > reach };
  found.set(key, now);
  return now;
}

/**
 * Lists objects in the namespaces that places() has returned. cut tells whether there are more than the answers contain.
 * @param {(string | undefined)[]} namespaces @param {import("./api.js").Ref} ref @param {Parameters<typeof list>[1]} options
 */
export async function listIn(namespaces, ref, options) {
  const answers = await Promise.all(namespaces.map((namespace) => list({ ...ref, namespace }, options)));
  return { items: answers.flatMap(({ items }) => items), cut: answers.some(({ metadata }) => metadata?.continue) };
}
