// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Baselines: the list, and one Baseline with its waves, members, failures, objects and history.

import { html } from "../lib/html.js";
import { count, short } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { place } from "../core/access.js";
import { drover, get, merge } from "../core/api.js";
import { may } from "../core/rights.js";
import { href } from "../core/router.js";
import { baselineRows, targets } from "../core/select.js";
import { baselineState, condition } from "../core/states.js";
import { loaded, object, objects } from "../core/store.js";
import { useCommands } from "../shell/commands.js";
import { confirm } from "../ui/dialog.js";
import { Icon } from "../ui/icons.js";
import { Card, Empty, Facts, Heading, Loading, More, Note, Problem, State, Waves, useFetch } from "../ui/parts.js";
import { Rows } from "../ui/table.js";
import { toast } from "../ui/toast.js";
import { Conditions } from "./cluster.js";
import { ManifestButton } from "./manifest.js";
import { Member, Rolled, Timeline, askPause, shownState } from "./plans.js";

const most = 50; // members and objects that are named

export const Baselines = () => html`<${Rolled} all=${baselineRows.value} title="Baselines" noun="baseline" card=${BaselineCard}>A baseline keeps objects that every cluster has: namespaces, policies, a GitOps controller.</${Rolled}>`;

/** @param {{ object: any, state: any }} props */
function BaselineCard({ object: { metadata, spec, status = {} }, state }) {
  const { clusters, objects: total } = status;
  return html`<article class="card" aria-label=${`Baseline ${metadata.namespace}/${metadata.name}`}>
    <div class="card-head"><h2><a href=${href(["baselines", metadata.namespace, metadata.name])}>${metadata.name}</a> <span class="soft">${metadata.namespace}</span></h2><${State} ...${shownState({ spec }, state)} /></div>
    <p class="message">${short(state.message, 400)}</p>
    <${Waves} waves=${status.waves ?? []} />
    <p class="soft">${[clusters && `${clusters.summary} clusters`, total > 0 && count(total, "object"), spec?.roleTemplateName && `role ${short(spec.roleTemplateName, 63)}`].filter(Boolean).join(" · ")}${clusters?.failed > 0 && html` · <span class="bad">${clusters.failed} failed</span>`}</p></article>`;
}

/** @param {any} baseline @param {boolean} paused */
const pause = (baseline, paused) => askPause(baseline, paused, "baselines", "No further cluster gets a new revision. Clusters that have begun finish.", "The rollout goes on.");

/** Asks whether members go back to a revision, or follow the manifests again. The hub refuses a revision of another role template. @param {any} baseline @param {string | null} revision */
function askRevision({ metadata: { namespace, name, uid }, spec, status = {} }, revision) {
  const { roleTemplateName = spec.roleTemplateName } = (status.history ?? []).find((/** @type {any} */ h) => h.revision === revision) ?? {};
  confirm({
    title: revision ? `Roll ${name} back?` : `Have ${name} follow its manifests?`, action: revision ? "Roll back" : "Follow", danger: true,
    text: html`<p>${count(status.clusters?.desired ?? 0, "cluster")} will keep ${revision ? html`revision <code>${short(revision, 64)}</code>` : "the objects in manifests and from"}, with the rights of role template <code>${short(roleTemplateName, 63)}</code>. Objects that only the current revision has are deleted.</p>
      <p class="soft">This ${revision ? "sets spec.revision and spec.roleTemplateName" : "removes spec.revision"}. If a GitOps tool owns the Baseline, change it there.</p>`,
    run: async () => { await merge({ ...drover, resource: "baselines", namespace, name }, { metadata: { uid }, spec: { revision, ...(revision && { roleTemplateName }) } }); toast(`${name} is rolled out.`); },
  });
}

