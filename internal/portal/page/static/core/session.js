// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The user signs in with the hub's own issuer, or pastes a token. Tokens are kept in the memory of the page. During a
// reload, the refresh token is in the session storage of the tab, so that the user does not have to type a password. It
// is not there while the page is open, because a duplicated tab has a copy of the storage, and using a refresh token
// twice ends its session.

const client = "kubectl"; // the issuer's only public client
const scopes = "openid offline_access";
const kept = "drover.refresh";
const asked = "drover.asked";
const early = 30_000; // milliseconds before its expiration when a token is renewed
const patience = 30_000; // milliseconds to wait for an answer of the issuer

/** The issuer refuses to issue a token, or the pasted token has ended: the user has to sign in again. */
export class SignedOut extends Error {}

let access = "";
let refresh = sessionStorage.getItem(kept) ?? "";
let ends = 0;
let pasted = false;
let renewing = null;

const clear = () => sessionStorage.removeItem(kept);
clear();
addEventListener("pagehide", () => { if (refresh) sessionStorage.setItem(kept, refresh); });
addEventListener("pageshow", clear);

const encode = (/** @type {Uint8Array} */ bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => encode(crypto.getRandomValues(new Uint8Array(32)));
const here = () => location.origin + location.pathname;

/** Returns the base64url form of a text, in which subprotocols of WebSockets carry tokens. @param {string} text */
export const base64url = (text) => encode(new TextEncoder().encode(text));

/** @param {string} path @param {RequestInit} [options] */
async function send(path, options) {
  try {
    return await fetch(path, { ...options, signal: AbortSignal.timeout(patience) });
  } catch {
    throw new Error("the hub cannot be reached");
  }
}

/** Returns the endpoints of the issuer, or null if users cannot sign in to this hub at this address. */
async function endpoints() {
  const response = await send("/.well-known/openid-configuration", { cache: "no-cache" });
  if (response.status === 404) return null;
  if (!response.ok) throw new Error(`the hub does not say how users sign in: ${response.status} ${response.statusText}`);
  const found = await response.json();
  return found.issuer === location.origin ? found : { elsewhere: found.issuer };
}

/**
 * Continues with a code from the issuer, or with the session before a reload. Returns whether there is a user, or why
 * not, and whether it helps to load the page again. Fails if the issuer is not known.
 * @returns {Promise<{ issuer: any, user?: boolean, problem?: string, again?: boolean }>}
 */
export async function resume() {
  const issuer = await endpoints();
  const query = new URLSearchParams(location.search);
  const request = JSON.parse(sessionStorage.getItem(asked) ?? "null");
  sessionStorage.removeItem(asked);
  const returns = query.has("state") || query.has("error");
  try {
    if (returns) {
      history.replaceState(null, "", here() + (request?.hash ?? ""));
      if (!issuer || !request || query.get("state") !== request.state || query.get("iss") !== issuer.issuer) return { issuer, problem: "The issuer’s answer does not belong to a sign-in of this tab. Sign in again." };
      if (query.has("error")) return { issuer, problem: query.get("error_description") ?? query.get("error") ?? "" };
      await ask(issuer, { grant_type: "authorization_code", code: query.get("code"), redirect_uri: here(), code_verifier: request.verifier });
    } else if (issuer?.token_endpoint && refresh) {
      await renew(issuer);
    }
  } catch (/** @type {any} */ problem) {
    if (returns) return { issuer, problem: `The sign-in has failed: ${problem.message}. Sign in again.` };
    if (problem instanceof SignedOut) return { issuer, problem: `You are signed out: ${problem.message}.` };
    return { issuer, problem: `Your session cannot be renewed: ${problem.message}.`, again: true };
  }
  return { issuer, user: access !== "" };
}

/** Redirects to the issuer. @param {any} issuer */
export async function signIn(issuer) {
  const request = { state: random(), verifier: random(), hash: location.hash };
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(request.verifier));
  sessionStorage.setItem(asked, JSON.stringify(request));
  location.assign(issuer.authorization_endpoint + "?" + new URLSearchParams({
    client_id: client, response_type: "code", scope: scopes, redirect_uri: here(), state: request.state, nonce: random(),
    code_challenge: encode(new Uint8Array(digest)), code_challenge_method: "S256",
  }));
}

// Only a refusal by the issuer ends a session. An outage or a busy issuer does not.
/** @param {any} issuer @param {Record<string, any>} form */
async function ask(issuer, form) {
  const response = await send(new URL(issuer.token_endpoint).pathname, { method: "POST", body: new URLSearchParams({ client_id: client, ...form }) });
  const answer = await response.json().catch(() => null) ?? {};
  if (response.ok && answer.access_token) {
    access = answer.access_token;
    ends = Date.now() + answer.expires_in * 1000;
    refresh = answer.refresh_token ?? refresh;
    return;
  }
  const reason = answer.error_description ?? answer.error ?? `the hub issues no token: ${response.status} ${response.statusText}`.trim();
  const refused = (response.status === 400 || response.status === 401) && typeof answer.error === "string";
  if (!refused) throw new Error(reason);
  refresh = "";
  throw new SignedOut(reason);
}

// One renewal at a time, because a refresh token is valid once.
/** @param {any} issuer */
function renew(issuer) {
  renewing ??= ask(issuer, { grant_type: "refresh_token", refresh_token: refresh }).finally(() => { renewing = null; });
  return renewing;
}

/** Uses a token that the user has pasted. @param {string} token */
export function paste(token) {
  access = token;
  pasted = true;
}

/** Notes that the hub no longer accepts the token. A session is renewed. A pasted token cannot be. */
export function expire() {
  ends = 0;
  if (pasted) access = "";
}

/** Returns a valid token. Throws SignedOut if the user has to sign in again, or another error in an outage. @param {any} issuer */
export async function token(issuer) {
  if (pasted ? !access : Date.now() > ends - early) {
    if (pasted || !refresh) throw new SignedOut("the token has ended");
    await renew(issuer);
  }
  return access;
}

/** Returns whether the user has pasted a token. */
export const isPasted = () => pasted;

/** Ends the session at the hub and in this tab. @param {any} issuer */
export async function signOut(issuer) {
  const ended = refresh;
  access = refresh = "";
  if (ended && issuer?.revocation_endpoint) {
    await fetch(new URL(issuer.revocation_endpoint).pathname, { method: "POST", body: new URLSearchParams({ client_id: client, token: ended }) }).catch(() => {});
  }
  location.replace(here());
}
