// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Keys: Ctrl/⌘-K, /, ?, and g followed by a view's letter.

import { html } from "../lib/html.js";
import { openDialog } from "../ui/dialog.js";
import { commands } from "./commands.js";
import { openPalette } from "./palette.js";

function Help() {
  const keys = [["Ctrl K or ⌘ K", "Search commands, clusters and plans"], ["/", "Search in this view"], ["?", "Show this help"], ["Esc", "Close a dialog or menu"],
    ...commands.value.filter((c) => c.keys).map((c) => [/** @type {string} */ (c.keys), c.title])];
  return html`<div class="dialog-body"><dl class="keys">${keys.map(([key, text]) => html`<div><dt>${key.split(" ").map((k) => (k === "or" ? " or " : html`<kbd>${k}</kbd>`))}</dt><dd>${text}</dd></div>`)}</dl></div>`;
}

export const help = () => openDialog("Keyboard", Help);

let pending = 0; // when g was pressed

/** @param {KeyboardEvent} event */
function keydown(event) {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    if (!document.querySelector("dialog[open]")) openPalette();
    return;
  }
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input,textarea,select,dialog[open]")) return;
  const after = performance.now() - pending < 1500;
  pending = event.key === "g" ? performance.now() : 0;
  const command = after && commands.value.find((c) => c.keys === `g ${event.key}`);
  if (command) {
    command.run();
  } else if (event.key === "/") {
    const search = /** @type {HTMLInputElement | null} */ (document.querySelector("main .search"));
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === "?") {
    help();
  }
}

/** Listens to keys as long as the user is signed in. */
export const listen = () => addEventListener("keydown", keydown);
