// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Text of tenants: names, labels, messages and logs. Everything that the page receives passes parse(),
// except for objects as YAML.

const longest = 16_384; // characters of one string, for example a log
const many = 65_536; // characters of a message above which its strings are measured

// Characters that change the direction or the meaning of the text around them, or that cannot be seen. Line breaks and
// tabs stay.
const hidden = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffc]|[\u{e0000}-\u{e007f}]/gu;
const escaped = /\\(?:[bfr]|u(?:00[01789][0-9a-f]|00ad|061c|115f|1160|180e|20[026][0-9a-f]|3164|feff|fff[9a-c]|db40))/i;

/**
 * Replaces control and direction characters by visible ones, and limits the length.
 * @param {string} text
 */
export function clean(text, limit = longest) {
  const cut = text.length > limit ? text.slice(0, limit) + "…" : text;
  return cut.replace(hidden, (c) => `⟨${(c.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Writes those characters of a text in quotes as YAML's escapes, so that it can be shown and read back. @param {string} quoted */
export const escapeHidden = (quoted) => quoted.replace(hidden, (c) => {
  const code = c.codePointAt(0) ?? 0;
  return (code > 0xffff ? "\\U" : "\\u") + code.toString(16).padStart(code > 0xffff ? 8 : 4, "0");
});

/** @param {any} value @returns {any} */
function deep(value) {
  if (typeof value === "string") return clean(value);
  if (Array.isArray(value)) return value.map(deep);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [clean(key, 512), deep(each)]));
}

/**
 * Parses JSON from the hub or a member, so that all its strings can be shown. Most messages have nothing to replace.
 * @param {string} json
 */
export function parse(json) {
  const value = JSON.parse(json);
  hidden.lastIndex = 0;
  return json.length > many || hidden.test(json) || (json.includes("\\") && escaped.test(json)) ? deep(value) : value;
}

/**
 * Returns a command in which each value is one word: command`kubectl drover use ${key}`. The command is empty if a value
 * contains anything but letters, digits, spaces and the characters _@+=:,./- , because shells quote other characters
 * differently: sh, PowerShell, cmd and fish have no quotes in common that protect all of them. It is also empty if a
 * value is empty, or begins with a dash, because a program would read it as an option.
 * @param {TemplateStringsArray} parts @param {...string} values
 */
export function command(parts, ...values) {
  if (!values.every((word) => /^[\w@+:,./][\w@+=:,./ -]*$/.test(word))) return "";
  const quoted = values.map((word) => (word.includes(" ") ? `"${word}"` : word));
  return String.raw({ raw: parts }, ...quoted);
}

/**
 * Returns the value of a key that someone else chose, such as a label or a part of an address. It finds nothing that all
 * objects inherit, such as "constructor".
 * @template T @param {Record<string, T> | undefined | null} map @param {string} key @returns {T | undefined}
 */
export const own = (map, key) => (map && Object.hasOwn(map, key) ? map[key] : undefined);

/** Returns the beginning of a text, or "" for a value that is no text. @param {any} text */
export function short(text, limit = 300) {
  const all = typeof text === "string" || typeof text === "number" ? String(text) : "";
  return all.length > limit ? all.slice(0, limit) + "…" : all;
}

/** Returns a number with commas: 10,000. The first use of toLocaleString takes browsers some 50 ms. @param {number | string} n */
export const digits = (n) => String(n).replace(/\B(?=(\d{3})+(?!\d))/g, ",");

/** Returns a number with its noun: 1 node, 2 nodes. @param {number} n @param {string} noun */
export const count = (n, noun, plural = noun + "s") => `${digits(n)} ${n === 1 ? noun : plural}`;

/** Splits a reason such as TunnelLost into words: Tunnel lost. @param {string | undefined} reason */
export function words(reason = "") {
  const split = short(reason, 80).replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase().replace(/\bapi\b/g, "API");
  return split.charAt(0).toUpperCase() + split.slice(1);
}
