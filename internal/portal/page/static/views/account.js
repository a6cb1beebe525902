// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The account of the user: the names that bindings use, sessions, tokens for scripts, and the approval of devices.

import { html, useState } from "../lib/html.js";
import { own, short } from "../lib/text.js";
import { Time, exact } from "../lib/time.js";
import { call } from "../core/api.js";
import { clusterRows } from "../core/select.js";
import { isPasted } from "../core/session.js";
import { me } from "../core/user.js";
import { commands, useCommands } from "../shell/commands.js";
import { DialogActions, confirm, openDialog } from "../ui/dialog.js";
import { Field } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Card, Command, CopyField, Facts, Heading, Loading, More, Note, Problem, useFetch } from "../ui/parts.js";
import { Rows } from "../ui/table.js";
import { toast } from "../ui/toast.js";

const tokens = "/v1/auth/tokens"; // the endpoints of kubectl drover token
const sessions = "/v1/auth/sessions"; // the endpoints of kubectl drover session
const device = "/v1/auth/device"; // where a person approves a device, by signing in

/** @typedef {{ id: string, description?: string, cluster?: string, created: string, expires: string, lastUsed?: string }} Token */

export function Account() {
  const groups = me.value.groups ?? [];
  return html`<div class="view narrow"><${Heading} title="Account" />
    <${Card} title="You"><${Facts} pairs=${[["Name in bindings", html`<${CopyField} text=${me.value.username} what="Name" />`],
      ["Groups", groups.length > 0 && html`<ul class="plain">${groups.slice(0, 100).map((group) => html`<li><code>${group}</code></li>`)}<${More} all=${groups.length} most=${100} /></ul>`]]} /></${Card}>
    <${Sessions} /><${Tokens} /><${Device} /></div>`;
}

/** @typedef {{ id: string, client: string, started: string, renewed?: string, expires: string, current?: boolean }} Session */

/** The names of clients. @type {Record<string, string>} */
const clients = { kubectl: "kubectl", page: "Hub’s page", device: "Device" };

function Sessions() {
  const pasted = isPasted();
  const { value, error, retry } = useFetch((signal) => call("GET", sessions, { signal }), []);
  const out = () => commands.value.find((c) => c.id === "sign-out")?.run();
  /** @type {Session[]} */
  const items = value?.items ?? [];
  return html`<${Card} title="Sessions" actions=${html`<button type="button" onClick=${out}><${Icon} name="out" />Sign out</button>`}>
    <p class="soft">${pasted ? "You have pasted a token. The page forgets it when it is closed or reloaded." : "Each sign-in starts a session. End sessions that you do not recognize or no longer use."}</p>
    ${error ? (error.status === 404 || error.status === 401 && pasted ? html`<${Note}>${error.status === 404 ? "Users cannot sign in to this hub." : "Sign in to this hub to see your sessions."}</${Note}>` : html`<${Problem} title="Your sessions cannot be listed." error=${error} retry=${retry} />`)
      : !value ? html`<${Loading} rows=${2} />`
      : html`<${Rows} label="Your sessions" head=${["Signed in with", "Started", "Renewed", "Ends", "Action"]} rows=${items.map((s) => [html`${own(clients, s.client) ?? short(s.client, 40)}${s.current && html` <span class="badge">This session</span>`}`,
        html`<${Time} at=${s.started} ago />`, s.renewed ? html`<${Time} at=${s.renewed} ago />` : "never", html`<${Time} at=${s.expires} />`,
        !s.current && html`<button type="button" class="link" aria-label=${`End the session of ${own(clients, s.client) ?? "a client"} from ${exact(s.started)}`} onClick=${() => askEnd(s, retry)}>End</button>`])} />`}</${Card}>`;
}

/** @param {Session} ended @param {() => void} done */
const askEnd = (ended, done) => confirm({
  title: "End this session?", action: "End the session", danger: true,
  text: html`<p>It was started with <b>${own(clients, ended.client) ?? "another client"}</b> on ${exact(ended.started)}. The hub rejects its tokens at once, for all clusters, and requests that are running end within 30 seconds. The client has to sign in again.</p>
    <p class="soft">Tokens for scripts stay valid. An API server that accepts the hub’s tokens itself may accept the session’s tokens for up to 10 minutes. A cluster with direct access that is not connected learns of it when it connects again.</p>`,
  run: async () => { await call("DELETE", `${sessions}/${encodeURIComponent(ended.id)}`); toast("The session has ended."); done(); },
});

