// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The dialog that changes labels of Clusters: of one, or of a selection. Labels decide which bindings, Projects, Plans
// and Baselines apply to a Cluster, so the dialog shows what a change would do.

import { html, useState } from "../lib/html.js";
import { count, own, short } from "../lib/text.js";
import { expired } from "../core/access.js";
import { drover, merge } from "../core/api.js";
import { may } from "../core/rights.js";
import { targets } from "../core/select.js";
import { keyOf, objects } from "../core/store.js";
import { DialogActions, openDialog } from "../ui/dialog.js";
import { Field } from "../ui/form.js";
import { Icon } from "../ui/icons.js";
import { Note, Problem } from "../ui/parts.js";
import { toast } from "../ui/toast.js";

const reserved = "cluster.drover.dev/"; // labels that the hub sets
const parallel = 4; // requests at the same time
const many = 100_000; // comparisons of Clusters with selectors above which there is no preview

/** Whether the user may change labels of a Cluster, or of all in a workspace. @param {string} namespace @param {string} [name] */
export function mayLabel(namespace, name) {
  const patch = may({ verb: "patch", resource: "clusters", namespace, name });
  const labels = may({ verb: "update", resource: "clusters", subresource: "labels", namespace, name });
  return patch && labels;
}

/** Opens the dialog. @param {string[]} keys of Clusters @param {() => void} [done] */
export const editLabels = (keys, done) => openDialog(keys.length === 1 ? `Labels of ${keys[0].split("/")[1]}` : `Labels of ${count(keys.length, "cluster")}`, Editor, { keys, done }, { drawer: true });

/** @typedef {Record<string, string | null>} Change the new value of each label, or null to remove it */

/** @param {any} cluster @param {Change} change */
const changed = (cluster, change) => Object.entries(change).some(([key, value]) => (own(cluster.metadata.labels, key) ?? null) !== value);

const kinds = [["clusterroletemplatebindings", "binding"], ["projects", "project"], ["plans", "plan"], ["baselines", "baseline"]];

/** What begins and what ends to apply, or undefined if there is too much to compare. @param {any[]} clusters @param {Change} change */
function effects(clusters, change) {
  if (clusters.length * kinds.reduce((n, [kind]) => n + objects(kind).size, 0) > many) return undefined;
  /** @type {Map<string, { begins: number, ends: number }>} */
  const found = new Map();
  for (const cluster of clusters) {
    const labels = Object.fromEntries(Object.entries({ ...cluster.metadata.labels, ...change }).filter(([, value]) => value !== null));
    const next = { metadata: { ...cluster.metadata, labels } };
    for (const [kind, word] of kinds) {
      for (const each of objects(kind).values()) {
        if (each.metadata.namespace !== cluster.metadata.namespace || (each.spec && expired(each))) continue;
        const [was, will] = [targets(each.spec ?? {}, cluster), targets(each.spec ?? {}, next)];
        if (was === will) continue;
        const name = `${word} ${each.metadata.name}`;
        const entry = found.get(name) ?? { begins: 0, ends: 0 };
        entry[will ? "begins" : "ends"]++;
        found.set(name, entry);
      }
    }
  }
  return [...found];
}

/** The labels of Clusters: the values of each key, with their number of Clusters. @param {any[]} clusters */
function labelsOf(clusters) {
  /** @type {Map<string, Map<string, number>>} */
  const labels = new Map();
  for (const cluster of clusters) {
    for (const [key, value] of /** @type {[string, string][]} */ (Object.entries(cluster.metadata.labels ?? {}))) {
      const values = labels.get(key) ?? new Map();
      labels.set(key, values.set(value, (values.get(value) ?? 0) + 1));
    }
  }
  return labels;
}

/**
 * Changes labels of Clusters, some at the same time, and returns which were not changed.
 * @param {any[]} clusters @param {Change} change @param {() => void} each is called after each Cluster
 */
async function changeAll(clusters, change, each) {
  const work = clusters.map((cluster) => cluster.metadata);
  /** @type {{ key: string, error: any }[]} */
  const failed = [];
  const next = async () => {
    for (let one = work.shift(); one; one = work.shift()) {
      const { namespace, name, uid } = one;
      await merge({ ...drover, resource: "clusters", namespace, name }, { metadata: { uid, labels: change } }).catch((error) => failed.push({ key: keyOf({ metadata: one }), error }));
      each();
    }
  };
  await Promise.all(Array.from({ length: parallel }, next));
  return failed;
}

/** The labels that the Clusters have, each with a button. @param {{ labels: ReturnType<typeof labelsOf>, several: boolean, change: Change, set: (key: string, value: null | undefined) => void }} props */
function Present({ labels, several, change, set }) {
  const known = editable(labels);
  const text = (/** @type {[string, number]} */ [value, n]) => (several ? `${short(value, 40)} (${n})` : short(value, 63));
  return known.length > 0 && html`<ul class="edit-labels" aria-label="Labels">${known.map((key) => {
    const values = [...labels.get(key) ?? []];
    const removed = change[key] === null;
    const word = removed ? "Keep" : "Remove";
    return html`<li key=${key} class=${removed ? "removed" : ""}>
      <span class="item-main"><b>${short(key, 120)}</b> <span class="soft">${values.slice(0, 3).map(text).join(", ")}${values.length > 3 && " …"}</span></span>
      <button type="button" class="link" aria-label=${`${word} ${key}`} onClick=${() => set(key, removed ? undefined : null)}>${word}</button></li>`;
  })}</ul>`;
}

