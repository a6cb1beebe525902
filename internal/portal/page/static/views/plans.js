// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Plans: the list, and one Plan with its waves as a timeline, the members and nodes at work, and failures. Baselines share
// the list, the timeline and the question about a pause.

import { classes, html } from "../lib/html.js";
import { count, short, words } from "../lib/text.js";
import { Time, exact } from "../lib/time.js";
import { place } from "../core/access.js";
import { may } from "../core/rights.js";
import { hasFailed, retry, setPaused } from "../core/retry.js";
import { href, param, setQuery } from "../core/router.js";
import { planRows } from "../core/select.js";
import { planState } from "../core/states.js";
import { loaded, object } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { confirm } from "../ui/dialog.js";
import { Icon, Mark } from "../ui/icons.js";
import { Card, Empty, Facts, Heading, Loading, Log, Note, State, Waves } from "../ui/parts.js";
import { toast } from "../ui/toast.js";
import { Conditions } from "./cluster.js";
import { ManifestButton } from "./manifest.js";

const most = 200; // objects of the list

export const Plans = () => html`<${Rolled} all=${planRows.value} title="Plans" noun="plan" card=${PlanCard}>A plan upgrades or changes the nodes of many clusters, wave by wave.</${Rolled}>`;

/** A list of objects that are rolled out. @param {{ all: any[], title: string, noun: string, card: any, children: any }} props */
export function Rolled({ all, title, noun, card: RolledCard, children }) {
  const only = param("state");
  const is = (/** @type {string} */ name, /** @type {string} */ wanted) => !wanted || name === wanted || (wanted === "active" && name !== "working");
  const shown = all.filter(({ state }) => is(state.name, only));
  const chips = [["", "All"], ["active", "Not done"], ["broken", "Failed"], ["waiting", "At work"], ["working", "Done"]];
  return html`<div class="view"><${Heading} title=${title} beside=${loaded.value && html`<span class="soft">${count(all.length, noun)}</span>`} />
    ${all.length > 0 && html`<div class="chips" role="group" aria-label="State">${chips.map(([value, label]) => html`<button type="button" class=${"chip " + value} aria-pressed=${String(only === value)} onClick=${() => setQuery({ state: value })}>${label} <span class="number">${all.filter(({ state }) => is(state.name, value)).length}</span></button>`)}</div>`}
    ${!loaded.value && all.length === 0 ? html`<${Loading} />` : all.length === 0 ? html`<${Empty} icon=${noun + "s"} title=${`There are no ${noun}s that you can see`}>${children}</${Empty}>`
      : shown.length === 0 ? html`<${Empty} title=${`No ${noun} matches`}><button type="button" onClick=${() => setQuery({ state: "" })}>Show all ${noun}s</button></${Empty}>` : html`<div class="stack-list">${shown.slice(0, most).map(({ object: each, key, state }) => html`<${RolledCard} key=${key} object=${each} state=${state} />`)}</div>${shown.length > most && html`<p class="soft">${`And ${count(shown.length - most, `more ${noun}`)}.`}</p>`}`}</div>`;
}

/** @param {{ object: any, state: any }} props */
function PlanCard({ object: plan, state }) {
  const { metadata, status = {} } = plan;
  const failures = status.failures?.length ?? 0;
  return html`<article class="card" aria-label=${`Plan ${metadata.namespace}/${metadata.name}`}>
    <div class="card-head"><h2><a href=${href(["plans", metadata.namespace, metadata.name])}>${metadata.name}</a> <span class="soft">${metadata.namespace}</span></h2><${State} ...${shownState(plan, state)} /></div>
    <p class="message">${short(state.message, 400)}</p>
    <${Waves} waves=${status.waves ?? []} />
    <p class="soft">${[status.latestVersion && `Version ${short(status.latestVersion, 60)}`, status.clusters && `${status.clusters.summary} clusters`, status.nodes && `${status.nodes.summary} nodes`].filter(Boolean).join(" · ")}${failures > 0 && html` · <span class="bad">${failures} failed</span>`}</p></article>`;
}

export const shownState = (/** @type {any} */ plan, /** @type {any} */ state) => (plan.spec?.paused && state.name !== "working" ? { ...state, word: "Paused" } : state);

/** @param {any} plan @param {boolean} paused */
export function askPause(plan, paused, resource = "plans", starts = "The plan starts nothing new: no cluster, no node and no further attempt. Nodes at work finish.", goesOn = "The plan goes on, and tries failed nodes again.") {
  const { name } = plan.metadata;
  confirm({
    title: paused ? `Pause ${name}?` : `Resume ${name}?`, action: paused ? "Pause" : "Resume",
    text: html`<p>${paused ? starts : goesOn}</p>`,
    run: async () => { await setPaused(plan, paused, resource); toast(`${name} ${paused ? "starts nothing new" : "goes on"}.`); },
  });
}

