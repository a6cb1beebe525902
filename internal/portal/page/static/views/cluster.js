// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// One Cluster: its state, its problems and what to do about them, its Plans, who can reach it, and how.

import { html } from "../lib/html.js";
import { Time } from "../lib/time.js";
import { drover, remove } from "../core/api.js";
import { may } from "../core/rights.js";
import { go, href } from "../core/router.js";
import { bindingsOf, clusterRow, within } from "../core/select.js";
import { explained, planState } from "../core/states.js";
import { loaded, object, objects } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { confirm } from "../ui/dialog.js";
import { Icon, Mark } from "../ui/icons.js";
import { Card, Command, CopyField, Empty, Facts, Heading, Labels, Loading, Meter, Note, State, Tabs, copy } from "../ui/parts.js";
import { Rows } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { Joining } from "./import.js";

const crumbs = html`<a href=${href(["clusters"])}>Clusters</a>`;

/** @param {{ params: Record<string, string> }} props */
export function ClusterView({ params: { workspace, name, tab = "summary" } }) {
  const key = `${workspace}/${name}`;
  const cluster = object("clusters", key);
  const mayDelete = cluster && !cluster.partial && may({ verb: "delete", resource: "clusters", namespace: workspace, name });
  const use = `kubectl drover use ${key} --hub ${location.origin}`;
  useCommands([{ id: "copy-use", title: `Copy the kubectl command for ${name}`, icon: "terminal", run: () => copy(use, "Command") }], [key]);
  if (!cluster) return html`<div class="view"><${Heading} title=${key} above=${crumbs} />
    ${loaded.value ? html`<${Empty} icon="clusters" title="This Cluster is gone, or you can no longer reach or watch it"><a href=${href(["clusters"])}>All clusters</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const row = clusterRow(cluster);
  const tabs = cluster.partial ? [{ id: "summary", title: "Summary" }, { id: "connect", title: "Connect" }]
    : [{ id: "summary", title: "Summary" }, { id: "access", title: "Access", n: bindingsOf(cluster).length }, { id: "connect", title: "Connect" }];
  const Body = { access: Who, connect: Connect }[tab] ?? Summary;
  return html`<div class="view"><${Heading} title=${row.name} above=${html`${crumbs} <span aria-hidden="true">/</span> <a href=${href(["clusters"], { q: workspace })}>${workspace}</a>`} beside=${html`<${State} name=${row.state.name} word=${row.state.word} />`}>
      <a class="button" href=${href(["clusters", workspace, name, "connect"])}><${Icon} name="terminal" />Connect</a>
      ${mayDelete && html`<button type="button" class="icon-button framed" aria-label="Delete the cluster" title="Delete" onClick=${() => askDelete(cluster)}><${Icon} name="trash" /></button>`}</${Heading}>
    <${Tabs} label="Parts of the cluster" tabs=${tabs} current=${tab} path=${["clusters", workspace, name]} />
    <${Body} cluster=${cluster} row=${row} /></div>`;
}

/** @param {any} cluster */
function askDelete(cluster) {
  const { namespace, name, uid } = cluster.metadata;
  const stays = cluster.spec?.deletionPolicy === "Orphan";
  confirm({
    title: `Delete the cluster ${name}?`, name, action: "Delete", danger: true,
    text: html`<p>${stays ? "Drover forgets the cluster. The agent and all delivered objects stay in it." : "Drover uninstalls its agent and removes all that it has delivered to the cluster. Workloads keep running."}</p>
      <ul><li>Users lose their access through this hub at once.</li><li>Bindings and projects that name it stay, without effect.</li><li>To manage it again, it has to be imported again.</li></ul>`,
    run: async () => {
      await remove({ ...drover, resource: "clusters", namespace, name }, uid);
      toast(`${name} is being deleted.`);
      go(href(["clusters"]));
    },
  });
}

