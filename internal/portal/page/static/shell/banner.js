// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// What must not be overlooked: a connection that is lost, and a hub that no manager watches.

import { html, signal, useEffect } from "../lib/html.js";
import { exact } from "../lib/time.js";
import { connection, reconnect } from "../core/stream.js";
import { held } from "../core/store.js";
import { Icon } from "../ui/icons.js";
import { commands } from "./commands.js";

const late = signal(false); // a cut of less than two seconds is not worth a banner

export function Banner() {
  const { state, since, unmanaged, reason, refused } = connection.value;
  useEffect(() => {
    late.value = false;
    const timer = state === "lost" ? setTimeout(() => { late.value = true; }, Math.max(0, since + 2000 - Date.now())) : undefined;
    return () => clearTimeout(timer);
  }, [state, since]);
  const lost = state === "lost" && late.value;
  return html`<div role="alert" class=${lost ? "banner broken" : unmanaged ? "banner waiting" : "banner none"}>
    ${lost ? html`<${Icon} name="offline" /><span><b>Not connected.</b> This page shows the fleet as it was at ${exact(since)}${reason ? ` (${reason})` : ""}. Trying again.</span><button type="button" onClick=${() => reconnect()}>Try now</button>${refused && html`<button type="button" onClick=${() => commands.value.find((c) => c.id === "sign-out")?.run()}>Sign in again</button>`}`
      : unmanaged ? html`<${Icon} name="warning" /><span>No manager leads: no one watches the fleet, and the states on this page are out of date.</span>` : null}</div>`;
}

/** The connection in a word, in the header. */
export function Live() {
  const { state, incomplete } = connection.value;
  if (held.value > 0) return html`<span class="live waiting" role="status" title="Clear the selection to continue"><i></i>Paused while text is selected</span>`;
  const word = state === "live" ? "Live" : state === "lost" ? "Not connected" : "Connecting";
  return html`<span class=${"live " + (state === "live" ? "working" : "waiting")} role="status" title=${incomplete.length > 0 ? `The hub does not send everything that you may see of: ${incomplete.join(", ")}` : undefined}><i></i>${word}${incomplete.length > 0 ? " (incomplete)" : ""}</span>`;
}
