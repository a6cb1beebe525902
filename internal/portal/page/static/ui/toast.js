// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Short messages about what the user has done. What stays true belongs into the view, not here.

import { html, signal } from "../lib/html.js";
import { short } from "../lib/text.js";
import { Icon, Mark } from "./icons.js";

/** @type {import("../third_party/signals.js").Signal<{ id: number, text: string, name: string }[]>} */
const shown = signal([]);
let last = 0;

/** Says something for six seconds; problems stay until they are closed. @param {string} text @param {"working" | "broken"} [name] */
export function toast(text, name = "working") {
  const id = ++last;
  shown.value = [...shown.value.slice(-3), { id, text: short(text, 400), name }];
  if (name === "working") setTimeout(() => close(id), 6000);
}

/** @param {number} id */
const close = (id) => { shown.value = shown.value.filter((each) => each.id !== id); };

export const Toasts = () => html`<div class="toasts" aria-live="polite" role="status">${shown.value.map(({ id, text, name }) => html`
  <div class=${"toast " + name} key=${id}><${Mark} name=${name} /><span>${text}</span><button type="button" class="icon-button" aria-label="Close" onClick=${() => close(id)}><${Icon} name="close" /></button></div>`)}</div>`;
