// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Hosts: machines with an agent, their state, and the reason; one Host; and, where these kinds are installed,
// ClusterInstallations and snapshots of etcd.

import { html, signal, useMemo, useState } from "../lib/html.js";
import { bytes, quantity } from "../lib/quantity.js";
import { count, own, short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { call, create } from "../core/api.js";
import { listIn, mayAnywhere, places } from "../core/rights.js";
import { href, param, setQuery } from "../core/router.js";
import { hostState, readyState } from "../core/states.js";
import { derived, keyOf, loaded, object, objects } from "../core/store.js";
import { DialogActions, openDialog } from "../ui/dialog.js";
import { Field, Search } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Card, CopyField, Empty, Facts, Heading, Labels, Loading, Log, Meter, Note, Problem, State, Tabs, useFetch } from "../ui/parts.js";
import { Table } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { Conditions } from "./cluster.js";
import { ManifestButton } from "./manifest.js";

const rows = derived(() => [...objects("hosts").values()].map((host) => {
  const { machine = {} } = host.status ?? {};
  const state = hostState(host);
  return { key: keyOf(host), name: host.metadata.name, host, state, text: [keyOf(host), state.word, state.message, machine.os, machine.architecture, machine.hostname, ...(machine.addresses ?? []), ...Object.entries(host.metadata.labels ?? {}).map((pair) => pair.join("="))].join(" ").toLowerCase() };
}).sort((a, b) => (a.key < b.key ? -1 : 1)));

/** @typedef {typeof rows.value[number]} HostRow */

const why = (/** @type {Pick<HostRow, "host" | "state">} */ { host, state }) => short([host.status?.conditions?.find((/** @type {any} */ c) => c.type === "Ready")?.reason ?? "Pending", state.message].filter(Boolean).join(": "), 300);

/** @type {import("../ui/table.js").Column<HostRow>[]} */
const columns = [
  { id: "name", title: "Host", cell: (r) => r.key, sort: (r) => r.key, width: "18%" },
  { id: "state", title: "State", cell: (r) => html`<${State} name=${r.state.name} word=${r.state.word} />`, sort: (r) => r.state.word, width: "6.75rem" },
  { id: "why", title: "Why", cell: (r) => html`<span title=${why(r)}>${why(r)}</span>${r.host.status?.plan?.output && html` <button type="button" class="link" onClick=${() => openDialog(r.key, LastLines, { host: r.key })}>Last lines</button>`}` },
  { id: "consumer", title: "Used by", cell: (r) => r.host.spec?.consumerRef?.name ?? html`<span class="soft">free</span>`, sort: (r) => r.host.spec?.consumerRef?.name ?? "", width: "6.5rem" },
  { id: "system", title: "System", cell: (r) => [r.host.status?.machine?.os, r.host.status?.machine?.architecture].filter(Boolean).join(", "), width: "8.75rem" },
  { id: "seen", title: "Seen", cell: (r) => (r.host.status?.lastSeen ? html`<${Time} at=${r.host.status.lastSeen} ago />` : r.host.status?.machine ? "now" : "never"), sort: (r) => r.host.status?.lastSeen ?? "", width: "5.5rem" },
];

/** @param {{ host: string }} props */
function LastLines({ host: key }) {
  const host = object("hosts", key); // as it is now: the dialog stays open while the host works
  if (!host) return html`<div class="dialog-body"><p>This host is gone.</p></div>`;
  const state = hostState(host);
  const { output } = host.status?.plan ?? {};
  return html`<div class="dialog-body">${state.held && html`<${Note} name="broken">${state.held.reason}: ${state.held.message}</${Note}>`}
    <${Facts} pairs=${[["State", state.word], ["Why", why({ host, state })]]} />${output ? html`<${Log} text=${output} label="Last lines" />` : html`<p class="soft">The host has sent no lines.</p>`}</div>`;
}

const provision = { group: "provision.cluster.drover.dev", version: "v1" };

/** @type {Promise<boolean> | undefined} */
let installed; // whether the hub has the kinds of the provisioner