/** @param {{ params: Record<string, string> }} props */
export function BaselineView({ params: { workspace, name } }) {
  const baseline = object("baselines", `${workspace}/${name}`);
  const above = html`<a href=${href(["baselines"])}>Baselines</a> <span aria-hidden="true">/</span> ${workspace}`;
  const changes = baseline && may({ verb: "patch", resource: "baselines", namespace: workspace, name });
  const paused = Boolean(baseline?.spec?.paused);
  useCommands(changes ? [{ id: "pause", title: `${paused ? "Resume" : "Pause"} ${name}`, icon: paused ? "play" : "pause", run: () => pause(baseline, !paused) }] : [], [changes, baseline]);
  if (!baseline) return html`<div class="view"><${Heading} title=${name} above=${above} />${loaded.value ? html`<${Empty} icon="baselines" title="This baseline is gone, or you may not see it"><a href=${href(["baselines"])}>All baselines</a></${Empty}>` : html`<${Loading} />`}</div>`;
  const state = baselineState(baseline);
  const { spec = {}, status = {}, metadata } = baseline;
  const { clusters, failures = [] } = status;
  // Without a rollout, all clusters are one wave.
  const whole = clusters && { total: clusters.desired, complete: clusters.applied, failed: clusters.failed, applying: 0, held: 0, summary: clusters.summary };
  return html`<div class="view"><${Heading} title=${name} above=${above} beside=${html`<${State} ...${shownState(baseline, state)} />`}>
      ${changes && spec.revision && html`<button type="button" onClick=${() => askRevision(baseline, null)}><${Icon} name="again" />Follow the manifests</button>`}
      ${changes && spec.rollout && html`<button type="button" class=${paused ? "primary" : ""} onClick=${() => pause(baseline, !paused)}><${Icon} name=${paused ? "play" : "pause"} />${paused ? "Resume" : "Pause"}</button>`}
      <${ManifestButton} resource="baselines" namespace=${workspace} name=${name} /></${Heading}>
    ${state.name === "broken" && html`<${Note} name="broken">${short(state.message, 1000)}</${Note}>`}
    ${paused && html`<${Note}>This baseline is paused. No further cluster gets a new revision.</${Note}>`}
    ${spec.revision && html`<${Note}>Clusters keep revision ${short(spec.revision, 64)}, whatever the manifests say.</${Note}>`}
    <div class="columns"><div class="column wide">
      <${Card} title="Waves">${state.name !== "broken" && state.message && html`<p class="soft message">${short(state.message, 1000)}</p>`}<${Timeline} plan=${{ metadata, spec, status: { waves: status.waves, clusters: whole } }} /></${Card}>
      <${Card} title=${`Failures: ${clusters?.failed ?? 0}`}>${failures.length > 0 ? html`<ul class="list failures">${failures.map((/** @type {any} */ f) => html`
        <li key=${f.cluster + "/" + f.object}><p><${Member} workspace=${workspace} name=${f.cluster} /> <b>${f.object}</b></p><p class="message">${short(f.message, 1000)}</p></li>`)}</ul>` : html`<p class="soft">No cluster has failed.</p>`}</${Card}>
      <${Away} baseline=${baseline} /><${Contents} baseline=${baseline} /></div>
      <div class="column"><${Card} title="Facts"><${Facts} pairs=${[["Clusters", clusters?.summary], ["Objects", status.objects], ["For", spec.clusterName || spec.clusterSelector ? place(spec) : undefined],
        ["Rights", spec.roleTemplateName && html`<a href=${href(["access", "roles", spec.roleTemplateName])}>${spec.roleTemplateName}</a>`], ["Changes in clusters", spec.drift === "Report" ? "reported" : "repaired"],
        ["On deletion", spec.deletionPolicy === "Orphan" ? "the objects stay" : "the objects are deleted"], ["Created", metadata.creationTimestamp && html`<${Time} at=${metadata.creationTimestamp} ago />`]]} /></${Card}>
        <${History} baseline=${baseline} changes=${changes} /><${Conditions} object=${baseline} ready=${["All connected clusters have the objects", "Not all connected clusters have the objects yet"]} /></div></div></div>`;
}

/** The clusters that are not connected. @param {{ baseline: any }} props */
function Away({ baseline: { metadata: { namespace }, spec } }) {
  const away = [...objects("clusters").values()].filter((c) => c.metadata.namespace === namespace && !c.partial && targets(spec, c) && condition(c, "Connected")?.status !== "True");
  return away.length > 0 && html`<${Card} title=${`Not connected: ${away.length}`}><p class="soft">Their agents keep the objects that they have.</p><ul class="list roomy">${away.slice(0, most).map((c) => html`<li key=${c.metadata.name}><${Member} workspace=${namespace} name=${c.metadata.name} /></li>`)}<${More} all=${away.length} most=${most} /></ul></${Card}>`;
}

/** The objects in the spec. The stream does not have them. @param {{ baseline: any }} props */
function Contents({ baseline: { metadata: { namespace, name, generation } } }) {
  const { value, error, retry } = useFetch((signal) => get({ ...drover, resource: "baselines", namespace, name }, { signal }), [namespace, name, generation]);
  const { manifests = [], from = [] } = value?.spec ?? {};
  return html`<${Card} title="Objects">${error ? html`<${Problem} error=${error} retry=${retry} />` : !value ? html`<${Loading} rows=${2} />` : html`${manifests.length > 0 && html`<${Rows} label="Objects in manifests" head=${["Kind", "Namespace", "Name"]} rows=${manifests.slice(0, most).map((/** @type {any} */ o) => [short(o.kind, 63), short(o.metadata?.namespace, 63), short(o.metadata?.name, 253)])} />
    ${manifests.length > most && html`<p class="soft">${`And ${manifests.length - most} more.`}</p>`}`}${from.length > 0 && html`<p>${`Also all objects in ${from.map((/** @type {any} */ s) => `${s.kind} ${short(s.name, 253)}`).join(", ")}.`}</p>`}`}</${Card}>`;
}

/** @param {{ baseline: any, changes: boolean | undefined }} props */
function History({ baseline, changes }) {
  const { spec, status = {} } = baseline;
  const { history = [], revision, completeRevision } = status;
  if (history.length === 0) return null;
  const words = (/** @type {string} */ each) => Object.entries({ current: revision, complete: completeRevision, pinned: spec.revision }).filter(([, value]) => value === each).map(([word]) => word).join(", ");
  return html`<${Card} title="History"><ul class="list roomy">${history.map((/** @type {any} */ h) => html`<li key=${h.revision}><p><code>${h.revision}</code> <span class="soft">${[count(h.objects, "object"), h.roleTemplateName && `role ${short(h.roleTemplateName, 63)}`, words(h.revision)].filter(Boolean).join(" · ")} · <${Time} at=${h.since} ago /></span>
    ${changes && h.revision !== revision && html` <button type="button" class="link" aria-label=${`Roll back to ${h.revision}`} onClick=${() => askRevision(baseline, h.revision)}>Roll back</button>`}</p></li>`)}</ul></${Card}>`;
}
