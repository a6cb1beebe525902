// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The stream of changes at /v1/subscribe. It feeds the store, and tells how the connection is.

import { signal } from "../lib/html.js";
import { parse } from "../lib/text.js";
import { kinds } from "./kinds.js";
import { forget } from "./rights.js";
import { SignedOut, base64url, expire } from "./session.js";
import { caughtUp, put, reset } from "./store.js";

const longest = 30_000; // maximum milliseconds between two attempts

/**
 * The connection: its state, since when it is lost, the reason, kinds of which the user may see more, and whether no
 * manager leads.
 * @type {import("../third_party/signals.js").Signal<{ state: "connecting" | "live" | "lost", since: number, reason: string, incomplete: string[], unmanaged: boolean }>}
 */
export const connection = signal({ state: "connecting", since: Date.now(), reason: "", incomplete: [], unmanaged: false });

/** @param {Partial<typeof connection.value>} change */
const say = (change) => { connection.value = { ...connection.value, ...change }; };

let retry = () => {};

/** Tries to connect now. */
export const reconnect = () => retry();

/**
 * Follows the stream until the user has to sign in again. Then it calls lost. In an outage, it tries again.
 * @param {{ token: () => Promise<string>, lost: (problem: Error) => void }} options
 */
export function follow({ token, lost }) {
  let resume = "";
  let tries = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {any} message */
  const take = (message) => {
    switch (message.type) {
      case "RESET":
        reset(message.kind);
        forget();
        break;
      case "CHANGED":
      case "DELETED":
        put(message);
        break;
      case "BOOKMARK": {
        resume = message.resume;
        tries = 0;
        caughtUp();
        const incomplete = message.incomplete ?? [];
        const now = connection.value;
        if (now.state !== "live" || now.unmanaged !== Boolean(message.unmanaged) || now.incomplete.join() !== incomplete.join()) {
          say({ state: "live", since: Date.now(), reason: "", incomplete, unmanaged: Boolean(message.unmanaged) });
        }
      }
    }
  };

  /** @param {string} reason */
  const again = (reason) => {
    const was = connection.value;
    say({ state: "lost", since: was.state === "lost" ? was.since : Date.now(), reason: reason.slice(0, 200) });
    timer = setTimeout(connect, Math.min(longest, 250 * 2 ** Math.min(tries++, 10)) * (0.5 + Math.random() / 2));
    retry = () => { clearTimeout(timer); retry = () => {}; connect(); };
  };

  const connect = async () => {
    clearTimeout(timer);
    let bearer;
    try {
      bearer = await token();
    } catch (/** @type {any} */ problem) {
      if (problem instanceof SignedOut) lost(problem);
      else again(problem.message);
      return;
    }
    const query = new URLSearchParams(kinds.map((kind) => ["kind", kind]));
    if (resume) query.set("resume", resume);
    const socket = new WebSocket(`wss://${location.host}/v1/subscribe?${query}`,
      ["v1.subscribe.drover.dev", "base64url.bearer.authorization.k8s.io." + base64url(bearer)]);
    socket.onmessage = (event) => take(parse(event.data));
    socket.onclose = (event) => {
      if (event.code === 4401) expire();
      again(event.reason);
    };
  };
  connect();
}