const hasProvisioner = () => installed ??= call("GET", "/k8s/local/apis").then((all) => (all.groups ?? []).some((/** @type {any} */ g) => g.name === provision.group), (problem) => {
  installed = undefined;
  throw problem;
});

const tabs = [{ id: "machines", title: "Hosts" }, { id: "installations", title: "Installations" }, { id: "snapshots", title: "Snapshots of etcd" }];

/** @param {{ params: Record<string, string> }} props */
export function Hosts({ params: { tab = "machines" } }) {
  const { value: more, error, retry } = useFetch(hasProvisioner, []);
  const Body = own(/** @type {Record<string, any>} */ ({ installations: Installations, snapshots: Snapshots }), tab) ?? Machines;
  return html`<div class="view fill"><${Heading} title="Hosts" beside=${tab === "machines" && loaded.value && html`<span class="soft">${count(rows.value.length, "host")}</span>`}>${more && tab === "snapshots" && html`<${TakeButton} />`}</${Heading}>
    ${error && ![401, 403, 404].includes(error.status) && html`<${Problem} title="Installations and snapshots cannot be shown." error=${error} retry=${retry} />`}
    ${more && html`<${Tabs} label="Kinds" tabs=${tabs} current=${tab} path=${["hosts"]} />`}<${Body} /></div>`;
}

function Machines() {
  const all = rows.value;
  const [query, sort] = [param("q"), param("sort")];
  const found = useMemo(() => all.filter((r) => query.toLowerCase().split(/\s+/).every((word) => r.text.includes(word))), [all, query]);
  const empty = all.length === 0 ? html`<${Empty} icon="hosts" title="There are no hosts that you can see">A host is a machine with Drover’s host agent.</${Empty}>` : html`<${Empty} title="No host matches"><button type="button" onClick=${() => setQuery({ q: "" })}>Clear the search</button></${Empty}>`;
  return !loaded.value && all.length === 0 ? html`<${Loading} />` : html`${all.length > 0 && html`<div class="toolbar"><${Search} label="Search by name, state, system, address or label" value=${query} onInput=${(/** @type {string} */ q) => setQuery({ q })} /></div>`}
    <${Table} id="hosts" label="Machines with an agent" rows=${found} columns=${columns} href=${(/** @type {HostRow} */ r) => href(["hosts", r.host.metadata.namespace, r.name])} sort=${sort} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} query=${query} empty=${empty} />`;
}

/** @param {{ params: Record<string, string> }} props */
export function HostView({ params: { workspace, name } }) {
  const host = object("hosts", `${workspace}/${name}`);
  const above = html`<a href=${href(["hosts"])}>Hosts</a> <span aria-hidden="true">/</span> ${workspace}`;
  if (!host) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="hosts" title="This host is gone, or you may not see it"><a href=${href(["hosts"])}>All hosts</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const state = hostState(host);
  const { status = {}, spec = {}, metadata } = host;
  const { machine = {}, plan } = status;
  const labels = Object.entries(metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} name=${state.name} word=${state.word} />`}><${ManifestButton} resource="hosts" namespace=${workspace} name=${name} /></${Heading}>
    ${state.held && html`<${Note} name="broken">${state.held.reason}: ${state.held.message}</${Note}>`}
    <div class="columns"><div class="column wide"><${Conditions} object=${host} ready=${["The host follows its instructions", "The host does not follow its instructions"]} />
      ${plan && html`<${Card} title="Instructions">${plan.total > 0 && html`<${Meter} label="Instructions done" used=${plan.done} total=${plan.total} unit="" word="done" />`}${(plan.version || plan.instruction || plan.failing) && html`<${Facts} pairs=${[["Version", plan.version], ["Now", plan.instruction], ["Failing probes", plan.failing?.join(", ")]]} />`}
        ${plan.output && html`<${Log} text=${plan.output} label="Last lines" />`}</${Card}>`}</div>
    <div class="column"><${Card} title="Machine"><${Facts} pairs=${[["Name", machine.hostname], ["System", [machine.os, machine.architecture].filter(Boolean).join(", ")], ["Kernel", machine.kernel], ["CPUs", machine.cpus], ["Memory", machine.memory && bytes(quantity(machine.memory))],
      ["Addresses", machine.addresses?.length > 0 && html`<ul class="plain">${machine.addresses.slice(0, 20).map((/** @type {string} */ a) => html`<li><${CopyField} text=${a} what="Address" /></li>`)}</ul>`], ["Roles", machine.roles?.join(", ")], ["Taints", machine.taints?.length > 0 && html`<${Labels} pairs=${machine.taints} />`],
      ["Used by", spec.consumerRef && `${spec.consumerRef.kind} ${spec.consumerRef.name}`], ["Agent", status.agentVersion], ["Last seen", status.lastSeen && html`<${Time} at=${status.lastSeen} ago />`], ["Created", metadata.creationTimestamp && html`<${Time} at=${metadata.creationTimestamp} ago />`], ["Labels", labels.length > 0 && html`<${Labels} pairs=${labels} />`]]} /></${Card}></div></div></div>`;
}

