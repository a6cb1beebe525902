// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Requests to the Kubernetes API of the hub (/k8s/local) and of members (/k8s/clusters/WORKSPACE/NAME), with the user's
// own rights. Nothing else is asked.

import { clean, own, parse } from "../lib/text.js";
import { SignedOut } from "./session.js";

/** @type {() => Promise<string>} */
let token = async () => "";

/** Sets the function that returns tokens. @param {() => Promise<string>} source */
export function use(source) {
  token = source;
}

const largest = 32 << 20; // bytes of an answer

/** What a request failed with: a sentence, the status, and what to do about it. */
export class Refusal extends Error {
  /** @param {string} message @param {number} status @param {string} advice */
  constructor(message, status, advice) {
    super(message);
    this.status = status;
    this.advice = advice;
  }
}

/** What to do about a status. @type {Record<number, string>} */
const advices = {
  401: "Sign in again.",
  403: "Ask an administrator for a role that allows it. “Why can’t I?” under Access explains who can grant it.",
  404: "It may have been deleted in the meantime. Reload the page.",
  409: "Someone else has changed it at the same time. Look at the current state and try again.",
  422: "The message says what is not accepted, and why. Correct it and try again.",
  429: "The server is busy. Wait a moment and try again.",
};

/** What to do about the reason in a Status of Kubernetes. It says more than the code. @type {Record<string, string>} */
const byReason = {
  AlreadyExists: "Choose another name, or change the existing object.",
  FieldManagerConflict: "Another tool manages the fields that the message names. Change them there, for example in its repository.",
  NamespaceMissing: "Choose an existing workspace. A workspace is a namespace of the hub.",
};

const unreachable = "Check the network. The page connects again by itself; then try again.";
const untrusting = "The hub’s API server does not accept your token. It may have ended: then sign in again. Otherwise the API server has to trust the hub’s issuer (docs/operations/sign-in.md), or you need a token of the API server.";

/** What to do about an answer. @param {string} path @param {number} status @param {any} answer */
function advise(path, status, { reason, details }) {
  if (status >= 500) {
    return path.startsWith("/k8s/clusters/") ? "The cluster or its agent does not answer as it should. Look at the cluster’s conditions, and try again later."
      : "The hub, or its API server, does not answer as it should. Try again later.";
  }
  const cause = status === 409 && details?.causes?.some?.((/** @type {any} */ c) => c?.reason === "FieldManagerConflict") ? "FieldManagerConflict"
    : status === 404 && details?.kind === "namespaces" ? "NamespaceMissing" : typeof reason === "string" ? reason : "";
  return own(byReason, cause) ?? own(/** @type {Record<string, string>} */ (advices), String(status)) ?? "";
}

// Reads an answer. A member can send one that never ends.
/** @param {Response} response */
async function read(response) {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let size = 0; reader;) {
    const { done, value } = await reader.read();
    if (done) break;
    size += value.length;
    if (size > largest) {
      reader.cancel().catch(() => {});
      throw new Refusal("The answer is too long to be shown.", response.status, "Use kubectl, which asks for it in parts.");
    }
    text += decoder.decode(value, { stream: true });
  }
  return text + decoder.decode();
}

/**
 * Sends a request. Answers are cleaned for display unless raw is set.
 * @param {string} method @param {string} path
 * @param {{ body?: any, type?: string, raw?: boolean, signal?: AbortSignal }} [options]
 * @returns {Promise<any>}
 */
export async function call(method, path, { body, type = "application/json", raw, signal } = {}) {
  const bearer = await token().catch((problem) => {
    if (problem instanceof SignedOut) throw new Refusal(`You are signed out: ${problem.message}.`, 401, "Reload the page and sign in again.");
    throw new Refusal(`Your session cannot be renewed: ${problem.message}.`, 0, unreachable);
  });
  /** @type {Response} */
  let response;
  try {
    response = await fetch(path, {
      method, signal, credentials: "omit", body: body === undefined ? undefined : JSON.stringify(body),
      headers: { Authorization: "Bearer " + bearer, ...(body === undefined ? {} : { "Content-Type": type }) },
    });
  } catch (problem) {
    if (signal?.aborted) throw problem;
    throw new Refusal("The hub cannot be reached.", 0, unreachable);
  }
  const answer = await read(response);
  let value;
  try {
    value = (raw ? JSON.parse(answer) : parse(answer)) ?? {};
  } catch {
    value = {};
  }
  if (response.ok) return value;
  if (response.status === 401 && path.startsWith("/k8s/local/")) throw new Refusal(untrusting, 401, "");
  const message = typeof value.message === "string" ? clean(value.message, 2000) : `${response.status} ${response.statusText}`;
  throw new Refusal(message, response.status, advise(path, response.status, value));
}

