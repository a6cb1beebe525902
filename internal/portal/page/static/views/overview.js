// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The fleet at one glance: problems, current work, and tasks for the user.

import { html } from "../lib/html.js";
import { count, digits, short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { href } from "../core/router.js";
import { baselineRows, bindings, certificates, clusterRows, fleet, planRows, tally } from "../core/select.js";
import { loaded } from "../core/store.js";
import { Mark } from "../ui/icons.js";
import { Bar, Card, Empty, Heading, Loading, Meter, State, Waves } from "../ui/parts.js";
import { RecentEvents } from "./events.js";
import { endsSoon } from "./grant.js";

/** @type {[import("../core/states.js").StateName, string][]} */
const words = [["broken", "Broken"], ["waiting", "Waiting"], ["working", "Working"]];

export function Overview() {
  const { total, states, nodes, cpu, memory, outdated } = fleet.value;
  if (!loaded.value && total === 0) return html`<div class="view"><${Heading} title="Overview" /><${Loading} label="Loading the fleet" /></div>`;
  const verdict = total === 0 ? "No cluster yet" : states.broken > 0 ? `${count(states.broken, "cluster")} broken` : states.waiting > 0 ? "Nothing is broken" : "All clusters work";
  return html`<div class="view"><${Heading} title="Overview" beside=${html`<span class=${"verdict " + (states.broken > 0 ? "broken" : "working")}><${Mark} name=${states.broken > 0 ? "broken" : "working"} />${verdict}</span>`} />
    <div class="figures"><${Card} class="figure-card wide" title="Clusters">
        <div class="figure-line"><a class="figure" href=${href(["clusters"])}>${digits(total)}</a><ul class="legend">${words.map(([name, word]) => html`<li><a href=${href(["clusters"], { state: name })}><${Mark} name=${name} />${word} <b>${digits(states[name])}</b></a></li>`)}</ul></div>
        <${Bar} label="Clusters by state" parts=${words.map(([name, word]) => ({ name, word, n: states[name] }))} /></${Card}>
      <${Figure} title="Nodes" value=${digits(nodes.total)} about=${nodes.total === 0 ? "none is known" : nodes.ready < nodes.total ? html`<span class="bad">${nodes.total - nodes.ready} not ready</span>` : "all ready"} />
      <${Figure} title="CPU requested" value=${cpu.total ? `${Math.round((cpu.used / cpu.total) * 100)} %` : "–"} about=${html`<${Meter} label="CPU requested" ...${cpu} unit="cores" />`} />
      <${Figure} title="Memory requested" value=${memory.total ? `${Math.round((memory.used / memory.total) * 100)} %` : "–"} about=${html`<${Meter} label="Memory requested" ...${memory} unit="bytes" />`} /></div>
    <div class="columns even"><div class="column"><${Attention} outdated=${outdated} /></div><div class="column"><${Work} /></div><div class="column"><${Versions} /></div></div>
    <${RecentEvents} show=${4} /></div>`;
}

/** @param {{ title: string, value: string, about: any }} props */
const Figure = ({ title, value, about }) => html`<${Card} class="figure-card" title=${title}><p class="figure">${value}</p><div class="soft">${about}</div></${Card}>`;

/** @param {{ outdated: number }} props */
function Attention({ outdated }) {
  const wrong = clusterRows.value.filter((row) => row.state.name === "broken");
  const shown = wrong.slice(0, 4);
  const soon = bindings.value.filter(endsSoon);
  const certs = certificates.value;
  const calm = wrong.length + outdated + soon.length + certs.length === 0;
  return html`<${Card} title="Needs attention">${calm ? html`<${Empty} icon="check" title="Nothing needs attention" />` : html`<ul class="list">
    ${shown.map((row) => html`<li key=${row.key}><a class="item" href=${href(["clusters", row.workspace, row.name])}><${Mark} name="broken" /><span class="item-main"><strong>${row.name}</strong> <span class="soft">${row.workspace}</span><br />${row.state.word}</span><span class="soft"><${Time} at=${row.state.since} /></span></a></li>`)}
    ${wrong.length > shown.length && html`<li><a class="item more" href=${href(["clusters"], { state: "broken" })}>${count(wrong.length - shown.length, "more broken cluster")}</a></li>`}
    ${outdated > 0 && html`<li><a class="item" href=${href(["clusters"], { state: "outdated" })}><${Mark} name="waiting" /><span class="item-main">${count(outdated, "agent")} not up to date</span></a></li>`}
    ${soon.length > 0 && html`<li><a class="item" href=${href(["access"], { ends: "soon" })}><${Mark} name="waiting" /><span class="item-main">${count(soon.length, "binding")} ${soon.length === 1 ? "ends" : "end"} within a week</span></a></li>`}
    ${certs.slice(0, 1).map(({ row, at }) => html`<li key=${"certificate " + row.key}><a class="item" href=${href(["clusters", row.workspace, row.name])}><${Mark} name=${at < Date.now() ? "broken" : "waiting"} /><span class="item-main"><strong>${row.name}</strong> <span class="soft">${row.workspace}</span><br />The certificate for direct access ${at < Date.now() ? "has expired" : "expires"}</span><span class="soft"><${Time} at=${new Date(at).toISOString()} /></span></a></li>`)}
    ${certs.length > 1 && html`<li><a class="item more" href=${href(["clusters"], { state: "expiring" })}>${count(certs.length - 1, "more certificate")}</a></li>`}</ul>`}</${Card}>`;
}

function Work() {
  const [active, kept] = [planRows, baselineRows].map((rows) => rows.value.filter(({ state }) => state.name !== "working"));
  const waiting = clusterRows.value.filter((row) => row.state.name === "waiting");
  const [plans, clusters] = [active.slice(0, 4), waiting.slice(0, 5)];
  return html`<${Card} title="Happening now">${active.length + kept.length + waiting.length === 0 ? html`<${Empty} icon="plans" title="Nothing is happening" />` : html`<ul class="list">
    ${[...plans, ...kept.slice(0, 2)].map(({ kind, object: { metadata, status }, key, state }) => html`<li key=${kind + key}><a class="item block" href=${href([kind, metadata.namespace, metadata.name])}><span class="item-line"><strong>${metadata.name}</strong> <span class="soft">${metadata.namespace}</span><${State} ...${state} /></span></a><${Waves} waves=${status?.waves ?? []} /></li>`)}
    ${active.length > plans.length && html`<li><a class="item more" href=${href(["plans"], { state: "active" })}>${count(active.length - plans.length, "more plan")}</a></li>`}
    ${kept.length > 2 && html`<li><a class="item more" href=${href(["baselines"], { state: "active" })}>${count(kept.length - 2, "more baseline")}</a></li>`}
    ${clusters.map((row) => html`<li key=${row.key}><a class="item" href=${href(["clusters", row.workspace, row.name])}><${Mark} name="waiting" /><span class="item-main"><strong>${row.name}</strong> <span class="soft">${row.workspace}</span><br />${row.state.word}</span><span class="soft"><${Time} at=${row.state.since} /></span></a></li>`)}
    ${waiting.length > clusters.length && html`<li><a class="item more" href=${href(["clusters"], { state: "waiting" })}>${count(waiting.length - clusters.length, "more waiting cluster")}</a></li>`}</ul>`}</${Card}>`;
}

/** @param {{ label: string, group: string, list: { key: string, n: number }[], total: number, most?: number }} props */
const Shares = ({ label, group, list, total, most = 6 }) => html`<h3>${label}</h3><ul class="shares" aria-label=${label}>${list.slice(0, most).map(({ key, n }) => html`<li><a href=${href(["clusters"], key ? { q: key } : { group })}><span class="share-name">${short(key, 40) || "unknown"}</span><span class="bar"><span style=${{ width: `${(n / total) * 100}%` }}></span></span><span class="number">${digits(n)}</span></a></li>`)}
  ${list.length > most && html`<li><a href=${href(["clusters"], { group })}>${`${list.length - most} more`}</a></li>`}</ul>`;

function Versions() {
  const rows = clusterRows.value.filter((row) => row.version);
  if (rows.length === 0) return html`<${Card} title="Versions"><${Empty} icon="tag" title="No version is known yet" /></${Card}>`;
  return html`<${Card} title="Versions"><${Shares} label="Kubernetes" group="version" list=${tally(rows, (r) => r.version)} total=${rows.length} /><${Shares} label="Distributions" group="distribution" list=${tally(rows, (r) => r.distribution)} total=${rows.length} most=${5} /></${Card}>`;
}