/** Objects that are not in the stream: they are listed on demand. @param {{ resource: string, columns: any[], label: string, empty: any, from: (object: any) => any }} props */
function Listed({ resource, columns: shown, label, empty, from }) {
  const where = places({ verb: "list", group: provision.group, resource });
  if (!where) return html`<${Loading} />`;
  if (where.namespaces.length === 0) return html`<${Empty} icon="hosts" title=${`You may not list ${label.charAt(0).toLowerCase()}${label.slice(1)}`}>An administrator of a workspace can give you the right.</${Empty}>`;
  return html`<${List} namespaces=${where.namespaces} more=${where.cut} resource=${resource} columns=${shown} label=${label} empty=${empty} from=${from} />`;
}

/** @param {{ namespaces: (string | undefined)[], more: boolean, resource: string, columns: any[], label: string, empty: any, from: (object: any) => any }} props */
function List({ namespaces, more, resource, columns: shown, label, empty, from }) {
  const { value, error, loading, retry } = useFetch((signal) => listIn(namespaces, { ...provision, resource }, { signal }), [resource, namespaces.join(), changes.value]);
  const found = useMemo(() => (value?.items ?? []).map((/** @type {any} */ o) => ({ key: keyOf(o), name: o.metadata.name, object: o, ...from(o) })), [value]);
  if (error) return html`<${Problem} title=${`${label} cannot be shown.`} error=${error} retry=${retry} />`;
  if (!value) return loading && html`<${Loading} />`;
  return html`<div class="toolbar"><span class="soft">This list does not change by itself.${value.cut && " It is longer than the hub lists at once."}${more && " It has the objects of some workspaces only."}</span><button type="button" onClick=${retry}><${Icon} name="again" />Refresh</button></div>
    <${Table} id=${resource} label=${label} rows=${found} columns=${shown} sort=${param("sort")} onSort=${(/** @type {string} */ s) => setQuery({ sort: s })} empty=${empty} />`;
}

const changes = signal(0); // how many objects this page has created

