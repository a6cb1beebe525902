// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans: the list, and one Plan with its waves, the Clusters at work, and failures.

import { html } from "../lib/html.js";
import { short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { href } from "../core/router.js";
import { planRows } from "../core/select.js";
import { planState } from "../core/states.js";
import { loaded, object } from "../core/store.js";
import { Card, Empty, Facts, Heading, Loading, Log, Note, State, Waves } from "../ui/parts.js";
import { Rows } from "../ui/table.js";

export function Plans() {
  const all = planRows.value;
  return html`<div class="view"><${Heading} title="Plans" />
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : all.length === 0 ? html`<${Empty} icon="plans" title="There are no Plans that you may watch">A Plan upgrades or changes the nodes of many clusters, wave by wave.</${Empty}>`
      : html`<div class="stack-list">${all.map(({ plan, key, state }) => html`<${PlanCard} key=${key} plan=${plan} state=${state} />`)}</div>`}</div>`;
}

/** @param {{ plan: any, state: any }} props */
function PlanCard({ plan, state }) {
  const { metadata, status = {} } = plan;
  const failures = status.failures?.length ?? 0;
  return html`<article class="card" aria-label=${`Plan ${metadata.namespace}/${metadata.name}`}>
    <div class="card-head"><h2><a href=${href(["plans", metadata.namespace, metadata.name])}>${metadata.name}</a> <span class="soft">${metadata.namespace}</span></h2><${State} ...${state} /></div>
    <p class="message">${short(state.message, 400)}</p>
    <${Waves} waves=${status.waves ?? []} />
    <p class="soft">${[status.latestVersion && `Version ${short(status.latestVersion, 60)}`, status.clusters && `${status.clusters.summary} clusters`, status.nodes && `${status.nodes.summary} nodes`].filter(Boolean).join(" · ")}${failures > 0 && html` · <span class="bad">${failures} failed</span>`}</p></article>`;
}

/** @param {{ params: Record<string, string> }} props */
export function PlanView({ params: { workspace, name } }) {
  const plan = object("plans", `${workspace}/${name}`);
  const above = html`<a href=${href(["plans"])}>Plans</a> <span aria-hidden="true">/</span> ${workspace}`;
  if (!plan) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="plans" title="This Plan is gone, or you may not watch it" />` : html`<${Loading} />`}</div>`;
  const state = planState(plan);
  const { status = {} } = plan;
  const cluster = (/** @type {string} */ n) => html`<a href=${href(["clusters", workspace, n])}>${n}</a>`;
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} ...${state} />`} />
    ${state.name === "broken" && html`<${Note} name="broken">${short(state.message, 1000)}</${Note}>`}
    <${Card} title="Waves"><${Waves} waves=${status.waves ?? []} />${state.name !== "broken" && html`<p class="soft">${short(state.message, 1000)}</p>`}</${Card}>
    <div class="columns"><div class="column wide">
      <${Card} title=${`In progress or waiting: ${status.members?.length ?? 0}`}>${status.members?.length > 0 ? html`<${Rows} label="Clusters that are not done" head=${["Cluster", "Wave", "Nodes", "Why", "Since"]}
        rows=${status.members.map((/** @type {any} */ m) => [cluster(m.name), m.wave, m.nodes ?? "", short(m.message ? `${m.reason}: ${m.message}` : m.reason, 500), html`<${Time} at=${m.since} />`])} />` : html`<p class="soft">No cluster is at work.</p>`}</${Card}>
      <${Card} title=${`Failures: ${status.failures?.length ?? 0}`}>${status.failures?.length > 0 ? html`<ul class="list failures">${status.failures.map((/** @type {any} */ f) => html`
        <li key=${f.cluster + "/" + f.node}><p>${cluster(f.cluster)} <span class="soft">node</span> <b>${f.node}</b>: ${short(`${f.reason}: ${f.message}`, 500)}</p>${f.log && html`<${Log} text=${f.log} label=${`Last lines on ${f.node}`} />`}</li>`)}</ul>` : html`<p class="soft">No node has failed.</p>`}</${Card}></div>
      <div class="column"><${Card} title="Facts"><${Facts} pairs=${[["Version", status.latestVersion], ["Clusters", status.clusters?.summary], ["Nodes", status.nodes?.summary], ["Created", plan.metadata.creationTimestamp && html`<${Time} at=${plan.metadata.creationTimestamp} ago />`]]} /></${Card}></div></div></div>`;
}
