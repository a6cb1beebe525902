// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Who uses the page: by the hub's own issuer, or by a token that they paste. Tokens are in the memory of the page. Between one page and the next the
// refresh token is in the session storage of the tab, so that a reload asks for no password. It is not there while the page is open: a tab that is
// duplicated has a copy of the storage, and a refresh token that is used twice ends its session.

const client = "kubectl"; // the issuer's one public client
const scopes = "openid offline_access";
const kept = "drover.refresh";
const asked = "drover.asked";
const early = 30_000; // milliseconds before its end at which a token is renewed

let access = "";
let refresh = sessionStorage.getItem(kept) ?? "";
let ends = 0;
let pasted = false;
let renewing = null;

const clear = () => sessionStorage.removeItem(kept);
clear();
addEventListener("pagehide", () => { if (refresh) sessionStorage.setItem(kept, refresh); });
addEventListener("pageshow", clear);

const encode = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const random = () => encode(crypto.getRandomValues(new Uint8Array(32)));
const here = () => location.origin + location.pathname;

/** base64url of a text, as subprotocols of WebSockets carry tokens. */
export const base64url = (text) => encode(new TextEncoder().encode(text));

/** Asks the issuer for its endpoints, null if users do not sign in at this hub, or not by this address. */
async function endpoints() {
  const response = await fetch("/.well-known/openid-configuration", { cache: "no-cache" });
  if (!response.ok) return null;
  const found = await response.json();
  return found.issuer === location.origin ? found : { elsewhere: found.issuer };
}

/** Begins with what the tab has: a code that the issuer has sent, or the session of before. Returns whether there is a user, or why not. */
export async function resume() {
  const issuer = await endpoints();
  const query = new URLSearchParams(location.search);
  const request = JSON.parse(sessionStorage.getItem(asked) ?? "null");
  sessionStorage.removeItem(asked);
  if (query.has("state") || query.has("error")) {
    history.replaceState(null, "", here() + (request?.hash ?? ""));
    if (!issuer || !request || query.get("state") !== request.state || query.get("iss") !== issuer.issuer) return { issuer, problem: "The answer of the issuer is not to a question of this tab. Sign in again." };
    if (query.has("error")) return { issuer, problem: query.get("error_description") ?? query.get("error") };
    await ask(issuer, { grant_type: "authorization_code", code: query.get("code"), redirect_uri: here(), code_verifier: request.verifier });
  } else if (issuer?.token_endpoint && refresh) {
    await renew(issuer).catch(() => {});
  }
  return { issuer, user: access !== "" };
}

/** Leads to the issuer. */
export async function signIn(issuer) {
  const request = { state: random(), verifier: random(), hash: location.hash };
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(request.verifier));
  sessionStorage.setItem(asked, JSON.stringify(request));
  location.assign(issuer.authorization_endpoint + "?" + new URLSearchParams({
    client_id: client, response_type: "code", scope: scopes, redirect_uri: here(), state: request.state, nonce: random(),
    code_challenge: encode(new Uint8Array(digest)), code_challenge_method: "S256",
  }));
}

async function ask(issuer, form) {
  const response = await fetch(new URL(issuer.token_endpoint).pathname, { method: "POST", body: new URLSearchParams({ client_id: client, ...form }) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error_description ?? answer.error ?? response.statusText);
  access = answer.access_token;
  ends = Date.now() + answer.expires_in * 1000;
  refresh = answer.refresh_token ?? refresh;
}

// One at a time: a refresh token is good once.
function renew(issuer) {
  renewing ??= ask(issuer, { grant_type: "refresh_token", refresh_token: refresh }).finally(() => { renewing = null; });
  return renewing;
}

/** Takes a token that the user has pasted. */
export function paste(token) {
  access = token;
  pasted = true;
}

/** Returns a token that is valid, or throws when the user has to sign in again. */
export async function token(issuer) {
  if (!pasted && Date.now() > ends - early) {
    if (!refresh) throw new Error("the session has ended");
    await renew(issuer);
  }
  return access;
}

/** Ends the session at the hub and in this tab. */
export async function signOut(issuer) {
  const ended = refresh;
  access = refresh = "";
  if (ended && issuer?.revocation_endpoint) {
    await fetch(new URL(issuer.revocation_endpoint).pathname, { method: "POST", body: new URLSearchParams({ client_id: client, token: ended }) }).catch(() => {});
  }
  location.replace(here());
}
