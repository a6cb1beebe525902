// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The objects of the stream. Changes are collected and announced at most once per frame, per kind and per object, so that
// a view renders only changed objects.

import { batch, computed, signal } from "../lib/html.js";
import { kinds } from "./kinds.js";

/** @typedef {any} KubeObject An object as the stream sends it; partial marks a Cluster that the user can only reach. */

/** @type {Record<string, Map<string, KubeObject>>} */
const all = Object.fromEntries(kinds.map((kind) => [kind, new Map()]));
const versions = Object.fromEntries(kinds.map((kind) => [kind, signal(0)]));
/** @type {Record<string, Map<string, import("../third_party/signals.js").Signal<KubeObject | undefined>>>} */
const cells = Object.fromEntries(kinds.map((kind) => [kind, new Map()]));

/** Whether the first state of all kinds is there. Until then, views show that they are loading. */
export const loaded = signal(false);
/** How many changes wait because the user is selecting text. */
export const held = signal(0);

/** Returns the key of an object: WORKSPACE/NAME, or NAME without a workspace. @param {KubeObject} object */
export const keyOf = ({ metadata }) => (metadata.namespace ? `${metadata.namespace}/${metadata.name}` : metadata.name);

/**
 * Returns the objects of a kind, by key. The caller renders again when any of them changes, and must not change the map.
 * @param {string} kind
 */
export function objects(kind) {
  void versions[kind].value;
  return all[kind];
}

/** Returns one object, or undefined. The caller renders again only when this object changes. @param {string} kind @param {string} key @returns {KubeObject | undefined} */
export function object(kind, key) {
  let cell = cells[kind].get(key);
  if (!cell) {
    cell = signal(all[kind].get(key));
    cells[kind].set(key, cell);
  }
  return cell.value;
}

/**
 * Returns a value that is computed from objects(), at most once per frame and only while something shows it.
 * @template T @param {() => T} compute
 */
export const derived = (compute) => computed(compute);

/** @type {Map<string, Set<string>>} */
let dirty = new Map();
let planned = false;
let last = 0;

/** @param {string} kind @param {string} key */
function note(kind, key) {
  let keys = dirty.get(kind);
  if (!keys) dirty.set(kind, keys = new Set());
  keys.add(key);
  if (!planned) plan();
}

// The first state arrives in many messages. Showing it in few steps is faster.
function plan() {
  planned = true;
  const wait = loaded.peek() ? 0 : Math.max(0, 250 - (performance.now() - last));
  if (wait > 0) setTimeout(() => requestAnimationFrame(flush), wait);
  else requestAnimationFrame(flush);
}

// A selection would be lost or move if the text around it changed, so changes wait until it is given up.
function selecting() {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.anchorNode && document.getElementById("app")?.contains(selection.anchorNode) &&
    !/^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName ?? ""));
}

document.addEventListener("selectionchange", () => { if (held.peek() && !planned && !selecting()) plan(); });

function flush() {
  planned = false;
  if (loaded.peek() && selecting()) {
    held.value = [...dirty.values()].reduce((n, keys) => n + keys.size, 0);
    return;
  }
  last = performance.now();
  const now = dirty;
  dirty = new Map();
  batch(() => {
    held.value = 0;
    for (const [kind, keys] of now) {
      for (const key of keys) {
        const cell = cells[kind].get(key);
        if (cell) cell.value = all[kind].get(key);
      }
      versions[kind].value++;
    }
    if (done) loaded.value = true;
  });
}

let done = false;

/** Notes that the hub has sent everything that it has. */
export function caughtUp() {
  if (done) return;
  done = true;
  last = 0;
  requestAnimationFrame(flush);
}

/** Forgets all objects of a kind. @param {string} kind */
export function reset(kind) {
  const known = all[kind];
  if (!known) return;
  for (const key of known.keys()) note(kind, key);
  known.clear();
  note(kind, "");
}

/** Takes a message of the stream. @param {{ type: string, kind: string, object: KubeObject, partial?: boolean }} message */
export function put(message) {
  const known = all[message.kind];
  if (!known) return;
  const key = keyOf(message.object);
  if (message.type === "DELETED") {
    known.delete(key);
  } else {
    if (message.partial) message.object.partial = true; // the user can reach the Cluster, but may not watch it
    known.set(key, message.object);
  }
  note(message.kind, key);
}
