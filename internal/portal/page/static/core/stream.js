// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The stream of changes at /v1/subscribe. It feeds the store, and tells how the connection is.

import { signal } from "../lib/html.js";
import { parse } from "../lib/text.js";
import { kinds } from "./kinds.js";
import { forget } from "./rights.js";
import { SignedOut, base64url, expire } from "./session.js";
import { condition } from "./states.js";
import { caughtUp, keyOf, objects, put, reset } from "./store.js";
import { me } from "./user.js";

const longest = 30_000; // maximum milliseconds between two attempts
const patience = 3; // how many new tokens the hub refuses in a row before the user can sign in again

/**
 * The connection: its state, since when it is lost, the reason, whether the hub keeps refusing the session, kinds of
 * which the user may see more, and whether no manager leads.
 * @type {import("../third_party/signals.js").Signal<{ state: "connecting" | "live" | "lost", since: number, reason: string, refused: boolean, incomplete: string[], unmanaged: boolean }>}
 */
export const connection = signal({ state: "connecting", since: Date.now(), reason: "", refused: false, incomplete: [], unmanaged: false });

/** @param {Partial<typeof connection.value>} change */
const say = (change) => { connection.value = { ...connection.value, ...change }; };

let retry = () => {};

/** Tries to connect now. */
export const reconnect = () => retry();

const phase = (/** @type {any} */ binding) => `${binding.metadata.generation} ${condition(binding, "Ready")?.reason}`;

/**
 * Returns whether a message shows that the user's rights change. A binding of the user that they may not watch adds a
 * partial Cluster or removes it.
 * @param {any} message
 */
function changesRights({ type, kind, object, partial }) {
  const binding = kind.endsWith("roletemplatebindings");
  if (!binding && kind !== "clusters") return false;
  const before = objects(kind).get(keyOf(object));
  const changed = type === "DELETED" ? Boolean(before) : !before || (binding && phase(before) !== phase(object));
  if (!binding) return changed && Boolean(partial || before?.partial);
  const subject = (before ?? object).spec?.subject;
  return changed && (subject?.kind === "Group" ? Boolean(me.value.groups?.includes(subject.name)) : subject?.name === me.value.username);
}

/**
 * Follows the stream until the user has to sign in again. Then it calls lost. In an outage, it tries again.
 * @param {{ token: () => Promise<string>, lost: (problem: Error) => void }} options
 */
export function follow({ token, lost }) {
  let resume = "";
  let tries = 0;
  let refusals = 0; // tokens that the hub has refused since the last bookmark
  let changed = false; // whether the user's rights have changed since the last bookmark
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;

  /** @param {any} message */
  const take = (message) => {
    switch (message.type) {
      case "RESET":
        reset(message.kind);
        changed = true;
        break;
      case "CHANGED":
      case "DELETED":
        changed ||= changesRights(message);
        put(message);
        break;
      case "BOOKMARK": {
        resume = message.resume;
        tries = refusals = 0;
        caughtUp();
        if (changed) forget();
        changed = false;
        const incomplete = message.incomplete ?? [];
        const now = connection.value;
        if (now.state !== "live" || now.unmanaged !== Boolean(message.unmanaged) || now.incomplete.join() !== incomplete.join()) {
          say({ state: "live", since: Date.now(), reason: "", refused: false, incomplete, unmanaged: Boolean(message.unmanaged) });
        }
      }
    }
  };

  /** @param {string} reason */
  const again = (reason) => {
    const was = connection.value;
    const refused = refusals >= patience;
    say({ state: "lost", since: was.state === "lost" ? was.since : Date.now(), reason: refused ? "the hub keeps refusing your session" : reason.slice(0, 200), refused });
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
      if (event.code === 4401) {
        refusals++;
        expire();
      }
      again(event.reason);
    };
  };
  connect();
}
