// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Functions that create elements. Text is never parsed as HTML.

/** Creates an element. Properties that begin with "on" are listeners, others are attributes. An attribute that is undefined or false is omitted. */
export function el(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** Returns an input with its label. */
export function field(label, input) {
  input.id ||= "f" + Math.random().toString(36).slice(2);
  return el("div", {}, el("label", { for: input.id }, label), input);
}

/** Returns a table. Rows are lists of cells. If there is no room for columns, each cell is a line with the heading of its column. */
export function table(caption, head, rows) {
  return el("table", {},
    el("caption", { class: "soft" }, caption),
    el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, cell)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { "data-head": head[i] }, cell))))));
}

/** Returns a list of terms and values. Pairs without a value are omitted. */
export function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "").flatMap(([term, value]) => [el("dt", {}, term), el("dd", {}, value)]));
}

/** Returns the condition of an object with a type. */
export const condition = (object, type) => object.status?.conditions?.find((c) => c.type === type);

/** Returns the state of a condition as a class and a word, so that a state is shown by more than its color. */
export function state(found) {
  const status = found?.status ?? "Unknown";
  return { name: status.toLowerCase(), word: status === "True" ? "Ready" : status === "False" ? "Not ready" : "Unknown" };
}

const units = [["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]];
const words = new Intl.RelativeTimeFormat("en");

function relative(time) {
  const seconds = Math.round((Date.parse(time) - Date.now()) / 1000);
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= size) ?? units.at(-1);
  return words.format(Math.round(seconds / size), unit);
}

/** Returns a time in a readable form, with the exact time as its title. */
export function when(time) {
  return time ? el("time", { datetime: time, title: time }, relative(time)) : undefined;
}

// Updates the shown ages as time passes.
setInterval(() => {
  for (const time of document.querySelectorAll("time")) time.textContent = relative(time.dateTime);
}, 10_000);
