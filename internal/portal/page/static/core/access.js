// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// What RoleTemplates allow, and which binding grants an action, as internal/access computes it for kubectl drover why.
// It knows the objects that the user may watch. The member decides.

import { targets } from "./select.js";
import { object, objects } from "./store.js";

/** @typedef {{ verbs?: string[], apiGroups?: string[], resources?: string[], resourceNames?: string[], nonResourceURLs?: string[] }} Rule */
/** @typedef {{ verb: string, group: string, resource: string, name?: string, namespace?: string }} Action */
/** @typedef {{ binding: any, kind: BindingKind, where: string, role: string }} Grant */
/** @typedef {"ClusterRoleTemplateBinding" | "ProjectRoleTemplateBinding"} BindingKind */

/** The resource of a kind of binding. @type {Record<BindingKind, string>} */
export const resources = { ClusterRoleTemplateBinding: "clusterroletemplatebindings", ProjectRoleTemplateBinding: "projectroletemplatebindings" };

/**
 * Returns the rules of a RoleTemplate and of all that it inherits, each with the path to it, or why there are none.
 * @param {string} name @returns {{ rules: { path: string[], rule: Rule }[], problem: string, external: string }}
 */
export function rulesOf(name) {
  const templates = objects("roletemplates");
  /** @type {{ path: string[], rule: Rule }[]} */
  const rules = [];
  const seen = new Set();
  let problem = "";
  /** @param {string} each @param {string[]} path */
  const visit = (each, path) => {
    const template = templates.get(each);
    if (path.includes(each)) problem ||= `${each} inherits itself: ${[...path, each].join(" → ")}.`;
    else if (!template) problem ||= path.length > 0 ? `${path.join(" → ")} inherits ${each}, which does not exist.` : `The RoleTemplate ${each} does not exist, or you may not watch it.`;
    else if (template.spec.external && path.length > 0) problem ||= `${each} is external and cannot be inherited by ${path.join(" → ")}.`;
    else if (path.length > 0 && template.spec.context !== "Project" && templates.get(path[0])?.spec.context !== "Cluster") problem ||= `${each} is for clusters and cannot be inherited by ${path.join(" → ")}.`;
    if (problem || seen.has(each)) return;
    for (const rule of template.spec.rules ?? []) rules.push({ path: [...path, each], rule });
    for (const parent of template.spec.inherits ?? []) visit(parent, [...path, each]);
    seen.add(each);
  };
  const external = templates.get(name)?.spec.external ?? "";
  if (!external) visit(name, []);
  return { rules: problem ? [] : rules, problem, external };
}

const has = (/** @type {string[]} */ list = [], /** @type {string} */ word) => list.includes(word) || list.includes("*");

/** Returns whether a rule allows an action. @param {Rule} rule @param {Action} action */
const allows = (rule, { verb, group, resource, name = "" }) => has(rule.verbs, verb) && has(rule.apiGroups, group) &&
  (has(rule.resources, resource) || (resource.includes("/") && (rule.resources ?? []).includes("*/" + resource.split("/")[1]))) &&
  (!rule.resourceNames?.length || rule.resourceNames.includes(name));

/** Returns a sentence for where a binding holds. @param {any} spec */
export function place(spec) {
  if (spec.projectName) return `project ${spec.projectName}`;
  if (spec.clusterName) return `cluster ${spec.clusterName}`;
  const { matchLabels = {}, matchExpressions = [] } = spec.clusterSelector ?? {};
  const labels = [...Object.entries(matchLabels).map(([key, value]) => `${key}=${value}`).sort(), ...matchExpressions.map((/** @type {any} */ { key, operator, values = [] }) => (operator === "Exists" ? `any ${key}`
    : operator === "DoesNotExist" ? `no ${key}` : `${key} ${operator === "In" ? "in" : "not in"} (${values.join(", ")})`))];
  return spec.clusterSelector ? (labels.length > 0 ? `clusters with ${labels.join(", ")}` : "all clusters") : "no cluster";
}

/** Returns whether a binding has expired. @param {any} binding */
export const expired = (binding) => Boolean(binding.spec.expiresAt) && Date.parse(binding.spec.expiresAt) <= Date.now();

// The namespaces of a cluster itself are in no project. Among projects that list a namespace, the oldest has it.
/** @param {any} cluster @param {string} namespace */
function projectOf(cluster, namespace) {
  if (namespace === "default" || /^(kube|drover)-/.test(namespace)) return "";
  const age = (/** @type {any} */ p) => `${p.metadata.creationTimestamp ?? ""} ${p.metadata.name}`;
  const found = [...objects("projects").values()].filter((p) => p.metadata.namespace === cluster.metadata.namespace && targets(p.spec, cluster) && p.spec.namespaces?.includes(namespace));
  return found.sort((a, b) => (age(a) < age(b) ? -1 : 1))[0]?.metadata.name ?? "";
}

