// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The page signs the user in, follows the stream, and shows the view in the address.

import { use, whoAmI } from "./api.js";
import { can } from "./can.js";
import { changed as detailChanged } from "./detail.js";
import { el, field } from "./dom.js";
import { fleet } from "./fleet.js";
import { hosts } from "./hosts.js";
import { plans } from "./plans.js";
import { paste, resume, signIn, signOut, token } from "./session.js";
import { follow } from "./stream.js";

const views = { "#clusters": fleet, "#plans": plans, "#hosts": hosts, "#can": can };
const main = document.getElementById("main");
const stream = document.getElementById("stream");
const unmanaged = document.getElementById("unmanaged");
const nav = document.querySelector("nav");

function view() {
  const hash = location.hash in views ? location.hash : "#clusters";
  main.replaceChildren(views[hash].element);
  document.title = `${views[hash].title} – Drover`;
  for (const link of nav.querySelectorAll("a")) {
    if (link.hash === hash) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// The view for a user who is not signed in.
function welcome(issuer, problem) {
  nav.hidden = true;
  const pasted = el("input", { type: "password", required: true, autocomplete: "off", spellcheck: "false" });
  main.replaceChildren(el("section", { class: "card narrow", "aria-label": "Sign in" },
    el("h2", {}, "Sign in"),
    problem && el("p", { class: "error", role: "alert" }, problem),
    issuer?.authorization_endpoint && el("p", {}, el("button", { class: "main", autofocus: true, onclick: () => signIn(issuer) }, "Sign in to the hub")),
    issuer?.elsewhere && el("p", {}, "Users sign in at ", el("a", { href: issuer.elsewhere + "/ui/", rel: "noreferrer" }, issuer.elsewhere + "/ui/"), "."),
    el("form", { method: "dialog", onsubmit: (event) => { event.preventDefault(); paste(pasted.value.trim()); start(issuer); } },
      field("Or a token, which this page forgets when it is closed", pasted), el("p", {}, el("button", {}, "Use this token")))));
}

async function start(issuer) {
  const source = () => token(issuer);
  use(source);
  let user;
  try {
    user = await whoAmI();
  } catch (problem) {
    welcome(issuer, problem.message);
    return;
  }
  document.getElementById("user").textContent = user.username;
  const leave = document.getElementById("leave");
  leave.hidden = nav.hidden = false;
  leave.onclick = () => signOut(issuer);
  addEventListener("hashchange", view);
  view();
  follow({
    token: source,
    said: (text) => { if (stream.textContent !== text) stream.textContent = text; },
    managed: (is) => {
      const text = is ? "" : "No manager leads: no one watches the fleet, and the states on this page are out of date.";
      if (unmanaged.textContent !== text) unmanaged.textContent = text;
    },
    lost: (problem) => welcome(issuer, `You are signed out: ${problem.message}.`),
    changed: (dirty) => {
      for (const each of Object.values(views)) each.changed(dirty);
      detailChanged(dirty);
    },
  });
}

const begun = await resume().catch((problem) => ({ problem: problem.message }));
if (begun.user) start(begun.issuer);
else welcome(begun.issuer, begun.problem);
