// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The page signs the user in, follows the stream, and shows the view of the address.

import { html, render } from "./lib/html.js";
import { use, whoAmI } from "./core/api.js";
import { update } from "./core/router.js";
import { isPasted, paste, resume, signOut, token } from "./core/session.js";
import { follow } from "./core/stream.js";
import { me } from "./core/user.js";
import { register, viewCommand } from "./shell/commands.js";
import { listen } from "./shell/keys.js";
import { Shell } from "./shell/shell.js";
import { sections, views } from "./views/index.js";
import { SignIn } from "./views/signin.js";

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
let following = false;

/** @param {any} issuer @param {any} [problem] @param {boolean} [again] whether it helps to load the page again */
function welcome(issuer, problem, again) {
  document.title = "Sign in – Drover";
  const accept = (/** @type {string} */ text) => { paste(text); start(issuer); };
  const retry = again ? () => location.reload() : undefined;
  render(html`<${SignIn} key="sign-in" issuer=${issuer} problem=${problem} retry=${retry} onToken=${accept} />`, root);
}

/** @param {any} issuer */
async function start(issuer) {
  const source = () => token(issuer);
  use(source);
  try {
    me.value = await whoAmI();
  } catch (/** @type {any} */ problem) {
    welcome(issuer, problem, problem.status !== 401 && !isPasted());
    return;
  }
  render(html`<${Shell} key="shell" views=${views} sections=${sections} user=${me.value.username} onSignOut=${() => signOut(issuer)} />`, root);
  if (following) return;
  following = true;
  register(sections.map(viewCommand));
  register([{ id: "sign-out", title: "Sign out", icon: "out", run: () => { signOut(issuer); } }]);
  listen();
  follow({ token: source, lost: (problem) => { following = false; welcome(issuer, `You are signed out: ${problem.message}.`); } });
}

const begun = await resume().catch((problem) => ({ issuer: null, user: false, problem: `You cannot sign in now: ${problem.message}.`, again: true }));
update(); // sign-in has restored the address
root.replaceChildren();
if (begun.user) start(begun.issuer);
else welcome(begun.issuer, begun.problem, begun.again);
