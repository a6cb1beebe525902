// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The frame around all views: navigation, header, banner, dialogs and toasts.

import { classes, html, signal, useLayoutEffect, useRef } from "../lib/html.js";
import { density, theme } from "../lib/prefs.js";
import { href, match, route } from "../core/router.js";
import { Dialogs } from "../ui/dialog.js";
import { Icon, Logo } from "../ui/icons.js";
import { Empty, Heading, Menu, Segments } from "../ui/parts.js";
import { Toasts } from "../ui/toast.js";
import { Banner, Live } from "./banner.js";
import { help } from "./keys.js";
import { Palette, openPalette } from "./palette.js";

/** @typedef {{ path: string, title: string | ((params: Record<string, string>) => string), section: string, component: any }} View */
/** @typedef {{ id: string, title: string, icon: string, path: string[], key: string, badge?: () => any }} Section */

const menu = signal(false); // whether the navigation is open on narrow screens

const Unknown = () => html`<div class="view"><${Heading} title="There is no such view" /><${Empty} title="The address may be from another version.">
  <a href="#/">Go to the overview</a></${Empty}></div>`;

/** Returns the view of an address. @param {View[]} views @param {string[]} path */
function viewOf(views, path) {
  for (const view of views) {
    const params = match(view.path, path);
    if (params) return { view, params };
  }
  return { view: { path: "", title: "Not found", section: "", component: Unknown }, params: {} };
}

/** @param {{ sections: Section[], current: string }} props */
const Navigation = ({ sections, current }) => html`<nav id="nav" class=${classes("nav", menu.value && "open")} aria-label="Views">
  <ul>${sections.map(({ id, title, icon, path, badge }) => html`<li><a href=${href(path)} aria-current=${id === current ? "page" : undefined} onClick=${() => { menu.value = false; }}><${Icon} name=${icon} /><span>${title}</span>${badge?.()}</a></li>`)}</ul>
  <button type="button" class="nav-foot" onClick=${help}><${Icon} name="help" /><span>Keyboard</span><kbd>?</kbd></button></nav>`;

/** @param {{ user: string, onSignOut: () => void }} props */
const UserMenu = ({ user, onSignOut }) => html`<${Menu} class="user" label=${html`<span class="hidden">Account of </span><span class="avatar" aria-hidden="true">${(user.replace(/^[^:]*:/, "") || "?").charAt(0).toUpperCase()}</span><span class="user-name">${user}</span><${Icon} name="down" size=${12} />`}>
  <div class="menu-pad"><p class="menu-title">Theme</p><${Segments} label="Theme" value=${theme.value} options=${[{ value: "system", label: "System" }, { value: "light", label: "Light" }, { value: "dark", label: "Dark" }]} onChange=${(/** @type {string} */ v) => { theme.value = v; }} />
  <p class="menu-title">Density</p><${Segments} label="Density" value=${density.value} options=${[{ value: "comfortable", label: "Comfortable" }, { value: "compact", label: "Compact" }]} onChange=${(/** @type {string} */ v) => { density.value = v; }} /></div>
  <a class="menu-item" href="#/account"><${Icon} name="account" />Account and tokens</a>
  <button type="button" class="menu-item" onClick=${onSignOut}><${Icon} name="out" />Sign out</button></${Menu}>`;

/**
 * @param {{ views: View[], sections: Section[], user: string, onSignOut: () => void }} props
 */
export function Shell({ views, sections, user, onSignOut }) {
  const { path } = route.value;
  const { view, params } = viewOf(views, path);
  const title = typeof view.title === "function" ? view.title(params) : view.title;
  // Another tab of the same object is no navigation: the focus stays on the tab.
  const { tab, ...place } = params;
  const where = JSON.stringify([view.path, place]);
  const first = useRef(true);
  useLayoutEffect(() => { document.title = `${title} – Drover`; }, [title]);
  // The focus moves together with the new view. Later, it could be taken from an element that the user has chosen.
  useLayoutEffect(() => {
    menu.value = false;
    const main = /** @type {HTMLElement} */ (document.getElementById("main"));
    main.scrollTop = 0;
    if (!first.current) /** @type {HTMLElement} */ (main.querySelector("h1") ?? main).focus({ preventScroll: true });
    first.current = false;
  }, [where]);
  return html`<div class="shell">
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => { e.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
    <${Banner} />
    <header class="top">
      <button type="button" class="icon-button menu-button" aria-label="Navigation" aria-expanded=${String(menu.value)} aria-controls="nav" onClick=${() => { menu.value = !menu.value; }}><${Icon} name=${menu.value ? "close" : "menu"} /></button>
      <a class="brand" href="#/" aria-label="Drover, overview"><${Logo} /><span class="brand-name">Drover</span></a><span class="hub" title="The address of this hub">${location.host}</span>
      <button type="button" class="palette-button" onClick=${openPalette}><${Icon} name="search" /><span>Search or jump to</span><kbd>${/Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl"} K</kbd></button>
      <${Live} /><${UserMenu} user=${user} onSignOut=${onSignOut} />
    </header>
    <${Navigation} sections=${sections} current=${view.section} />
    <main id="main" tabindex="-1"><${view.component} key=${where} params=${params} /></main>
    <${Dialogs} /><${Palette} /><${Toasts} /></div>`;
}
