// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// One Cluster: its state, its problems and what to do about them, its Plans, who can reach it, and how.

import { expires } from "../lib/certificate.js";
import { html, useState } from "../lib/html.js";
import { command, count, own, short, words } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { expired } from "../core/access.js";
import { drover, merge, remove } from "../core/api.js";
import { download, kubeconfig } from "../core/kubeconfig.js";
import { may } from "../core/rights.js";
import { go, href } from "../core/router.js";
import { bindingsOf, clusterRow, within } from "../core/select.js";
import { baselineState, condition, explained, planState, readyState } from "../core/states.js";
import { keyOf, loaded, object, objects } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { DialogActions, confirm, openDialog } from "../ui/dialog.js";
import { Icon, Mark } from "../ui/icons.js";
import { Card, Command, CopyField, Empty, Facts, Heading, Labels, Loading, Meter, Note, Problem, State, Tabs, copy } from "../ui/parts.js";
import { Rows } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { EventsOf } from "./events.js";
import { Ended, Until } from "./grant.js";
import { Joining } from "./import.js";
import { editLabels, mayLabel } from "./labels.js";
import { ManifestButton } from "./manifest.js";
import { Nodes } from "./nodes.js";

/** The bindings to a Cluster that have not ended. @param {any} cluster */
const inForce = (cluster) => bindingsOf(cluster).filter(({ binding }) => !expired(binding));

const crumbs = html`<a href=${href(["clusters"])}>Clusters</a>`;

/** @param {{ params: Record<string, string> }} props */
export function ClusterView({ params: { workspace, name, tab = "summary" } }) {
  const key = `${workspace}/${name}`;
  const cluster = object("clusters", key);
  const known = cluster && !cluster.partial;
  const mayDelete = known && mayRemove(workspace, name);
  const mayEdit = known && mayLabel(workspace, name);
  const use = () => copy(command`kubectl drover use ${key} --hub ${location.origin}`, "Command");
  useCommands([...(cluster ? [{ id: "copy-use", title: `Copy the kubectl command for ${name}`, icon: "terminal", run: use }] : []),
    ...(mayEdit ? [{ id: "labels", title: `Edit the labels of ${name}`, icon: "tag", run: () => editLabels([key]) }] : [])], [key, Boolean(cluster), mayEdit]);
  if (!cluster) return html`<div class="view"><${Heading} title=${key} above=${crumbs} />
    ${loaded.value ? html`<${Empty} icon="clusters" title="This cluster is gone, or you may not see it"><a href=${href(["clusters"])}>All clusters</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const row = clusterRow(cluster);
  const tabs = [{ id: "summary", title: "Summary" }, { id: "nodes", title: "Nodes", n: row.nodes?.total },
    ...(cluster.partial ? [] : [{ id: "access", title: "Access", n: inForce(cluster).length }, { id: "events", title: "Events" }]), { id: "connect", title: "Connect" }];
  const Body = own(/** @type {Record<string, any>} */ ({ nodes: Nodes, access: Who, events: EventsOf, connect: Connect }), tab) ?? Summary;
  return html`<div class=${tab === "nodes" ? "view fill" : "view"}><${Heading} title=${row.name} above=${html`${crumbs} <span aria-hidden="true">/</span> <a href=${href(["clusters"], { q: workspace })}>${workspace}</a>`} beside=${html`<${State} name=${row.state.name} word=${row.state.word} />`}>
      <a class="button" href=${href(["clusters", workspace, name, "connect"])}><${Icon} name="terminal" />Connect</a>
      ${known && html`<${ManifestButton} resource="clusters" namespace=${workspace} name=${name} />`}
      ${mayDelete && html`<button type="button" class="icon-button framed" aria-label="Delete the cluster" title="Delete" onClick=${() => askDelete(cluster)}><${Icon} name="trash" /></button>`}</${Heading}>
    <${Tabs} label="Parts of the cluster" tabs=${tabs} current=${tab} path=${["clusters", workspace, name]} />
    <${Body} cluster=${cluster} row=${row} /></div>`;
}

