// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view for a user who is not signed in.

import { html, useState } from "../lib/html.js";
import { signIn } from "../core/session.js";
import { Field } from "../ui/form.js";
import { Icon, Logo } from "../ui/icons.js";
import { Problem } from "../ui/parts.js";

/** @param {{ issuer: any, problem?: any, retry?: () => void, onToken: (token: string) => void }} props */
export function SignIn({ issuer, problem, retry, onToken }) {
  const [token, setToken] = useState("");
  const canSignIn = Boolean(issuer?.authorization_endpoint);
  const form = html`<form method="dialog" onSubmit=${(/** @type {Event} */ e) => { e.preventDefault(); onToken(token.trim()); }}>
    <${Field} label="Token, forgotten when this page is closed or reloaded" type="password" required value=${token} onInput=${(/** @type {any} */ e) => setToken(e.target.value)} />
    <p><button class=${canSignIn ? "wide" : "primary wide"}>Use this token</button></p></form>`;
  return html`<main class="sign-in"><div class="sign-in-card">
    <${Logo} /><h1 tabindex="-1">Sign in to Drover</h1><p class="soft">${location.host}</p>
    ${problem && html`<${Problem} error=${problem} retry=${retry} />`}
    ${canSignIn && html`<p><button type="button" class="primary wide" autofocus onClick=${() => signIn(issuer)}>Sign in to the hub</button></p>`}
    ${issuer?.elsewhere && html`<p>Users sign in at <a href=${issuer.elsewhere + "/ui/"} rel="noreferrer">${issuer.elsewhere}/ui/</a>.</p>`}
    ${canSignIn ? html`<details class="fold"><summary><${Icon} name="chevron" />Use a token instead</summary>${form}</details>` : form}</div></main>`;
}