/** @param {any} plan */
function askRetry(plan) {
  const { name } = plan.metadata;
  confirm({
    title: `Try the failed nodes of ${name} again?`, action: "Try again",
    text: html`<p>The plan is paused until clusters with failures have noticed, for at most 30 seconds, and then resumed. Failed nodes get all their attempts again; complete nodes keep their result.</p><p class="soft">Keep this page open meanwhile, and do not pause the plan.</p>`,
    run: async () => {
      const left = await retry(plan);
      if (left.length > 0) toast(`These failures stay: ${left.join("; ")}`, "broken");
      else toast(`The failed nodes of ${name} are tried again.`);
    },
  });
}

/** @param {{ params: Record<string, string> }} props */
export function PlanView({ params: { workspace, name } }) {
  const plan = object("plans", `${workspace}/${name}`);
  const above = html`<a href=${href(["plans"])}>Plans</a> <span aria-hidden="true">/</span> ${workspace}`;
  const changes = plan && may({ verb: "patch", resource: "plans", namespace: workspace, name });
  const paused = Boolean(plan?.spec?.paused);
  useCommands(changes ? [{ id: "pause", title: `${paused ? "Resume" : "Pause"} ${name}`, icon: paused ? "play" : "pause", run: () => askPause(plan, !paused) }] : [], [changes, plan]);
  if (!plan) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="plans" title="This plan is gone, or you may not see it"><a href=${href(["plans"])}>All plans</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const state = planState(plan);
  const { spec = {}, status = {}, metadata } = plan;
  const { window: hours, rollout = {} } = spec;
  const failures = status.failures ?? [];
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} ...${shownState(plan, state)} />`}>
      ${changes && hasFailed(plan) && !paused && html`<button type="button" onClick=${() => askRetry(plan)}><${Icon} name="plans" />Try failed nodes again</button>`}
      ${changes && html`<button type="button" class=${paused ? "primary" : ""} onClick=${() => askPause(plan, !paused)}><${Icon} name=${paused ? "play" : "pause"} />${paused ? "Resume" : "Pause"}</button>`}
      <${ManifestButton} resource="plans" namespace=${workspace} name=${name} /></${Heading}>
    ${state.name === "broken" && html`<${Note} name="broken">${short(state.message, 1000)}</${Note}>`}
    ${paused && html`<${Note}>This plan is paused and starts nothing new.</${Note}>`}
    <div class="columns"><div class="column wide">
      <${Card} title="Waves">${state.name !== "broken" && state.message && html`<p class="soft message">${short(state.message, 1000)}</p>`}<${Timeline} plan=${plan} /></${Card}>
      <${Card} title=${`Failures: ${failures.length}`}>${failures.length > 0 ? html`<ul class="list failures">${failures.map((/** @type {any} */ f) => html`
        <li key=${f.cluster + "/" + f.node}><p><${Member} workspace=${workspace} name=${f.cluster} /> <span class="soft">node</span> <b>${f.node}</b>${f.attempt > 0 && html` <span class="soft">${f.final === false ? `attempt ${f.attempt}, tried again` : `after ${count(f.attempt, "attempt")}`}</span>`} <span class="soft"><${Time} at=${f.at} ago /></span></p>
          <p class="message"><b>${words(f.reason)}:</b> ${short(f.message, 500)}</p>${f.log && html`<${Log} text=${f.log} label=${`Last lines on ${f.node}`} />`}</li>`)}</ul>` : html`<p class="soft">No node has failed.</p>`}</${Card}></div>
      <div class="column"><${Card} title="Facts"><${Facts} pairs=${[["Version", status.latestVersion], ["Clusters", status.clusters?.summary], ["Nodes", status.nodes?.summary],
        ["For", spec.clusterName || spec.clusterSelector ? place(spec) : undefined], ["Nodes at once in a cluster", spec.concurrency], ["Clusters at once", rollout.maxConcurrentClusters], ["Stops after", rollout.maxFailedClusters > 0 ? `more than ${count(rollout.maxFailedClusters, "failed cluster")}` : "the first failed cluster"],
        ["Window", hours && [hours.days?.join(", "), [hours.startTime, hours.endTime].filter(Boolean).join("–"), hours.timeZone].filter(Boolean).join(" ")], ["Channel", spec.channel],
        ["Created", metadata.creationTimestamp && html`<${Time} at=${metadata.creationTimestamp} ago />`]]} /></${Card}><${Conditions} object=${plan} ready=${["The plan is carried out", "The plan is not carried out yet"]} /></div></div></div>`;
}

export const Member = (/** @type {{ workspace: string, name: string }} */ { workspace, name }) => (name ? html`<a href=${href(["clusters", workspace, name])}>${name}</a>` : null);