/** Whether the user may delete a Cluster. Its deletion also needs the right to remove its agent. @param {string} namespace @param {string} name */
const mayRemove = (namespace, name) => may({ verb: "delete", resource: "clusters", namespace, name }) && may({ verb: "delete", resource: "clusters", subresource: "agent", namespace, name });

/** @param {any} cluster */
function askDelete({ metadata: { namespace, name, uid }, spec }) {
  if (spec?.deletionProtection) {
    openDialog(`${name} is protected`, Protected, { namespace, name, uid });
    return;
  }
  confirm({
    title: `Delete the cluster ${name}?`, name: `${namespace}/${name}`, action: "Delete", danger: true, text: html`<${Consequences} namespace=${namespace} name=${name} />`,
    run: async () => {
      await remove({ ...drover, resource: "clusters", namespace, name }, uid);
      toast(`${name} is being deleted.`);
      go(href(["clusters"]));
    },
  });
}

/** What the deletion of a Cluster does. @param {{ namespace: string, name: string }} props */
function Consequences({ namespace, name }) {
  const cluster = object("clusters", `${namespace}/${name}`);
  if (!cluster) return html`<${Note}>The cluster is already gone.</${Note}>`;
  const [access, projects, plans, baselines] = [inForce(cluster).length, ...["projects", "plans", "baselines"].map((kind) => within(kind, cluster).length)];
  const away = condition(cluster, "Connected")?.status !== "True";
  const stays = cluster.spec?.deletionPolicy === "Orphan";
  return html`${stays ? html`<p>Drover <b>forgets</b> the cluster. Its agent and all delivered objects stay in it, because the deletion policy is Orphan.</p>`
    : html`<p>Drover <b>uninstalls</b> its agent, and removes everything that it has delivered to the cluster. Workloads keep running.</p>
      ${away && html`<${Note}>The agent is not connected. If it stays away, nothing is removed from the cluster: run <code>kubectl drover uninstall</code> with a kubeconfig of that cluster.</${Note}>`}`}
    <ul>${access > 0 && html`<li>${count(access, "binding")} ${access === 1 ? "leads" : "lead"} to this cluster. Their users lose their access through this hub at once.</li>`}
      ${projects > 0 && html`<li>${count(projects, "project")} ${projects === 1 ? "is" : "are"} no longer delivered to it.</li>`}
      ${plans > 0 && html`<li>${count(plans, "plan")} no longer ${plans === 1 ? "includes" : "include"} it.</li>`}
      ${baselines > 0 && !stays && html`<li>${count(baselines, "baseline")} ${baselines === 1 ? "deletes its" : "delete their"} objects in it, except with the deletion policy Orphan.</li>`}
      <li>Bindings and projects that name it stay, without effect.</li><li>To manage it again, import it again.</li></ul>`;
}

