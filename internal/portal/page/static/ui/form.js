// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Fields of forms, with label and help.

import { html, useId } from "../lib/html.js";

/**
 * A field. Other properties go to the input, for example value, onInput, required and pattern. In a new
 * dialog, the field with data-focus gets the focus.
 * @param {any} props
 */
export function Field({ label, help, options, list, ...input }) {
  const id = useId();
  const about = help ? id + "-about" : undefined;
  const common = { id, "aria-describedby": about, autocomplete: "off", spellcheck: false, ...input };
  return html`<div class="field"><label for=${id}>${label}</label>
    ${options ? html`<select ...${common}>${options.map((/** @type {any} */ o) => html`<option value=${o.value ?? o} selected=${(o.value ?? o) === input.value}>${o.label ?? o}</option>`)}</select>`
      : html`<input ...${common} list=${list ? id + "-list" : undefined} />`}
    ${list && html`<datalist id=${id + "-list"}>${list.slice(0, 1000).map((/** @type {string} */ value) => html`<option value=${value} />`)}</datalist>`}
    ${about && html`<p class="field-help" id=${about}>${help}</p>`}</div>`;
}

/** A search that filters as the user types. "/" moves the focus to it. @param {{ label: string, value: string, placeholder?: string, onInput: (value: string) => void }} props */
export function Search({ label, value, placeholder, onInput }) {
  return html`<input type="search" class="search" aria-label=${label} placeholder=${placeholder ?? label} title="Press / to search" autocomplete="off" spellcheck=${false} value=${value} onInput=${(/** @type {any} */ e) => onInput(e.target.value)} />`;
}

/** The pattern and length of names of Kubernetes objects. */
export const nameRules = { required: true, maxlength: 63, pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", title: "lower-case letters, digits and dashes" };
