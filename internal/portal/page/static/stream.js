// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The stream of changes at /v1/subscribe. `all` has the received objects, by kind and by namespace/name.

import { kinds } from "./kinds.js";
import { base64url } from "./session.js";

export const all = Object.fromEntries(kinds.map((kind) => [kind, new Map()]));

const longest = 30_000; // maximum milliseconds between two attempts

/** Returns the key of an object. */
export const keyOf = (object) => `${object.metadata.namespace}/${object.metadata.name}`;

/**
 * Follows the stream for as long as the page is open.
 * token returns one, or throws when the user has to sign in; changed is told which objects have changed, once for each frame; said gets what to say of the connection;
 * managed is told whether a manager leads, as far as the user may know.
 */
export function follow({ token, changed, said, managed, lost }) {
  let resume = "";
  let tries = 0;
  let dirty = new Map();
  let planned = false;

  const note = (kind, key) => {
    if (!dirty.has(kind)) dirty.set(kind, new Set());
    dirty.get(kind).add(key);
    if (planned) return;
    planned = true;
    requestAnimationFrame(() => {
      planned = false;
      const now = dirty;
      dirty = new Map();
      changed(now);
    });
  };

  const take = (message) => {
    const known = all[message.kind];
    switch (message.type) {
      case "RESET":
        for (const key of known.keys()) note(message.kind, key);
        known.clear();
        note(message.kind, "");
        break;
      case "CHANGED":
        message.object.partial = message.partial; // the user can reach the Cluster, but may not watch it
        known.set(keyOf(message.object), message.object);
        note(message.kind, keyOf(message.object));
        break;
      case "DELETED":
        known.delete(keyOf(message.object));
        note(message.kind, keyOf(message.object));
        break;
      case "BOOKMARK":
        resume = message.resume;
        tries = 0;
        managed(!message.unmanaged);
        said(message.incomplete ? `Live. You may see more of: ${message.incomplete.join(", ")}.` : "Live.");
    }
  };

  const connect = async () => {
    let bearer;
    try {
      bearer = await token();
    } catch (problem) {
      lost(problem);
      return;
    }
    const query = new URLSearchParams(kinds.map((kind) => ["kind", kind]));
    if (resume) query.set("resume", resume);
    const socket = new WebSocket(`wss://${location.host}/v1/subscribe?${query}`, ["v1.subscribe.drover.dev", "base64url.bearer.authorization.k8s.io." + base64url(bearer)]);
    socket.onmessage = (event) => take(JSON.parse(event.data));
    socket.onclose = (event) => {
      const wait = Math.min(longest, 250 * 2 ** Math.min(tries++, 10)) * (0.5 + Math.random() / 2);
      if (event.code === 4401 && tries > 2) {
        lost(new Error(event.reason));
        return;
      }
      said(`Not connected${event.reason ? ": " + event.reason : ""}. Trying again.`);
      setTimeout(connect, wait);
    };
  };
  said("Connecting.");
  connect();
}