/** @param {{ cluster: any, row: import("../core/select.js").ClusterRow }} props */
function Summary({ cluster, row }) {
  const { status = {} } = cluster;
  const waits = row.state.reason === "AwaitingAgent" || row.state.reason === "TokenExpired";
  return html`<div class="columns">
    <div class="column wide">
      ${cluster.partial && html`<${Note}>You can reach this Cluster. Its conditions, labels and bindings are visible to users who may watch it on the hub.</${Note}>`}
      ${waits && !cluster.partial && html`<${Card} title="Connect this cluster"><${Joining} made=${cluster} /></${Card}>`}
      ${!cluster.partial && html`<${Conditions} object=${cluster} />`}
      <${PlansOf} cluster=${cluster} /></div>
    <div class="column">
      <${Card} title="Facts"><${Facts} pairs=${[
        ["Kubernetes", [status.version, status.distribution].filter(Boolean).join(" ")],
        ["Nodes", row.nodes && `${row.nodes.ready} of ${row.nodes.total} ready`],
        ["CPU requested", row.cpu.total > 0 && html`<${Meter} label="CPU requested" ...${row.cpu} unit="cores" />`],
        ["Memory requested", row.memory.total > 0 && html`<${Meter} label="Memory requested" ...${row.memory} unit="bytes" />`],
        ["Agent", status.agent?.version],
        ["Image", status.agent?.image && html`<${CopyField} text=${status.agent.image} what="Image" />`],
        ["Last seen", status.lastSeen && html`<${Time} at=${status.lastSeen} ago />`],
        ["Created", row.created && html`<${Time} at=${row.created} ago />`],
        ["Labels", row.pairs.length > 0 && html`<${Labels} pairs=${row.pairs} />`],
      ]} /></${Card}></div></div>`;
}

/** Conditions in people's words, problems first and with a remedy. @param {{ object: any, ready?: [string, string] }} props */
export function Conditions({ object: shown, ready }) {
  const all = explained(shown, ready);
  const wrong = all.filter((c) => c.name !== "working");
  const good = all.filter((c) => c.name === "working");
  return html`<${Card} title="Conditions">${all.length === 0 && html`<p class="soft">Drover has not looked at it yet.</p>`}<ul class="conditions" aria-label="Conditions, problems first">${[...wrong, ...good].map((c) => html`
    <li class=${c.name} key=${c.type}><${Mark} name=${c.name} /><div><p class="condition-title"><strong>${c.title}</strong> <span class="soft">${c.type}: ${c.reason}</span></p>
      ${c.message && c.name !== "working" && html`<p class="message">${c.message.slice(0, 2000)}</p>`}${c.message && c.name === "working" && html`<p class="message soft">${c.message.slice(0, 300)}</p>`}
      ${c.remedy && html`<p class="remedy">${c.remedy}</p>`}${c.command && html`<${Command} text=${c.command} />`}</div>
      <span class="soft since"><${Time} at=${c.since} /></span></li>`)}</ul></${Card}>`;
}

/** @param {{ cluster: any }} props */
function PlansOf({ cluster }) {
  const { name, namespace } = cluster.metadata;
  const listed = [...objects("plans").values()].filter((plan) => plan.metadata.namespace === namespace && plan.status?.members?.some((/** @type {any} */ m) => m.name === name));
  const plans = [...new Set([...listed, ...within("plans", cluster)])];
  if (plans.length === 0) return null;
  return html`<${Card} title="Plans"><${Rows} label="Plans for this Cluster" head=${["Plan", "State", "Clusters", "Here"]} rows=${plans.map((plan) => {
    const here = plan.status?.members?.find((/** @type {any} */ m) => m.name === name);
    const state = planState(plan);
    return [html`<a href=${href(["plans", namespace, plan.metadata.name])}>${plan.metadata.name}</a>`, html`<${State} ...${state} />`, plan.status?.clusters?.summary ?? "",
      here ? `${here.reason}${here.nodes ? ", nodes " + here.nodes : ""}${here.message ? ": " + here.message : ""}`.slice(0, 500) : "Done, or nothing to do"];
  })} /></${Card}>`;
}

/** @param {{ cluster: any }} props */
function Who({ cluster }) {
  const found = bindingsOf(cluster);
  return html`<${Card} title="Who can use this cluster">${found.length > 0
    ? html`<${Rows} label="Bindings that you may watch" head=${["Who", "Role", "Where", "Until"]} rows=${found.map(({ binding, where }) => [
      html`${binding.spec.subject.name} <span class="soft">${binding.spec.subject.kind}</span>`, binding.spec.roleTemplateName, where, binding.spec.expiresAt ? html`<${Time} at=${binding.spec.expiresAt} />` : "no end"])} />`
    : html`<p class="soft">No binding that you may watch leads to this cluster.</p>`}
    <p class="soft">Besides, all who may get clusters/proxy on the hub, as far as the member’s own RBAC lets them.</p></${Card}>`;
}

/** @param {{ cluster: any }} props */
function Connect({ cluster }) {
  const key = `${cluster.metadata.namespace}/${cluster.metadata.name}`;
  return html`<${Card} title="kubectl"><p>With the plugin, which signs you in and renews the token:</p><${Command} text=${`kubectl drover use ${key} --hub ${location.origin}`} />
    <p>The address of the cluster, for other tools:</p><${Command} text=${`${location.origin}/k8s/clusters/${key}`} what="Address" /></${Card}>`;
}