const failedReasons = new Set(["NodeFailed", "MemberLost", "TooManyFailures", "DeliveryFailed", "IdentityMismatch"]);

/** Waves from the first to the last, each with its members that are not done, and their nodes. @param {{ plan: any }} props */
export function Timeline({ plan }) {
  const { status = {}, spec = {}, metadata } = plan;
  const waves = status.waves?.length > 0 ? status.waves : status.clusters ? [{ name: "", clusters: status.clusters }] : [];
  if (waves.length === 0) return html`<p class="soft">Drover has not looked at it yet.</p>`;
  const first = waves.findIndex((/** @type {any} */ w) => w.clusters.complete < w.clusters.total);
  return html`<ol class="timeline">${waves.map((/** @type {any} */ wave, /** @type {number} */ i) => {
    const { clusters, soakUntil } = wave;
    const soaks = soakUntil && Date.parse(soakUntil) > Date.now();
    const name = clusters.failed > 0 ? "broken" : clusters.complete === clusters.total && !soaks ? "working" : clusters.complete + clusters.applying > 0 || i === first || soaks ? "waiting" : "idle";
    const title = wave.name || "All clusters";
    const soak = spec.rollout?.waves?.find((/** @type {any} */ w) => w.name === wave.name)?.soak;
    const members = (status.members ?? []).filter((/** @type {any} */ m) => !wave.name || m.wave === wave.name);
    return html`<li class=${name} key=${title} aria-current=${i === first ? "step" : undefined}><${Mark} name=${name === "idle" ? "waiting" : name} /><div class="wave-body">
      <p class="wave-line"><strong>${title}</strong> <span class="soft">${[`${clusters.summary} clusters`, clusters.applying > 0 && `${clusters.applying} at work`, clusters.held > 0 && `${clusters.held} held`, clusters.leftOut > 0 && `${clusters.leftOut} left out`].filter(Boolean).join(" · ")}</span>${clusters.failed > 0 && html` <b class="bad">${clusters.failed} failed</b>`}</p>
      <progress class=${clusters.failed > 0 ? "failed" : ""} aria-label=${`${wave.name || title}: ${clusters.summary}${clusters.failed > 0 ? `, ${clusters.failed} failed` : ""}`} max=${Math.max(clusters.total, 1)} value=${clusters.complete}></progress>
      ${soaks ? html`<p class="soft">Soaks until ${exact(soakUntil)}, <${Time} at=${soakUntil} /></p>` : soak && name === "idle" && html`<p class="soft">Soaks for ${soak} before the next wave</p>`}
      ${wave.approval && html`<p class="soft">${wave.approval.approvedBy ? `Approved by ${short(wave.approval.approvedBy, 100)}` : "Not approved yet"}</p>`}
      ${members.length > 0 && html`<ul class="members" aria-label=${`Clusters of ${title} that are not done`}>${members.map((/** @type {any} */ m) => html`<li key=${m.name}><${Mark} name=${failedReasons.has(m.reason) ? "broken" : "waiting"} /><div>
        <p><${Member} workspace=${metadata.namespace} name=${m.name} /> <span class="soft">${[words(m.reason), m.nodes && `nodes ${m.nodes}`].filter(Boolean).join(" · ")}${m.since && html` · <${Time} at=${m.since} />`}</span></p>
        ${m.message && html`<p class="soft message">${short(m.message, 400)}</p>`}<${Nodes} plan=${plan} cluster=${m.name} /></div></li>`)}</ul>`}</div></li>`;
  })}</ol>${status.clusters?.total - status.clusters?.complete > (status.members?.length ?? 0) && status.members?.length > 0 && html`<p class="soft">Of the clusters that are not done, the first ${status.members.length} are shown.</p>`}`;
}

/** @param {{ plan: any, cluster: string }} props */
function Nodes({ plan, cluster }) {
  const { applying = [], failures = [] } = plan.status ?? {};
  const of = (/** @type {any[]} */ list) => list.filter((node) => node.cluster === cluster);
  const all = [...of(failures).map((f) => ({ node: f.node, word: words(f.reason), name: "broken", since: f.at, attempt: f.attempt })), ...of(applying).map((a) => ({ node: a.node, word: a.stage, name: "waiting", since: a.since, attempt: a.attempt }))];
  if (all.length === 0) return null;
  return html`<ul class="nodes" aria-label=${`Nodes of ${cluster}`}>${all.map((n) => html`<li class=${classes("label", n.name)} key=${n.node + n.name}><${Mark} name=${n.name} /> ${n.node} ${n.word}${n.attempt > 1 && `, attempt ${n.attempt}`}${n.since && html` · <${Time} at=${n.since} />`}</li>`)}</ul>`;
}
