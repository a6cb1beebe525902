// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The dialog that creates a Cluster, and shows how to install its agent.

import { createCluster, registration } from "./api.js";
import { el, field } from "./dom.js";
import { all } from "./stream.js";
import { workspaces } from "./fleet.js";

const dialog = document.getElementById("detail");

/** Asks for a name, creates the Cluster, and shows the command. */
export function importDialog() {
  const list = el("datalist", { id: "workspaces" }, workspaces().map((value) => el("option", { value })));
  const workspace = el("input", { required: true, list: "workspaces", autocomplete: "off", pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: "63" });
  const name = el("input", { required: true, autocomplete: "off", pattern: "[a-z0-9]([a-z0-9\\-]*[a-z0-9])?", maxlength: "63" });
  const said = el("div", { role: "status" });
  const form = el("form", {
    method: "dialog", onsubmit: async (event) => {
      event.preventDefault();
      const [at, called] = [workspace.value, name.value];
      said.replaceChildren(el("p", {}, "Creating the Cluster …"));
      try {
        said.replaceChildren(...await command(await createCluster(at, called)));
      } catch (problem) {
        said.replaceChildren(el("p", { class: "error" }, problem.message));
      }
    },
  }, list, field("Workspace (a namespace of the hub)", workspace), field("Name", name), el("p", {}, el("button", { class: "main" }, "Create")));
  dialog.onclose = null;
  dialog.replaceChildren(el("button", { class: "close", onclick: () => dialog.close() }, "Close"), el("h2", { id: "title" }, "Import a cluster"), form, said);
  workspace.autofocus = true;
  dialog.showModal();
}

// The command contains a join token, so it is only shown to users who may read the Secret. The hub creates the Secret a moment
// after the Cluster.
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
    return [el("p", {}, "The Cluster is created. Its agent’s manifest contains a token, and you may not read its Secret: ", el("span", { class: "error" }, problem.message)),
      el("p", {}, "Ask an administrator of the workspace to run:"), el("pre", { tabindex: "0" }, `kubectl drover import ${name} --workspace ${namespace} --to-context CONTEXT`)];
  }
  const found = foreign(secret, cluster);
  if (found) return [el("p", { class: "error" }, `The Cluster is created. The Secret ${name}-registration was not created by the hub: ${found}. Another user may have created it, so its command is not shown. Delete the Secret, and the hub makes its own.`)];
  return [el("p", {}, "Run this against the cluster. It contains a token that works once."), el("pre", { tabindex: "0" }, text(secret.data.command))];
}

/** Returns why a Secret is not the one that the hub created for a Cluster. A user who may create Secrets may have created it. */
function foreign({ metadata: { labels = {}, ownerReferences = [] } }, { metadata: { name, uid } }) {
  const wanted = { "cluster.drover.dev/cluster": name, "cluster.drover.dev/secret": "registration" };
  for (const [label, value] of Object.entries(wanted)) {
    if (labels[label] !== value) return `its label ${label} is ${labels[label] ?? "missing"} and not ${value}`;
  }
  return ownerReferences.some((owner) => owner.uid === uid) ? "" : "it does not belong to this Cluster";
}
