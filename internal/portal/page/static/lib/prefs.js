// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Preferences of this browser: theme, density and columns. Nothing about the fleet or the user is stored.

import { effect, signal } from "./html.js";

const prefix = "drover.ui.";

/** @param {string} name */
function load(name) {
  try {
    return localStorage.getItem(prefix + name);
  } catch {
    return null; // storage is off
  }
}

/** Stores a preference. @param {string} name @param {string} value */
export function store(name, value) {
  try {
    localStorage.setItem(prefix + name, value);
  } catch {} // the preference lasts until the page is closed
}

/**
 * Returns a preference that is a list of words, or undefined.
 * @param {string} name
 */
export const list = (name) => load(name)?.split(",").filter(Boolean);

/** "system", "light" or "dark". */
export const theme = signal(load("theme") ?? "system");
/** "comfortable" or "compact". */
export const density = signal(load("density") ?? "comfortable");

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
  root.dataset.density = density.value;
  store("theme", theme.value);
  store("density", density.value);
});
