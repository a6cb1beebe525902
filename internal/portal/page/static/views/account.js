// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The account of the user: the names that bindings use. A first version.

import { html } from "../lib/html.js";
import { me } from "../core/user.js";
import { Card, Command, CopyField, Facts, Heading } from "../ui/parts.js";

export const Account = () => html`<div class="view narrow"><${Heading} title="Account" />
  <${Card} title="You"><${Facts} pairs=${[["Name in bindings", html`<${CopyField} text=${me.value.username} what="Name" />`],
    ["Groups", me.value.groups && html`<ul class="plain">${me.value.groups.slice(0, 100).map((group) => html`<li><code>${group}</code></li>`)}</ul>`]]} /></${Card}>
  <${Card} title="Tokens for scripts"><p>A token that lasts for a limited time, and that you can revoke:</p><${Command} text="kubectl drover token create --description NAME --ttl 24h" /></${Card}></div>`;
