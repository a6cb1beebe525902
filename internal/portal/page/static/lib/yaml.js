// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Objects as YAML, for people who keep their manifests in a repository.

import { escapeHidden } from "./text.js";

const plain = /^[A-Za-z_][\w./-]*$/; // words that YAML reads as text, except these:
const special = /^(true|false|yes|no|on|off|null|y|n)$/i;

/** @param {any} value @returns {string} */
const scalar = (value) => (typeof value === "string" && plain.test(value) && !special.test(value) ? value : escapeHidden(JSON.stringify(value ?? null)));

/**
 * Returns an object as YAML. Fields without a value are left out.
 * @param {any} value @returns {string}
 */
export function yaml(value, indent = "") {
  if (Array.isArray(value)) return value.map((each) => `${indent}- ${nested(each, indent + "  ").replace(/^\s+/, "")}`).join("\n");
  return Object.entries(value).filter(([, each]) => each !== undefined).map(([key, each]) => {
    const name = indent + scalar(key) + ":";
    if (each === null || typeof each !== "object") return `${name} ${scalar(each)}`;
    if (Object.keys(each).length === 0) return `${name} ${Array.isArray(each) ? "[]" : "{}"}`;
    return `${name}\n${yaml(each, Array.isArray(each) ? indent : indent + "  ")}`;
  }).join("\n");
}

const nested = (/** @type {any} */ value, /** @type {string} */ indent) => (value !== null && typeof value === "object" && Object.keys(value).length > 0 ? yaml(value, indent) : scalar(value));

/** Reports whether a value from JSON has only numbers that are not rounded. @param {any} value @returns {boolean} */
export const exact = (value) => (value !== null && typeof value === "object" ? Object.values(value).every(exact) : !Number.isInteger(value) || Number.isSafeInteger(value));
