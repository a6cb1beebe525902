// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Dialogs. They are rendered beside the views, so a view that renders again, or that is left, does not touch them: an
// open dialog keeps its text, its focus and its place.

import { html, signal, useEffect, useId, useRef, useState } from "../lib/html.js";
import { Icon } from "./icons.js";
import { Problem } from "./parts.js";

/** @typedef {{ id: number, title: any, body: any, props: any, drawer: boolean, returnTo: Element | null }} Opened */

/** @type {import("../third_party/signals.js").Signal<Opened[]>} */
const open = signal([]);
let last = 0;

/**
 * Opens a dialog with a component as its body, which gets its properties and close().
 * @param {any} title @param {any} body @param {Record<string, any>} [props] @param {{ drawer?: boolean }} [options]
 */
export function openDialog(title, body, props = {}, { drawer = false } = {}) {
  open.value = [...open.value, { id: ++last, title, body, props, drawer, returnTo: document.activeElement }];
}

/**
 * Returns the focus to the element that had it, unless the user has already moved it after the dialog was closed.
 * @param {Opened} opened @param {Element} dialog
 */
function closed({ id, returnTo }, dialog) {
  const now = document.activeElement, lost = !now || now === document.body || dialog.contains(now);
  open.value = open.value.filter((each) => each.id !== id);
  if (lost && returnTo instanceof HTMLElement && returnTo.isConnected) returnTo.focus();
}

/** @param {{ opened: Opened }} props */
function Dialog({ opened }) {
  const ref = useRef(/** @type {any} */ (null));
  const id = useId();
  useEffect(() => {
    ref.current.showModal();
    // Browsers refuse the attribute autofocus in a page that has a focus, and complain.
    ref.current.querySelector("[data-focus]")?.focus();
  }, []);
  const close = () => ref.current?.close();
  return html`<dialog class=${opened.drawer ? "drawer" : ""} ref=${ref} aria-labelledby=${id} onClose=${() => closed(opened, ref.current)}>
    <div class="dialog-in"><header class="dialog-head"><h2 id=${id}>${opened.title}</h2><button type="button" class="icon-button" aria-label="Close" onClick=${close}><${Icon} name="close" /></button></header>
    <${opened.body} ...${opened.props} close=${close} /></div></dialog>`;
}

export const Dialogs = () => html`${open.value.map((opened) => html`<${Dialog} key=${opened.id} opened=${opened} />`)}`;

/** The buttons of a dialog. @param {{ children: any }} props */
export const DialogActions = ({ children }) => html`<footer class="dialog-actions">${children}</footer>`;

/** @param {any} props */
function ConfirmBody({ text, name, action, danger, run, close }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const id = useId();
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await run();
      close();
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  return html`<form onSubmit=${submit}><div class="dialog-body">${text}
    ${name && html`<label for=${id}>Type <b>${name}</b> to confirm</label><input id=${id} data-focus autocomplete="off" spellcheck=${false} value=${typed} onInput=${(/** @type {any} */ e) => setTyped(e.target.value)} />`}
    ${error && html`<${Problem} error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class=${danger ? "danger" : "primary"} disabled=${busy || (name && typed !== name)}>${busy ? "Working …" : action}</button></${DialogActions}></form>`;
}

/**
 * Asks before something is done. With name, the user has to type it, for actions that cannot be undone.
 * @param {{ title: string, text: any, action: string, run: () => Promise<any>, name?: string, danger?: boolean }} options
 */
export const confirm = ({ title, ...props }) => openDialog(title, ConfirmBody, props);
