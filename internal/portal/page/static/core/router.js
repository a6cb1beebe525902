// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Addresses: #/clusters/WORKSPACE/NAME/TAB?q=…. They can be shared, and Back works. Their text is cleaned, because anyone
// can make a link.

import { signal } from "../lib/html.js";
import { clean } from "../lib/text.js";

const longest = 2000; // characters of a part of an address

/** Addresses of older versions of the page. @type {Record<string, string>} */
const moved = { "": "#/", "#": "#/", "#clusters": "#/clusters", "#plans": "#/plans", "#hosts": "#/hosts", "#can": "#/access/why" };

function read() {
  if (location.hash in moved) history.replaceState(history.state, "", moved[location.hash]);
  const [path, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const decode = (/** @type {string} */ part) => {
    try {
      return clean(decodeURIComponent(part), longest);
    } catch {
      return clean(part, longest);
    }
  };
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams([...new URLSearchParams(query)].map(([key, value]) => [key, clean(value, longest)])) };
}

/** The current address. */
export const route = signal(read());

/** Reads the address again, after a change that is no event. */
export const update = () => { route.value = read(); };
addEventListener("hashchange", update);

/**
 * Returns an address for a link: href(["clusters", workspace, name], { q: "prod" }).
 * @param {(string | undefined)[]} path @param {Record<string, string | undefined> | URLSearchParams} [query]
 */
export function href(path, query = {}) {
  const pairs = (query instanceof URLSearchParams ? [...query] : Object.entries(query)).filter(([, value]) => value);
  const text = pairs.length > 0 ? new URLSearchParams(/** @type {[string, string][]} */ (pairs)).toString() : "";
  return "#/" + path.filter((part) => part !== undefined).map((part) => encodeURIComponent(/** @type {string} */ (part))).join("/") + (text ? "?" + text : "");
}

/** Goes to an address that href() has returned. @param {string} address */
export function go(address) {
  location.hash = address;
}

/**
 * Changes parameters of the current address without an entry in the history, for example while the user types a search.
 * @param {Record<string, string | undefined>} change
 */
export function setQuery(change) {
  const { path, query } = route.peek();
  const next = { ...Object.fromEntries(query), ...change };
  history.replaceState(history.state, "", href(path, next));
  update();
}

/** Returns a parameter of the current address. @param {string} name */
export const param = (name) => route.value.query.get(name) ?? "";

/**
 * Matches a pattern such as "clusters/:workspace/:name/:tab?" and returns its parameters.
 * @param {string} pattern @param {string[]} path
 * @returns {Record<string, string> | undefined}
 */
export function match(pattern, path) {
  const parts = pattern.split("/").filter(Boolean);
  if (path.length > parts.length) return undefined;
  /** @type {Record<string, string>} */
  const found = {};
  for (const [i, part] of parts.entries()) {
    if (part.startsWith(":")) {
      if (path[i] !== undefined) found[part.replace(/[:?]/g, "")] = path[i];
      else if (!part.endsWith("?")) return undefined;
    } else if (part !== path[i]) {
      return undefined;
    }
  }
  return found;
}
