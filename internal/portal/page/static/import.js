// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The dialog that makes a Cluster, and says how its agent gets into it.

import { createCluster, registration } from "./api.js";
import { el, field } from "./dom.js";
import { all } from "./stream.js";
import { workspaces } from "./fleet.js";

const dialog = document.getElementById("detail");

/** Asks for a name, makes the Cluster, and shows the command. */
export function importDialog() {
  const list = el("datalist", { id: "workspaces" }, workspaces().map((value) => el("option", { value })));
  const workspace = el("input", { required: true, list: "workspaces", autocomplete: "off", pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: "63" });
  const name = el("input", { required: true, autocomplete: "off", pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: "63" });
  const said = el("div", { role: "status" });
  const form = el("form", {
    method: "dialog", onsubmit: async (event) => {
      event.preventDefault();
      const [at, called] = [workspace.value, name.value];
      said.replaceChildren(el("p", {}, "Making the Cluster."));
      try {
        said.replaceChildren(...await command(await createCluster(at, called)));
      } catch (problem) {
        said.replaceChildren(el("p", { class: "error" }, problem.message));
      }
    },
  }, list, field("Workspace (a namespace of the hub)", workspace), field("Name", name), el("p", {}, el("button", { class: "main" }, "Make it")));
  dialog.onclose = null;
  dialog.replaceChildren(el("button", { class: "close", onclick: () => dialog.close() }, "Close"), el("h2", { id: "title" }, "Import a cluster"), form, said);
  workspace.autofocus = true;
  dialog.showModal();
}

// The manifest has a join token, so it is shown only to those who may read its Secret. The hub makes that a moment after the Cluster.
async function command(cluster) {
  const { namespace, name } = cluster.metadata;
  for (let tries = 0; tries < 40; tries++) {
    await new Promise((resolve) => setTimeout(resolve, 250));
    if (all.clusters.get(`${namespace}/${name}`)?.status?.conditions?.some((c) => c.type === "Registered")) break;
  }
  const text = (data) => new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));
  let secret;
  try {
    secret = await registration(namespace, name);
  } catch (problem) {
    return [el("p", {}, "The Cluster is made. Its agent’s manifest has a token, and you may not read its Secret: ", el("span", { class: "error" }, problem.message)),
      el("p", {}, "Ask an administrator of the workspace to run:"), el("pre", { tabindex: "0" }, `kubectl drover import ${namespace}/${name} --context CONTEXT`)];
  }
  const found = foreign(secret, cluster);
  if (found) return [el("p", { class: "error" }, `The Cluster is made. The Secret ${name}-registration is not the one that the hub makes: ${found}. Another user may have made it, so its command is not shown. Delete the Secret, and the hub makes its own.`)];
  return [el("p", {}, "Run this against the cluster. It has a token that is good once."), el("pre", { tabindex: "0" }, text(secret.data.command))];
}

/** Says why a Secret is not the one that the hub made for a Cluster: who may create Secrets can have put another there. */
function foreign({ metadata: { labels = {}, ownerReferences = [] } }, { metadata: { name, uid } }) {
  const wanted = { "cluster.drover.dev/cluster": name, "cluster.drover.dev/secret": "registration" };
  for (const [label, value] of Object.entries(wanted)) {
    if (labels[label] !== value) return `its label ${label} is ${labels[label] ?? "not there"} and not ${value}`;
  }
  return ownerReferences.some((owner) => owner.uid === uid) ? "" : "it does not belong to this Cluster";
}
