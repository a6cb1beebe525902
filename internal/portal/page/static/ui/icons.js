// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Icons, as elements. They are drawn on a grid of 16 with lines of 1.5, in the color of the text, and are decoration:
// the text beside an icon says what it means.

import { html } from "../lib/html.js";

/** @type {Record<string, string>} */
const paths = {
  overview: "M2.5 2.5h4.5v6h-4.5zM9 2.5h4.5v3.5h-4.5zM9 8.5h4.5v5h-4.5zM2.5 11h4.5v2.5h-4.5z",
  clusters: "M8 1.8l5.5 3.1v6.2l-5.5 3.1l-5.5-3.1v-6.2zM2.7 5l5.3 3l5.3-3M8 8v6",
  projects: "M2 4.5v8h12v-6.5h-6l-1.5-2h-4.5z",
  access: "M5.2 8.2a2.7 2.7 0 1 1 .1 0M7.2 7.5l6.3 6M11 11l1.6-1.6",
  baselines: "M2.5 13.5h11M3.5 10.5h9M5 7.5h6M8 2.5v2.5M6.5 3.5l1.5 1.5l1.5-1.5",
  plans: "M2.5 4h6M2.5 8h11M2.5 12h8M11 2.5v3M6 6.5v3",
  hosts: "M2.5 2.5h11v4.5h-11zM2.5 9h11v4.5h-11zM5 4.75h.01M5 11.25h.01",
  account: "M8 8a2.75 2.75 0 1 0 0-5.5a2.75 2.75 0 0 0 0 5.5M2.8 13.7c.6-2.6 2.6-3.9 5.2-3.9s4.6 1.3 5.2 3.9",
  search: "M7 12a5 5 0 1 0 0-10a5 5 0 0 0 0 10M10.7 10.7l3.3 3.3",
  plus: "M8 3v10M3 8h10",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5h8v8h-8zM3.5 10.5h-1v-8h8v1",
  check: "M3 8.5l3.2 3.2l6.8-7.2",
  chevron: "M6 4l4 4l-4 4",
  down: "M4 6l4 4l4-4",
  sort: "M8 3v10M4.5 6.5l3.5-3.5l3.5 3.5",
  menu: "M2.5 4h11M2.5 8h11M2.5 12h11",
  table: "M2.5 3h11v10h-11zM2.5 6.5h11M6.5 6.5v6.5",
  tiles: "M2.5 2.5h4.5v4.5h-4.5zM9 2.5h4.5v4.5h-4.5zM2.5 9h4.5v4.5h-4.5zM9 9h4.5v4.5h-4.5z",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  trash: "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9M6.8 7v4M9.2 7v4",
  terminal: "M2 3h12v10h-12zM4.5 6l2 2l-2 2M8 10h3",
  warning: "M8 2l6.5 11.5h-13zM8 6.5v3.2M8 11.6h.01",
  offline: "M2 2l12 12M3 7.2a7.5 7.5 0 0 1 2.4-1.6M7.5 4.9a7.4 7.4 0 0 1 5.5 2.3M5.4 9.6a4 4 0 0 1 2.9-1M8 12.3h.01",
  clock: "M8 14a6 6 0 1 0 0-12a6 6 0 0 0 0 12M8 4.7v3.5l2.3 1.4",
  tag: "M2.5 2.5h5l6 6l-5 5l-6-6zM5.2 5.2h.01",
  help: "M8 14a6 6 0 1 0 0-12a6 6 0 0 0 0 12M6.3 6.2c.2-1 .9-1.4 1.7-1.4c1 0 1.7.6 1.7 1.5c0 1.3-1.7 1.3-1.7 2.7M8 11.2h.01",
  out: "M6.5 2.5h-4v11h4M10 5l3 3l-3 3M13 8h-7",
  download: "M8 2.5v8M4.8 7.5l3.2 3.2l3.2-3.2M2.5 13.5h11",
  again: "M13 8a5 5 0 1 1-1.5-3.6M13 2.3v2.7h-2.7",
  code: "M5.5 4.5l-3.5 3.5l3.5 3.5M10.5 4.5l3.5 3.5l-3.5 3.5",
  pause: "M5.5 3.5v9M10.5 3.5v9", play: "M5 3l8 5l-8 5z",
};

/** @param {{ name: keyof typeof paths | string, size?: number }} props */
export const Icon = ({ name, size = 16 }) => html`<svg class="icon" width=${size} height=${size} viewBox="0 0 16 16" aria-hidden="true" focusable="false"><path d=${paths[name]} /></svg>`;

/** The logo: three members that are tied to one hub. */
export const Logo = () => html`<svg class="logo" width="24" height="24" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" />
  <path d="M7 22.5c3.2 0 4.6-2 6-4.6M25 22.5c-3.2 0-4.6-2-6-4.6M16 9.4V6" /><circle cx="16" cy="14" r="4.6" /><g><circle cx="16" cy="14" r="1.5" /><circle cx="6" cy="23" r="2.1" /><circle cx="26" cy="23" r="2.1" /><circle cx="16" cy="5.4" r="2.1" /></g></svg>`;

/**
 * The form of a state: a full disc with a check works, a broken ring waits, a diamond with a mark is broken, a dash has
 * ended.
 * @param {{ name: string }} props
 */
export const Mark = ({ name }) => html`<svg class=${"mark " + name} width="14" height="14" viewBox="0 0 14 14" aria-hidden="true" focusable="false">
  ${name === "working" ? html`<circle cx="7" cy="7" r="6" class="fill" /><path d="M4.2 7.2l2 2l3.6-4.2" class="cut" />`
    : name === "broken" ? html`<path d="M7 .4l6.6 6.6l-6.6 6.6l-6.6-6.6z" class="fill" /><path d="M7 3.8v3.8M7 9.9v.1" class="cut" />`
    : name === "ended" ? html`<path d="M2 7h10" class="dash" />`
    : html`<circle cx="7" cy="7" r="5.2" class="ring" />`}</svg>`;
