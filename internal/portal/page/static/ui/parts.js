// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Small parts of views. DESIGN.md shows when to use which.

import { classes, html, useEffect, useId, useRef, useState } from "../lib/html.js";
import { bytes, cores } from "../lib/quantity.js";
import { clean, digits, short } from "../lib/text.js";
import { href } from "../core/router.js";
import { Icon, Mark } from "./icons.js";
import { toast } from "./toast.js";

/** A state, by form, color and word. @param {{ name: string, word: string, title?: string }} props */
export const State = ({ name, word, title }) => html`<span class=${"state " + name} title=${title}><${Mark} name=${name} /><span>${short(word, 80)}</span></span>`;

/** The heading of a view. It gets the focus after navigation. @param {{ title: any, above?: any, beside?: any, about?: any, children?: any }} props */
export const Heading = ({ title, above, beside, about, children }) => html`<header class="heading">
  ${above && html`<p class="crumbs">${above}</p>`}
  <div class="heading-line"><h1 tabindex="-1">${title}</h1>${beside}<div class="actions">${children}</div></div>
  ${about && html`<p class="about">${about}</p>`}</header>`;

/** @param {{ title?: any, actions?: any, class?: string, children: any }} props */
export const Card = ({ title, actions, class: extra, children }) => {
  const id = useId();
  return html`<section class=${classes("card", extra)} aria-labelledby=${title ? id : undefined}>
    ${title && html`<div class="card-head"><h2 id=${id}>${title}</h2>${actions}</div>`}${children}</section>`;
};

/** Terms with values. Pairs without a value are left out. @param {{ pairs: [any, any][] }} props */
export const Facts = ({ pairs }) => html`<dl class="facts">${pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
  .map(([term, value]) => html`<div><dt>${term}</dt><dd>${value}</dd></div>`)}</dl>`;

