// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The dialog that creates a Cluster, shows how to install its agent, and follows it until it is ready.

import { html, useEffect, useState } from "../lib/html.js";
import { command, short } from "../lib/text.js";
import { create, drover, registration, remove } from "../core/api.js";
import { may } from "../core/rights.js";
import { href } from "../core/router.js";
import { workspaces } from "../core/select.js";
import { clusterState, condition, explained } from "../core/states.js";
import { object } from "../core/store.js";
import { DialogActions, openDialog } from "../ui/dialog.js";
import { Field, nameRules } from "../ui/form.js";
import { Mark } from "../ui/icons.js";
import { Command, Loading, Note, Problem } from "../ui/parts.js";
import { toast } from "../ui/toast.js";

/** Opens the dialog. */
export const openImport = () => openDialog("Import a cluster", Import, {}, { drawer: true });

/** @param {{ close: () => void }} props */
function Import({ close }) {
  const [form, setForm] = useState({ namespace: "", name: "" });
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const [made, setMade] = useState(/** @type {any} */ (null));
  const set = (/** @type {string} */ key) => (/** @type {any} */ e) => { const { value } = e.target; setForm((was) => ({ ...was, [key]: value })); };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const { namespace, name } = form;
      setMade(await create({ ...drover, resource: "clusters", namespace }, { apiVersion: "cluster.drover.dev/v1", kind: "Cluster", metadata: { namespace, name } }));
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  if (made) return html`<div class="dialog-body"><${Joining} made=${made} /></div><${DialogActions}>
    <a class="button" href=${href(["clusters", made.metadata.namespace, made.metadata.name])} onClick=${close}>Show the cluster</a><button type="button" class="primary" onClick=${close}>Done</button></${DialogActions}>`;
  return html`<form onSubmit=${submit}><div class="dialog-body">
    <p class="soft">Drover creates a Cluster object on the hub, and shows a command. Run it with kubectl’s access to your cluster: it installs an agent, which connects to this hub. Your cluster needs no open port.</p>
    <${Field} label="Workspace (a namespace of the hub)" value=${form.namespace} onInput=${set("namespace")} list=${workspaces.value} data-focus ...${nameRules} />
    <${Field} label="Name" value=${form.name} onInput=${set("name")} help="Users see this name. It cannot be changed later." ...${nameRules} />
    ${error && html`<${Problem} title="The cluster was not created." error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${busy}>${busy ? "Creating …" : "Create"}</button></${DialogActions}></form>`;
}

/** Shows the command of a Cluster that waits for its agent, and its progress. @param {{ made: any }} props */
export function Joining({ made }) {
  const { namespace, name } = made.metadata;
  const live = object("clusters", `${namespace}/${name}`);
  const state = live && clusterState(live);
  const joined = live && condition(live, "Registered")?.status === "True";
  const awaited = !joined && state?.name !== "broken"; // otherwise the command would fail
  const steps = [
    { done: true, text: "The cluster is created" },
    { done: joined, text: joined ? "The agent has joined" : awaited ? "The agent joins: run the command below" : "The agent joins" },
    { done: joined && condition(live, "Connected")?.status === "True", text: "The agent is connected" },
    { done: state?.name === "working", text: "The cluster is ready" },
  ];
  const now = steps.findIndex((step) => !step.done);
  return html`<div role="status"><ol class="steps">${steps.map((step, i) => html`<li class=${step.done ? "done" : i === now ? "now" : ""}><${Mark} name=${step.done ? "working" : "waiting"} />${step.text}</li>`)}</ol></div>
    ${state?.name === "broken" && html`<${Failure} cluster=${live} state=${state} />`}
    ${awaited && html`<${JoinCommand} made=${made} registered=${Boolean(live && condition(live, "Registered"))} />`}`;
}

/** Why an import fails, and what to do. @param {{ cluster: any, state: ReturnType<typeof clusterState> }} props */
function Failure({ cluster, state }) {
  const { namespace, name } = cluster.metadata;
  const [error, setError] = useState(/** @type {any} */ (null));
  const ref = { resource: "secrets", namespace, name: name + "-registration" };
  // A user's own token is renewed by the user. The hub's policies also require the right to remove the agent.
  const expired = state.reason === "TokenExpired" && !cluster.spec?.registration?.tokenSecretRef && may({ verb: "delete", group: "", ...ref }) && may({ verb: "delete", resource: "clusters", subresource: "agent", namespace, name });
  const renew = async () => {
    setError(null);
    try {
      const secret = await registration(namespace, name);
      const found = foreign(secret, name, cluster.metadata.uid);
      if (found) throw new Error(`The Secret ${ref.name} was not created by the hub: ${found}.`);
      await remove(ref, secret.metadata.uid);
    } catch (/** @type {any} */ problem) {
      if (problem.status !== 404) return setError(problem); // without the Secret, the hub makes a new one in any case
    }
    return toast("The hub makes a new command.");
  };
  const cause = explained(cluster).find((c) => c.name === "broken" && c.reason === state.reason);
  return html`<${Note} name="broken"><p><b>${state.word}.</b> ${short(state.message, 2000)}</p>${cause?.remedy && html`<p>${cause.remedy}</p>`}${cause?.command && html`<${Command} text=${cause.command} />`}
    ${expired && html`<p><button type="button" onClick=${renew}>Make a new command</button></p>`}</${Note}>${error && html`<${Problem} error=${error} />`}`;
}

// The command contains a join token, so it is only shown to users who may read the Secret. The hub creates the Secret a
// moment after the Cluster.
/** @param {{ made: any, registered: boolean }} props */
function JoinCommand({ made, registered }) {
  const { namespace, name, uid } = made.metadata;
  const [secret, setSecret] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [tries, setTries] = useState({ n: 0 });
  useEffect(() => {
    let left = false;
    const timer = setTimeout(() => registration(namespace, name).then((value) => { if (!left) { setSecret(value); setError(null); } }, (problem) => {
      if (left) return;
      if (problem.status === 404 && tries.n < 40) setTries({ n: tries.n + 1 });
      else setError(problem);
    }), tries.n === 0 ? 0 : 250);
    return () => { left = true; clearTimeout(timer); };
  }, [namespace, name, registered, tries]);
  const again = () => { setError(null); setTries({ n: 0 }); };
  if (error?.status === 403) return html`<p>The command contains a token, and you may not read the Secret that contains it.</p><${Problem} error=${error} />
    <p>Ask an administrator of the workspace to run:</p><${Command} text=${command`kubectl drover import ${name} --workspace ${namespace} --to-context CONTEXT`} />`;
  if (error?.status === 404) return html`<${Problem} title="There is no command yet." error=${`The hub has not created the Secret ${name}-registration. Its manager may be busy or away.`} retry=${again} />`;
  if (error) return html`<${Problem} title="The command cannot be shown." error=${error} retry=${again} />`;
  if (!secret) return html`<${Loading} label="The hub is creating the command" rows=${2} />`;
  const found = foreign(secret, name, uid);
  if (found) return html`<${Problem} error=${`The cluster is created. The Secret ${name}-registration was not created by the hub: ${found}. Another user may have created it, so its command is not shown. Delete the Secret, and the hub makes its own.`} />`;
  return html`<p>Run this where kubectl reaches the cluster. It contains a token that works once, so treat it like a password.</p><${Command} text=${decode(secret.data?.command ?? "")} what="Import command" />`;
}

/** @param {string} data */
const decode = (data) => new TextDecoder().decode(Uint8Array.from(atob(data), (c) => c.charCodeAt(0)));

/**
 * Returns why a Secret is not the one that the hub created for a Cluster. A user who may create Secrets may have created it.
 * @param {any} secret @param {string} name @param {string} uid
 */
function foreign({ metadata: { labels = {}, ownerReferences = [] } = {} }, name, uid) {
  const wanted = { "cluster.drover.dev/cluster": name, "cluster.drover.dev/secret": "registration" };
  for (const [label, value] of Object.entries(wanted)) {
    if (labels[label] !== value) return `its label ${label} is ${labels[label] ?? "missing"} and not ${value}`;
  }
  return ownerReferences.some((/** @type {any} */ owner) => owner.uid === uid) ? "" : "it does not belong to this cluster";
}