/** @typedef {{ group?: string, version?: string, resource: string, namespace?: string, name?: string, subresource?: string, member?: string }} Ref */

/** The part of a Ref that names Drover's own API group. */
export const drover = { group: "cluster.drover.dev", version: "v1" };

// Encodes a part of a path. Browsers would resolve "..", so that the path would name something else.
/** @param {string} text */
function part(text) {
  if (/^\.*$/.test(text)) throw new Refusal(`“${text}” is not a name.`, 400, "Correct the address or the form, and try again.");
  return encodeURIComponent(text);
}

/**
 * Returns the path of an object or a list. member is "WORKSPACE/NAME"; without it the path is at the hub.
 * @param {Ref} ref
 */
function path({ group = "", version = "v1", resource, namespace, name, subresource, member }) {
  const names = member?.split("/") ?? [];
  if (member && names.length !== 2) throw new Refusal(`“${member}” is not a cluster.`, 400, "Name it as WORKSPACE/NAME.");
  const root = member ? "/k8s/clusters/" + names.map(part).join("/") : "/k8s/local";
  return root + (group ? `/apis/${part(group)}/${part(version)}` : `/api/${part(version)}`) +
    (namespace ? `/namespaces/${part(namespace)}` : "") + `/${part(resource)}` + (name ? `/${part(name)}` : "") +
    (subresource ? `/${part(subresource)}` : "");
}

/** @param {Ref} ref @param {{ raw?: boolean, signal?: AbortSignal }} [options] */
export const get = async (ref, options) => call("GET", path(ref), options);

/**
 * Lists up to limit objects, even if a member sends more. All have a name.
 * @param {Ref} ref @param {{ limit?: number, query?: Record<string, string>, signal?: AbortSignal }} [options]
 * @returns {Promise<{ items: any[], metadata?: any }>}
 */
export async function list(ref, { limit = 500, query = {}, signal } = {}) {
  const { items, metadata } = await call("GET", `${path(ref)}?${new URLSearchParams({ limit: String(limit), ...query })}`, { signal });
  return { items: Array.isArray(items) ? items.filter((o) => typeof o?.metadata?.name === "string").slice(0, limit) : [], metadata };
}

/** Creates an object. @param {Ref} ref @param {any} object */
export const create = async (ref, object) => call("POST", path(ref), { body: object });

/** Applies fields with the field manager of the page. @param {Ref} ref @param {any} object */
export const apply = async (ref, object) =>
  call("PATCH", `${path(ref)}?fieldManager=drover-page&force=false`, { body: object, type: "application/apply-patch+yaml" });

/** Merges fields. null removes one. @param {Ref} ref @param {any} fields */
export const merge = async (ref, fields) =>
  call("PATCH", `${path(ref)}?fieldManager=drover-page`, { body: fields, type: "application/merge-patch+json" });

/** Deletes one object: the one with this UID, if it is given. @param {Ref} ref @param {string} [uid] */
export const remove = async (ref, uid) => call("DELETE", path(ref), { body: uid ? { apiVersion: "v1", kind: "DeleteOptions", preconditions: { uid } } : {} });

/** Returns the user with the names in bindings. */
export const whoAmI = async () => (await call("GET", "/v1/whoami")).status.userInfo;

/** @typedef {{ verb: string, resource: string, subresource?: string, group?: string, namespace?: string, name?: string }} Attributes */

/**
 * Reviews whether the user may do something on the hub, or in a member ("WORKSPACE/NAME"). Actions use core/rights.js.
 * @param {string} member @param {Attributes} attributes
 */
export async function review(member, attributes) {
  return (await create({ group: "authorization.k8s.io", resource: "selfsubjectaccessreviews", member }, {
    apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes: attributes },
  })).status;
}

/** Reads the Secret with the manifest of a Cluster's agent. @param {string} namespace @param {string} name */
export const registration = async (namespace, name) => call("GET", path({ resource: "secrets", namespace, name: `${name}-registration` }), { raw: true });
