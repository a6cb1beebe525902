// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The commands of the palette. Views register theirs while they are shown.

import { signal, useEffect } from "../lib/html.js";
import { go, href } from "../core/router.js";

/** @typedef {{ id: string, title: string, icon?: string, keys?: string, run: () => void }} CommandEntry */

/** @type {import("../third_party/signals.js").Signal<CommandEntry[]>} */
export const commands = signal([]);

/** Adds commands. Returns a function that removes them. @param {CommandEntry[]} added */
export function register(added) {
  commands.value = [...commands.value.filter((each) => !added.some((one) => one.id === each.id)), ...added];
  return () => { commands.value = commands.value.filter((each) => !added.includes(each)); };
}

/** Registers commands while a component is shown. @param {CommandEntry[]} added @param {any[]} inputs */
export const useCommands = (added, inputs = []) => useEffect(() => register(added), inputs);

/** Registers a command that goes to a view. @param {{ id: string, title: string, icon: string, path: string[], key: string }} view */
export const viewCommand = ({ id, title, icon, path, key }) => ({ id: "go-" + id, title: `Go to ${title}`, icon, keys: `g ${key}`, run: () => go(href(path)) });