/**
 * Explains an action in a Cluster: the chains that grant it, and the bindings that do not, the closest first. about chooses
 * the subjects.
 * @param {any} cluster @param {Action} action @param {(subject: { kind: string, name: string }) => boolean} about
 */
export function explain(cluster, action, about) {
  /** @type {(Grant & { path: string[], rule?: Rule, external: string })[]} */
  const chains = [];
  /** @type {(Grant & { lack: string, distance: number })[]} */
  const missing = [];
  const own = action.namespace ? projectOf(cluster, action.namespace) : "";
  for (const kind of /** @type {BindingKind[]} */ (Object.keys(resources))) {
    for (const binding of objects(resources[kind]).values()) {
      const { spec, metadata } = binding;
      if (metadata.namespace !== cluster.metadata.namespace || !about(spec.subject ?? {})) continue;
      const grant = { binding, kind, where: place(spec), role: spec.roleTemplateName };
      const lacks = (/** @type {number} */ distance, /** @type {string} */ lack) => missing.push({ ...grant, lack, distance });
      const project = spec.projectName && object("projects", `${metadata.namespace}/${spec.projectName}`);
      if (spec.projectName && !project) lacks(5, `The project ${spec.projectName} does not exist, or you may not watch it.`);
      else if (!targets((project ?? binding).spec, cluster)) lacks(6, "It is not for this cluster.");
      else if (spec.projectName && !action.namespace) lacks(4, `It holds in the namespaces of the project ${spec.projectName} only, and you ask for all namespaces.`);
      else if (spec.projectName && own !== spec.projectName) lacks(3, `The namespace ${action.namespace} is ${own ? `in the project ${own}` : "not listed in a project"}, and not in ${spec.projectName}.`);
      else if (expired(binding)) lacks(1, "It has expired.");
      else {
        const { rules, problem, external } = rulesOf(grant.role);
        const found = rules.find(({ rule }) => allows(rule, action));
        if (problem) lacks(2, problem);
        else if (found || external) chains.push({ ...grant, path: found?.path ?? [grant.role], rule: found?.rule, external });
        else lacks(0, `No rule of ${grant.role} allows it.`);
      }
    }
  }
  return { chains, missing: missing.sort((a, b) => a.distance - b.distance) };
}

/** Returns whether two bindings give the same subject the same role in the same place. @param {any} a @param {any} b */
export const sameGrant = (a, b) => a.spec.subject?.kind === b.spec.subject.kind && a.spec.subject.name === b.spec.subject.name &&
  a.spec.roleTemplateName === b.spec.roleTemplateName && place(a.spec) === place(b.spec);

/** @typedef {{ workspace: string, kind: string, name: string, role: string, where: "cluster" | "selector" | "project", cluster: string, selector: string, project: string, until: string }} Wanted */

/**
 * Returns the selector for labels such as "env=prod,tier=edge", or null if they are no labels. A part without a key, or a
 * key twice, is an error: leaving it out would select more clusters.
 * @param {string} text
 */
export function selectorOf(text) {
  const pairs = text.split(",").map((part) => part.trim().split(/==?/));
  if (pairs.some(([key, ...values]) => !key || values.length !== 1 || ![key, ...values].every((part) => /^[\w./-]*$/.test(part)))) return null;
  return new Set(pairs.map(([key]) => key)).size === pairs.length ? { matchLabels: Object.fromEntries(pairs) } : null;
}

/**
 * Returns the binding for a grant, with the name that kubectl drover grant gives it: two subjects never have the same. Yet
 * someone may have given this name to another binding.
 * @param {Wanted} wanted
 */
export async function bindingFor({ workspace, kind, name, role, where, cluster, selector, project, until }) {
  const subject = { kind, name: name.includes(":") || kind === "Group" ? name : "local:" + name };
  const target = { cluster: [cluster, "", ""], selector: ["", selector, ""], project: ["", "", project] }[where];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode([kind, subject.name, role, ...target].join("\0")));
  const end = [...new Uint8Array(digest).slice(0, 4)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  const readable = [subject.name.slice(subject.name.indexOf(":") + 1), role, target.find(Boolean) ?? ""].join("-").replaceAll("İ", "i").toLowerCase(); // as Go does it
  const start = readable.replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 54).replace(/-$/, "");
  const spec = where === "project" ? { projectName: project } : where === "cluster" ? { clusterName: cluster } : { clusterSelector: selectorOf(selector) };
  return {
    apiVersion: "cluster.drover.dev/v1", kind: where === "project" ? "ProjectRoleTemplateBinding" : "ClusterRoleTemplateBinding",
    metadata: { namespace: workspace, name: [start, end].filter(Boolean).join("-") },
    spec: { ...spec, roleTemplateName: role, subject, expiresAt: until || undefined },
  };
}