/** @param {{ namespace: string, name: string, uid: string, close: () => void }} props */
function Protected({ namespace, name, uid, close }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const mayRelease = may({ verb: "patch", resource: "clusters", namespace, name });
  const release = () => merge({ ...drover, resource: "clusters", namespace, name }, { metadata: { uid }, spec: { deletionProtection: false } })
    .then(() => { toast(`${name} can be deleted now.`); close(); }, setError);
  return html`<div class="dialog-body"><p>The setting <code>deletionProtection</code> prevents the deletion of this cluster. If its manifest is in Git, change it there.</p>${error && html`<${Problem} error=${error} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button>${mayRelease && html`<button type="button" class="danger" onClick=${release}>Turn the protection off</button>`}</${DialogActions}>`;
}

/** @param {{ cluster: any, row: import("../core/select.js").ClusterRow }} props */
function Summary({ cluster, row }) {
  const { status = {} } = cluster;
  const joins = !cluster.partial && !cluster.metadata.deletionTimestamp && (condition(cluster, "Registered")?.status !== "True" || row.state.reason === "AwaitingReport");
  const mayEdit = !cluster.partial && mayLabel(row.workspace, row.name);
  return html`<div class="columns">
    <div class="column wide">
      ${cluster.partial && html`<${Note}>You can use this cluster. Its conditions, labels and bindings are visible to users with the right to watch it on the hub.</${Note}>`}
      ${joins && html`<${Card} title="Connect this cluster"><${Joining} made=${cluster} /></${Card}>`}
      ${!cluster.partial && html`<${Conditions} object=${cluster} told=${joins ? row.state.reason : ""} />`}
      <${PlansOf} cluster=${cluster} /><${BaselinesOf} cluster=${cluster} />${joins && html`<${EventsOf} cluster=${cluster} />`}</div>
    <div class="column">
      <${Card} title="Facts"><${Facts} pairs=${[
        ["Kubernetes", [status.version, status.distribution].filter(Boolean).join(" ")],
        ["Nodes", row.nodes && html`<a href=${href(["clusters", row.workspace, row.name, "nodes"])}>${row.nodes.ready} of ${row.nodes.total} ready</a>`],
        ["CPU requested", row.cpu.total > 0 && html`<${Meter} label="CPU requested" ...${row.cpu} unit="cores" />`],
        ["Memory requested", row.memory.total > 0 && html`<${Meter} label="Memory requested" ...${row.memory} unit="bytes" />`],
        ["Last seen", status.lastSeen && html`<${Time} at=${status.lastSeen} ago />`],
        ["Created", row.created && html`<${Time} at=${row.created} ago />`],
        ["On deletion", cluster.spec?.deletionProtection ? "protected" : cluster.spec?.deletionPolicy === "Orphan" && "the agent stays"],
      ]} /></${Card}>
      ${status.agent && html`<${AgentCard} cluster=${cluster} />`}
      ${!cluster.partial && html`<${Card} title="Labels" actions=${mayEdit && html`<button type="button" class="link" onClick=${() => editLabels([row.key])}>Edit labels</button>`}>
        ${row.pairs.length > 0 ? html`<${Labels} pairs=${row.pairs} />` : html`<p class="soft">No labels. Bindings, projects, plans and baselines select clusters by their labels.</p>`}</${Card}>`}</div></div>`;
}

/** @param {{ cluster: any }} props */
function AgentCard({ cluster: { spec = {}, status } }) {
  const { version, replicas = 0, image, wantedImage, upgrade } = status.agent;
  const wanted = spec.agent?.replicas ?? (status.nodes?.total === 1 ? 1 : 2);
  const ends = expires(status.directAuthority);
  return html`<${Card} title="Agent"><${Facts} pairs=${[
    ["Version", version],
    ["Replicas", html`<span class=${replicas < wanted ? "wait" : ""}>${replicas} of ${wanted} connected</span>`],
    ["Image", image && html`<${CopyField} text=${image} what="Image" />`],
    ["Will run", wantedImage && html`<${CopyField} text=${wantedImage} what="Image" />`],
    ["Upgrade", upgrade && html`${upgrade.wave && `Wave ${short(upgrade.wave, 63)}, `}${upgrade.complete ? html`done <${Time} at=${upgrade.complete} ago />` : html`since <${Time} at=${upgrade.since} />`}`],
    ["Profile", spec.agent?.profile !== "Full" && spec.agent?.profile],
    ["Direct access", ends > 0 && html`certificate ${ends < Date.now() ? "expired" : "expires"} <${Time} at=${new Date(ends).toISOString()} ago />`],
  ]} /></${Card}>`;
}

/** Conditions in people's words, problems first and with a remedy. told is a reason that the view tells elsewhere. @param {{ object: any, ready?: [string, string], told?: string }} props */
export function Conditions({ object: shown, ready, told }) {
  const all = explained(shown, ready).filter((c) => c.name === "working" || c.reason !== told);
  if (told && all.length === 0) return null;
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
  return html`<${Card} title="Plans"><${Rows} label="Plans for this cluster" head=${["Plan", "State", "Clusters", "Here"]} rows=${plans.map((plan) => {
    const here = plan.status?.members?.find((/** @type {any} */ m) => m.name === name);
    const state = planState(plan);
    return [html`<a href=${href(["plans", namespace, plan.metadata.name])}>${plan.metadata.name}</a>`, html`<${State} ...${state} />`, plan.status?.clusters?.summary ?? "",
      here ? `${words(here.reason)}${here.nodes ? ", nodes " + here.nodes : ""}${here.message ? ": " + here.message : ""}`.slice(0, 500) : "Done, or nothing to do"];
  })} /></${Card}>`;
}

/** @param {{ cluster: any }} props */
function BaselinesOf({ cluster }) {
  const { name, namespace } = cluster.metadata;
  const baselines = within("baselines", cluster);
  if (baselines.length === 0) return null;
  const away = condition(cluster, "Connected")?.status !== "True";
  return html`<${Card} title="Baselines"><${Rows} label="Baselines of this cluster" head=${["Baseline", "State", "Clusters", "Here"]} rows=${baselines.map((baseline) => {
    const state = baselineState(baseline);
    const { failures = [], clusters } = baseline.status ?? {};
    const here = failures.find((/** @type {any} */ f) => f.cluster === name);
    return [html`<a href=${href(["baselines", namespace, baseline.metadata.name])}>${baseline.metadata.name}</a>`, html`<${State} ...${state} />`, clusters?.summary ?? "",
      here ? `${here.object}: ${here.message}`.slice(0, 500) : away ? "Not connected: keeps what it has" : clusters && clusters.applied === clusters.desired ? "Applied" : "Applied, at work, or waits for its turn"];
  })} /></${Card}>`;
}

/** @param {{ cluster: any }} props */
function Who({ cluster }) {
  const found = inForce(cluster);
  const projects = within("projects", cluster);
  return html`<${Card} title="Who can use this cluster">${found.length > 0
    ? html`<${Rows} label="Bindings that you can see" head=${["Who", "Role", "Where", "Ends"]} rows=${found.map(({ binding, where }) => [
      html`${binding.spec.subject.name} <span class="soft">${binding.spec.subject.kind}</span>`, binding.spec.roleTemplateName, where, html`<${Until} binding=${binding} />`])} />`
    : html`<p class="soft">No binding that you can see gives access to this cluster.</p>`}
    <${Ended} n=${bindingsOf(cluster).length - found.length} />
    <p class="soft">Users with the right to get clusters/proxy on the hub also reach it, and may do there what the cluster’s own RBAC allows. <a href=${href(["access", "why"], { cluster: keyOf(cluster) })}>Why can’t I?</a></p></${Card}>
    <${Card} title="Projects here">${projects.length > 0
    ? html`<${Rows} label="Projects in this cluster" head=${["Project", "State", "Namespaces"]} rows=${projects.map((project) => {
      const state = readyState(project);
      return [html`<a href=${href(["projects", project.metadata.namespace, project.metadata.name])}>${project.metadata.name}</a>`, html`<${State} name=${state.name} word=${state.word} title=${short(state.message)} />`, short((project.spec?.namespaces ?? []).join(", "), 300)];
    })} />` : html`<p class="soft">No project that you can see is in this cluster.</p>`}</${Card}>`;
}

/** @param {{ cluster: any }} props */
function Connect({ cluster }) {
  const { namespace, name } = cluster.metadata;
  const save = () => {
    download(kubeconfig(location.origin, [`${namespace}/${name}`]), `${namespace}-${name}.kubeconfig.yaml`);
    toast("The browser saves the kubeconfig.");
  };
  return html`<${Card} title="kubectl"><p>With kubectl’s plugin for Drover, which signs you in and renews the token:</p><${Command} text=${command`kubectl drover use ${keyOf(cluster)} --hub ${location.origin}`} /></${Card}>
    <${Card} title="As a kubeconfig"><p>For k9s, Lens, Headlamp and others. It contains no credentials: the plugin kubectl-drover gets tokens. If the certificate of this hub is from a private CA, add <code>certificate-authority</code>, or use the command above.</p>
      <p><button type="button" onClick=${save}><${Icon} name="download" />Download the kubeconfig</button></p></${Card}>
    <${Card} title="Address"><p>The address of the cluster’s API, for other clients:</p><${Command} text=${`${location.origin}/k8s/clusters/${namespace}/${name}`} what="Address" /></${Card}>`;
}