/** @type {import("../ui/table.js").Column<any>[]} */
const installationColumns = [
  { id: "name", title: "Installation", cell: (r) => html`<span title=${r.key}>${r.key}</span>`, sort: (r) => r.key, width: "24%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} />`, sort: (r) => r.state.name, width: "12rem" },
  { id: "cluster", title: "Cluster", cell: ({ object: o }) => html`<a href=${href(["clusters", o.metadata.namespace, o.spec.clusterName])}>${o.spec.clusterName}</a>`, sort: (r) => r.object.spec.clusterName, width: "8rem" },
  { id: "version", title: "Version", cell: ({ object: o }) => `${o.spec.distribution} ${o.spec.version}`, sort: (r) => r.object.spec.version, width: "11rem" },
  { id: "hosts", title: "Hosts", cell: ({ object: o }) => o.status?.summary ?? "–", width: "6rem", end: true },
  { id: "why", title: "Waiting for", cell: ({ object: o, state }) => short(o.status?.waiting?.length > 0 ? o.status.waiting.map((/** @type {any} */ w) => `${w.host}: ${w.message}`).join("; ") : state.name === "working" ? "" : state.message, 300) },
];

const Installations = () => html`<${Listed} resource="clusterinstallations" label="Installations" columns=${installationColumns} from=${(/** @type {any} */ o) => ({ state: readyState(o) })}
  empty=${html`<${Empty} icon="hosts" title="There are no installations">A ClusterInstallation installs K3s or RKE2 on hosts.</${Empty}>`} />`;

/** @type {Record<string, import("../core/states.js").StateName>} */
const phases = { Succeeded: "working", Failed: "broken" };

/** @type {import("../ui/table.js").Column<any>[]} */
const snapshotColumns = [
  { id: "name", title: "Snapshot", cell: (r) => html`<span title=${r.key}>${r.key}</span>`, sort: (r) => r.key, width: "28%" },
  { id: "state", title: "State", cell: (r) => html`<${State} ...${r.state} />`, sort: (r) => r.state.word, width: "8rem" },
  { id: "cluster", title: "Of", cell: ({ object: o }) => html`<span title=${o.spec.clusterRef.kind}>${o.spec.clusterRef.name}</span>`, sort: (r) => r.object.spec.clusterRef.name },
  { id: "where", title: "Where", cell: ({ object: o }) => (o.status?.s3 ? `s3://${o.status.s3.bucket}/${o.status.s3.key}` : [o.status?.host, o.status?.snapshot].filter(Boolean).join(": ")) },
  { id: "age", title: "Taken", cell: ({ object: o }) => html`<${Time} at=${o.metadata.creationTimestamp} ago />`, sort: (r) => r.object.metadata.creationTimestamp ?? "", width: "6.5rem" },
  { id: "why", title: "Message", cell: (r) => short(r.state.message, 300) },
];

const Snapshots = () => html`<${Listed} resource="etcdsnapshots" label="Snapshots of etcd" columns=${snapshotColumns} from=${(/** @type {any} */ o) => ({ state: { ...readyState(o), name: own(phases, o.status?.phase) ?? "waiting", word: o.status?.phase ?? "Pending" } })}
  empty=${html`<${Empty} icon="clock" title="There are no snapshots">Take one before a risky change, or set spec.etcd.schedule of the ClusterInstallation.</${Empty}>`} />`;

const taking = { verb: "create", group: provision.group, resource: "etcdsnapshots" };

function TakeButton() {
  return mayAnywhere(taking) ? html`<button type="button" class="primary" onClick=${() => openDialog("Take a snapshot of etcd", Take)}><${Icon} name="plus" />Take a snapshot</button>` : null;
}

/** @param {{ close: () => void }} props */
function Take({ close }) {
  const where = places({ verb: "list", group: provision.group, resource: "clusterinstallations" });
  const into = places(taking);
  const { value, error: unknown } = useFetch(async (signal) => where && listIn(where.namespaces, { ...provision, resource: "clusterinstallations" }, { signal }), [where?.namespaces.join()]);
  const [chosen, choose] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const keys = (value?.items ?? []).filter((o) => into?.namespaces.some((namespace) => !namespace || namespace === o.metadata.namespace)).map(keyOf).sort();
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setError(null);
    const [namespace, installation] = chosen.split("/");
    const name = `${installation.slice(0, 40)}-${new Date().toISOString().replace(/\D/g, "").slice(0, 14)}`;
    try {
      await create({ ...provision, resource: "etcdsnapshots", namespace }, { apiVersion: "provision.cluster.drover.dev/v1", kind: "EtcdSnapshot", metadata: { namespace, name }, spec: { clusterRef: { kind: "ClusterInstallation", name: installation } } });
      changes.value++;
      toast(`The snapshot ${name} is being taken. Refresh the list to see its state.`);
      close();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<form onSubmit=${submit}><div class="dialog-body"><${Field} label="Installation" required data-focus value=${chosen} onChange=${(/** @type {any} */ e) => choose(e.target.value)} options=${[{ value: "", label: "Choose one" }, ...keys]} />
    ${(error || unknown) && html`<${Problem} title=${error && "The snapshot was not taken."} error=${error ?? unknown} />`}</div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary">Take</button></${DialogActions}></form>`;
}