const editable = (/** @type {Map<string, unknown>} */ labels) => [...labels.keys()].filter((key) => !key.startsWith(reserved)).sort();

/** The labels that are to be added, each with a button. @param {{ change: Change, set: (key: string, value: undefined) => void }} props */
const Added = ({ change, set }) => html`${Object.entries(change).filter(([, value]) => value !== null).map(([key, value]) => html`
  <p class="edit-added" key=${key}><${Icon} name="plus" /><span class="item-main"><b>${key}</b>=${value}</span><button type="button" class="link" onClick=${() => set(key, undefined)}>Undo</button></p>`)}`;

/** The fields for one more label. @param {{ known: string[], typed: { key: string, value: string }, set: (typed: any) => void, add: () => void }} props */
function Fields({ known, typed, set, add }) {
  const on = (/** @type {"key" | "value"} */ field) => (/** @type {any} */ e) => { const { value } = e.target; set((/** @type {any} */ was) => ({ ...was, [field]: value.trim() })); };
  return html`<div class="edit-add">
    <${Field} label="Label" value=${typed.key} list=${known} data-focus onInput=${on("key")} maxlength="317" pattern="([a-z0-9.\\-]+/)?[A-Za-z0-9]([A-Za-z0-9_.\\-]*[A-Za-z0-9])?" title="letters, digits, dashes, dots and underscores, perhaps after a domain and /" />
    <${Field} label="Value" value=${typed.value} onInput=${on("value")} maxlength="63" pattern="([A-Za-z0-9]([A-Za-z0-9_.\\-]*[A-Za-z0-9])?)?" title="letters, digits, dashes, dots and underscores" />
    <button type="button" disabled=${!typed.key} onClick=${add}>Add another</button></div>`;
}

/** What a change begins and ends. @param {{ outcome: ReturnType<typeof effects> }} props */
function Outcome({ outcome }) {
  if (!outcome) return html`<${Note}>Labels decide which bindings, projects, plans and baselines apply. There are too many to say here what changes.</${Note}>`;
  if (outcome.length === 0) return null;
  return html`<${Note}><p><b>What this changes, as far as you can see</b></p><ul>${outcome.slice(0, 12).map(([name, { begins, ends }]) => html`
    <li key=${name}>${short(name, 120)} ${[begins && `will apply to ${count(begins, "cluster")}`, ends && `no longer applies to ${count(ends, "cluster")}`].filter(Boolean).join(", and ")}</li>`)}</ul>
    ${outcome.length > 12 && html`<p>And ${outcome.length - 12} more.</p>`}</${Note}>`;
}

/** @param {{ failed: { key: string, error: any }[] }} props */
const Failures = ({ failed }) => html`${failed.slice(0, 5).map(({ key, error }) => html`<${Problem} key=${key} title=${`${key} was not changed.`} error=${error} />`)}
  ${failed.length > 5 && html`<p>And ${failed.length - 5} more.</p>`}`;

/** @param {{ keys: string[], done?: () => void, close: () => void }} props */
function Editor({ keys, done, close }) {
  const [change, setChange] = useState(/** @type {Change} */ ({}));
  const [typed, setTyped] = useState({ key: "", value: "" });
  const [busy, setBusy] = useState(0); // how many Clusters are still to be changed
  const [failed, setFailed] = useState(/** @type {{ key: string, error: any }[]} */ ([]));
  const all = objects("clusters");
  const [uids] = useState(() => new Map(keys.map((key) => [key, all.get(key)?.metadata.uid])));
  // Another Cluster may have taken the name since the dialog was opened.
  const clusters = keys.map((key) => all.get(key)).filter((cluster) => cluster && cluster.metadata.uid === uids.get(keyOf(cluster)));
  const gone = keys.length - clusters.length;
  const pending = typed.key ? { ...change, [typed.key]: typed.value } : change;
  const labels = labelsOf(busy > 0 ? [] : clusters);
  const touched = busy > 0 ? [] : clusters.filter((cluster) => changed(cluster, pending));
  const set = (/** @type {string} */ key, /** @type {string | null | undefined} */ value) => setChange(({ [key]: _, ...rest }) => (value === undefined ? rest : { ...rest, [key]: value }));
  const add = () => { if (typed.key) { setChange(pending); setTyped({ key: "", value: "" }); } };
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setBusy(touched.length);
    const problems = await changeAll(touched, pending, () => setBusy((left) => Math.max(1, left - 1)));
    setBusy(0);
    setFailed(problems);
    if (problems.length > 0) return;
    toast(`Labels of ${count(touched.length, "cluster")} changed.`);
    done?.();
    close();
  };
  const action = busy > 0 ? `${busy} left …` : touched.length > 1 || keys.length > 1 ? `Change ${count(touched.length, "cluster")}` : "Save";
  return html`<form onSubmit=${submit}><div class="dialog-body">
    ${gone > 0 && html`<${Note}>${count(gone, "selected cluster")} no longer ${gone === 1 ? "exists" : "exist"}.</${Note}>`}
    <${Present} labels=${labels} several=${clusters.length > 1} change=${change} set=${set} /><${Added} change=${change} set=${set} />
    <${Fields} known=${editable(labels)} typed=${typed} set=${setTyped} add=${add} />
    <${Outcome} outcome=${touched.length > 0 ? effects(touched, pending) : []} /><${Failures} failed=${failed} /></div>
    <${DialogActions}><button type="button" onClick=${close}>Cancel</button><button class="primary" disabled=${busy > 0 || touched.length === 0}>${action}</button></${DialogActions}></form>`;
}