function Tokens() {
  const { value, error, retry } = useFetch((signal) => call("GET", tokens, { signal }), []);
  const create = () => openDialog("Create a token for scripts", Create, { made: retry });
  useCommands(value ? [{ id: "token", title: "Create a token for scripts", icon: "plus", run: create }] : [], [Boolean(value)]);
  /** @type {Token[]} */
  const items = value?.items ?? [];
  return html`<${Card} title="Tokens for scripts" actions=${value && html`<button type="button" onClick=${create}><${Icon} name="plus" />Create a token</button>`}>
    <p class="soft">Whoever has such a token can act as you, in all clusters or in one, until it expires or you revoke it.</p>
    ${error ? (error.status === 403 || error.status === 404 ? html`<${Note}>${error.status === 404 ? "This hub issues no tokens for scripts." : short(error.message)}</${Note}>` : html`<${Problem} title="Your tokens cannot be listed." error=${error} retry=${retry} />`)
      : !value ? html`<${Loading} rows=${2} />` : items.length === 0 ? html`<p>You have no tokens.</p>`
      : html`<${Rows} label="Your tokens" head=${["Description", "For", "Last used", "Expires", "Action"]} rows=${items.map((t) => [html`${short(t.description, 256) || html`<span class="soft">none</span>`} <code class="soft">${t.id}</code>`, t.cluster ?? "all clusters",
        t.lastUsed ? html`<${Time} at=${t.lastUsed} ago />` : "never", html`<${Time} at=${t.expires} />`,
        html`<button type="button" class="link" aria-label=${`Revoke the token ${t.description || t.id}`} onClick=${() => askRevoke(t, retry)}>Revoke</button>`])} />`}</${Card}>`;
}

/** @param {Token} token @param {() => void} done */
const askRevoke = (token, done) => confirm({
  title: "Revoke this token?", action: "Revoke", danger: true, text: html`<p>Scripts that use <b>${short(token.description, 256) || token.id}</b> are rejected at once. This cannot be undone.</p>`,
  run: async () => { await call("DELETE", `${tokens}/${encodeURIComponent(token.id)}`); toast("The token is revoked."); done(); },
});

/** @param {{ made: () => void, close: () => void }} props */
function Create({ made, close }) {
  const [form, setForm] = useState({ description: "", cluster: "", ttl: "720h" });
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [token, setToken] = useState(/** @type {any} */ (null));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((was) => ({ ...was, [key]: value })); };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    setBusy(true);
    try {
      setToken(await call("POST", tokens, { body: Object.fromEntries(Object.entries(form).map(([key, value]) => [key, value.trim()]).filter(([, value]) => value)) }));
      made();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  if (token) return html`<div class="dialog-body"><${Note} name="waiting"><p><b>Copy the token now.</b> It is shown only once.</p></${Note}><${Command} text=${token.token} what="Token" />
    <${Facts} pairs=${[["For", token.cluster ?? "all clusters"], ["Expires", exact(token.expires)]]} /></div><${DialogActions}><button type="button" class="primary" onClick=${close}>Done</button></${DialogActions}>`;
  return html`<form onSubmit=${submit}><div class="dialog-body">
    <${Field} label="Description" value=${form.description} onInput=${set("description")} maxlength="256" data-focus required placeholder="nightly backup" />
    <${Field} label="Cluster (workspace/name)" value=${form.cluster} onInput=${set("cluster")} list=${clusterRows.value.map((r) => r.key)} pattern="[a-z0-9\\-]+/[a-z0-9.\\-]+" title="workspace/name" placeholder="empty for all clusters" help="A token for one cluster does less harm if it is stolen." />
    <${Field} label="Valid for" value=${form.ttl} onChange=${set("ttl")} options=${[["1h", "an hour"], ["24h", "a day"], ["168h", "7 days"], ["720h", "30 days"], ["2160h", "90 days"]].map(([value, label]) => ({ value, label }))} help="The hub may limit it." />
    ${error && html`<${Problem} title="The token was not created." error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${busy}>${busy ? "Creating …" : "Create"}</button></${DialogActions}></form>`;
}

function Device() {
  const [code, setCode] = useState("");
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    location.assign(`${device}?${new URLSearchParams({ user_code: code.trim() })}`);
  };
  return html`<${Card} title="Approve a device"><p>A terminal without a browser shows a code when you sign in there. You approve it by signing in again. Only enter a code that you have asked for yourself.</p>
    <form class="toolbar" onSubmit=${submit}><${Field} label="Code" value=${code} onInput=${(/** @type {any} */ e) => setCode(e.target.value)} required maxlength="64" autocapitalize="characters" /><button>Continue</button></form></${Card}>`;
}