/** @param {string} text @param {string} [what] */
export async function copy(text, what = "Text") {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied.`);
  } catch {
    toast("The browser does not allow copying. Select the text instead.", "broken");
  }
}

/** A button that copies a text. @param {{ text: string, what?: string }} props */
const Copy = ({ text, what = "Text" }) => {
  const [done, setDone] = useState(false);
  useEffect(() => {
    const timer = done ? setTimeout(() => setDone(false), 1500) : undefined;
    return () => clearTimeout(timer);
  }, [done]);
  return html`<button type="button" class="icon-button" aria-label=${`Copy ${what.toLowerCase()}`} title="Copy" onClick=${() => { copy(text, what); setDone(true); }}><${Icon} name=${done ? "check" : "copy"} /></button>`;
};

const oneLine = (/** @type {string} */ text) => text.replace(/[\r\n\t]+/g, " "); // a terminal runs a line at its end

/**
 * The button that copies a text as it is shown. A text that is not shown in full is not copied: it would mean something else.
 * @param {{ shown: string, cut: boolean, what?: string }} props
 */
const CopyShown = ({ shown, cut, what }) => (cut ? html`<span class="soft">Too long to copy</span>` : html`<${Copy} text=${shown} what=${what} />`);

/** A value that people copy, in one line. @param {{ text: string, what?: string }} props */
export const CopyField = ({ text, what }) => {
  const shown = clean(oneLine(text), 2000);
  return html`<span class="copy-field"><code>${shown}</code><${CopyShown} shown=${shown} cut=${text.length > 2000} what=${what} /></span>`;
};

/** A command for a terminal. Build it with command(), which quotes its values. With lines, a text of several lines. @param {{ text: string, what?: string, lines?: boolean }} props */
export const Command = ({ text, what = "Command", lines }) => {
  if (!text) return html`<p class="soft">There is no safe command for these values.</p>`;
  const shown = clean(lines ? text : oneLine(text), 65_536); // the import command may contain certificates
  return html`<div class="command"><pre tabindex="0" aria-label=${what}>${shown}</pre><${CopyShown} shown=${shown} cut=${text.length > 65_536} what=${what} /></div>`;
};

/** The last lines of a log. @param {{ text: string, label: string }} props */
export const Log = ({ text, label }) => html`<pre class="log" tabindex="0" aria-label=${label}>${clean(text, 8000)}</pre>`;

/** Labels of an object. @param {{ pairs: string[], most?: number }} props */
export const Labels = ({ pairs, most = 50 }) => html`<span class="labels">${pairs.slice(0, most).map((pair) => html`<span class="label" title=${short(pair, 200)}>${short(pair, 80)}</span>`)}${pairs.length > most && html`<span class="label more">+${pairs.length - most}</span>`}</span>`;

/** How much of something is used. @param {{ used: number, total: number, label: string, unit: "cores" | "bytes" | "", compact?: boolean, word?: string }} props */
export function Meter({ used, total, label, unit, compact, word = "requested" }) {
  if (!(total > 0)) return html`<span class="soft">–</span>`;
  const share = used / total;
  const show = unit === "bytes" ? bytes : cores;
  const percent = Math.round(share * 100);
  return html`<span class=${classes("meter", compact && "compact", share > 0.9 && "full")} title=${`${show(used)} of ${show(total)} ${word}`}>
    <span class="bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.min(percent, 100)}><span style=${{ width: `${Math.min(100, share * 100)}%` }}></span></span>
    <span class="number">${compact ? `${percent} %` : html`${show(used)}<span class="soft"> of ${show(total)}${unit === "cores" ? " cores" : ""}</span>`}</span></span>`;
}

/** Parts of a whole as one bar. @param {{ parts: { name: string, n: number, word: string }[], label: string }} props */
export function Bar({ parts, label }) {
  const total = parts.reduce((n, part) => n + part.n, 0) || 1;
  return html`<div class="stack" role="img" aria-label=${`${label}: ${parts.map((part) => `${part.n} ${part.word}`).join(", ")}`}>
    ${parts.filter((part) => part.n > 0).map((part) => html`<span class=${part.name} style=${{ flexGrow: part.n / total }}></span>`)}</div>`;
}

/**
 * The waves of a Plan, one after the other. @param {{ waves: any[] }} props
 */
export const Waves = ({ waves }) => html`<ol class="waves">${waves.slice(0, 20).map(({ name, clusters, soakUntil }) => {
  const failed = clusters.failed > 0;
  const done = clusters.total > 0 && clusters.complete === clusters.total;
  const label = `${name}: ${clusters.summary}${failed ? `, ${clusters.failed} failed` : ""}`;
  return html`<li class=${classes("wave", failed ? "broken" : done ? "working" : clusters.complete + clusters.applying > 0 ? "waiting" : "idle")}>
    <progress class=${failed ? "failed" : ""} aria-label=${label} max=${Math.max(clusters.total, 1)} value=${clusters.complete}></progress>
    <span class="wave-name">${name}</span><span class="wave-count">${clusters.summary}${failed && html`<b class="bad"> · ${clusters.failed} failed</b>`}</span>${soakUntil && !failed && html`<span class="soft"> · soaks</span>`}</li>`;
})}</ol>`;

/** @param {{ icon?: string, title: string, children?: any }} props */
export const Empty = ({ icon = "search", title, children }) => html`<div class="empty"><${Icon} name=${icon} size=${28} /><p class="empty-title">${title}</p>${children && html`<div class="soft">${children}</div>`}</div>`;

/** The end of a list of which only the first items are shown. @param {{ all: number, most: number }} props */
export const More = ({ all, most }) => (all > most ? html`<li class="soft">${`And ${digits(all - most)} more.`}</li>` : null);

/** @param {{ label?: string, rows?: number }} props */
export const Loading = ({ label = "Loading", rows = 6 }) => html`<div class="loading" role="status"><span class="hidden">${label}</span>${Array.from({ length: rows }, () => html`<span class="bone"></span>`)}</div>`;

/** What failed, why, and what to do. @param {{ error: any, title?: string, retry?: () => void }} props */
export const Problem = ({ error, title, retry }) => html`<div class="problem" role="alert"><${Mark} name="broken" /><div>${title && html`<p><strong>${title}</strong></p>`}<p>${short(error?.message ?? String(error), 2000)}</p>
  ${error?.advice && html`<p class="soft">${error.advice}</p>`}${retry && html`<p><button type="button" onClick=${retry}>Try again</button></p>`}</div></div>`;

/** A remark about a state that is not wrong, but worth knowing. @param {{ name?: string, children: any }} props */
export const Note = ({ name = "waiting", children }) => html`<div class=${"note " + name}><${Mark} name=${name} /><div>${children}</div></div>`;

/**
 * Tabs that are links, so that each has an address. @param {{ label: string, tabs: { id: string, title: string, n?: number }[], current: string, path: string[] }} props
 */
export const Tabs = ({ label, tabs, current, path }) => html`<nav class="tabs" aria-label=${label}>${tabs.map(({ id, title, n }) => html`
  <a href=${href(id === tabs[0].id ? path : [...path, id])} aria-current=${id === current ? "page" : undefined}>${title}${n !== undefined && html`<span class="badge">${n}</span>`}</a>`)}</nav>`;

/** A choice of few values, as buttons. @param {{ label: string, value: string, options: { value: string, label: string, icon?: string }[], onChange: (value: string) => void }} props */
export const Segments = ({ label, value, options, onChange }) => html`<div class="segments" role="group" aria-label=${label}>${options.map((option) => html`
  <button type="button" aria-pressed=${String(option.value === value)} title=${option.icon ? option.label : undefined} aria-label=${option.icon ? option.label : undefined} onClick=${() => onChange(option.value)}>${option.icon ? html`<${Icon} name=${option.icon} />` : option.label}</button>`)}</div>`;

/** A menu below a button. @param {{ label: any, name?: string, class?: string, children: any }} props */
export function Menu({ label, name, class: extra, children }) {
  const ref = useRef(/** @type {any} */ (null));
  useEffect(() => {
    const close = (/** @type {Event} */ event) => {
      const menu = ref.current;
      if (!menu?.open) return;
      if (event.type === "keydown") {
        if (/** @type {KeyboardEvent} */ (event).key !== "Escape") return;
        menu.open = false;
        menu.querySelector("summary").focus();
      } else if (!menu.contains(event.target) || /** @type {Element} */ (event.target).closest("a")) {
        menu.open = false;
      }
    };
    addEventListener("click", close);
    addEventListener("keydown", close);
    return () => { removeEventListener("click", close); removeEventListener("keydown", close); };
  }, []);
  return html`<details class="menu" ref=${ref}><summary class=${extra} aria-label=${name} title=${name}>${label}</summary><div class="menu-body">${children}</div></details>`;
}

/** Fetches something on demand. Returns the result so far and a function that fetches it again. @template T @param {(signal: AbortSignal) => Promise<T>} fetcher @param {any[]} inputs */
export function useFetch(fetcher, inputs) {
  const [state, set] = useState(/** @type {{ value?: T, error?: any, loading: boolean }} */ ({ loading: true }));
  const [round, again] = useState(0);
  useEffect(() => {
    const control = new AbortController();
    set((was) => ({ ...was, loading: true }));
    fetcher(control.signal).then((value) => { if (!control.signal.aborted) set({ value, loading: false }); },
      (error) => { if (!control.signal.aborted) set({ error, loading: false }); });
    return () => control.abort();
  }, [...inputs, round]);
  return { ...state, retry: () => again(round + 1) };
}
