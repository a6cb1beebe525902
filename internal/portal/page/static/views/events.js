// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Events of Clusters: fetched from the hub when they are shown, where the user may list them.

import { html } from "../lib/html.js";
import { count, digits, short, words } from "../lib/text.js";
import { Time } from "../lib/time.js";
import { listIn, may, places } from "../core/rights.js";
import { href } from "../core/router.js";
import { Icon, Mark } from "../ui/icons.js";
import { Card, Empty, Loading, Problem, useFetch } from "../ui/parts.js";

const most = 500; // events of one list

const lists = { verb: "list", resource: "events", group: "" };

/** The component that reported an event, by its own account. @param {any} event */
const reporter = (event) => short(event.reportingComponent || event.source?.component, 60) || "unknown";

/** When an event happened last. @param {any} event @returns {string} */
const when = (event) => event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;

/**
 * Fetches events that match a field selector, the newest first.
 * @param {(string | undefined)[]} namespaces @param {string} fieldSelector @param {AbortSignal} signal
 */
async function fetchEvents(namespaces, fieldSelector, signal) {
  const { items, cut } = await listIn(namespaces, { resource: "events" }, { limit: most, query: { fieldSelector }, signal });
  return { events: items.sort((a, b) => (when(a) < when(b) ? 1 : -1)), cut };
}

/** @param {{ event: any, named?: boolean }} props */
function Event({ event, named }) {
  const { namespace, name } = event.involvedObject;
  const times = event.series?.count ?? event.count ?? 1;
  return html`<li class="item"><${Mark} name=${event.type === "Warning" ? "broken" : "working"} /><span class="item-main">${named && html`<a href=${href(["clusters", namespace, name])}>${name}</a> <span class="soft">${namespace}</span> `}<span class="event-reason" title=${short(event.reason, 100)}>${words(event.reason)}</span>
    <span class=${named ? "event-message one" : "event-message"} title=${named ? short(event.message, 1000) : undefined}>${short(event.message, named ? 160 : 1000)} <small>${`by ${reporter(event)}`}</small></span></span><span class="soft"><${Time} at=${when(event)} />${times > 1 && ` ×${times}`}</span></li>`;
}

/** @param {{ namespaces: (string | undefined)[], selector: string, named?: boolean, show: number, title: string, nothing: string, partly?: boolean }} props */
function EventCard({ namespaces, selector, named, show, title, nothing, partly }) {
  const { value, error, loading, retry } = useFetch((signal) => fetchEvents(namespaces, selector, signal), [namespaces.join(), selector]);
  const again = html`<button type="button" class="icon-button" aria-label="Refresh the events" title="Refresh" disabled=${loading} onClick=${retry}><${Icon} name="again" /></button>`;
  const note = html`<p class="soft">Anyone who may create events can write one, also with the name of another reporter.</p>`;
  const any = Boolean(value && !error && value.events.length > 0);
  return html`<${Card} title=${title} actions=${html`${named && any && note}${again}`}>${error ? html`<${Problem} error=${error} retry=${retry} />` : !value ? html`<${Loading} label="Loading events" rows=${3} />`
    : value.events.length === 0 ? html`<${Empty} icon="check" title=${nothing} />`
    : html`${!named && note}<ul class=${named ? "list events named" : "list events"}>${value.events.slice(0, show).map((event) => html`<${Event} key=${event.metadata.namespace + "/" + event.metadata.name} event=${event} named=${named} />`)}</ul>
      ${value.cut ? html`<p class="soft">The hub lists ${digits(most)} events at once and has more, so newer ones may be missing.</p>` : value.events.length > show && !named && html`<p class="soft">And ${count(value.events.length - show, "older event")}.</p>`}`}${value && partly && html`<p class="soft">Only some of your workspaces are asked.</p>`}</${Card}>`;
}

/** Warnings about Clusters, for the overview. Nothing if the user may list no events. @param {{ show: number }} props */
export function RecentEvents({ show }) {
  const where = places(lists);
  if (!where || where.namespaces.length === 0) return null;
  return html`<${EventCard} title="Recent warnings" named namespaces=${where.namespaces} partly=${where.cut} selector="involvedObject.kind=Cluster,type=Warning" show=${show} nothing="No warning is recorded" />`;
}

/** Events of one Cluster. @param {{ cluster: any }} props */
export function EventsOf({ cluster }) {
  const { namespace, name } = cluster.metadata;
  const allowed = may({ ...lists, namespace });
  if (allowed === undefined) return html`<${Loading} label="Loading events" rows=${3} />`;
  if (!allowed) return html`<${Empty} icon="clock" title=${`You may not list events in the workspace ${namespace}`}>An administrator of the workspace can give you the right.</${Empty}>`;
  return html`<${EventCard} title="Events" namespaces=${[namespace]} selector=${`involvedObject.kind=Cluster,involvedObject.name=${name}`} show=${100} nothing="No event is recorded. By default, Kubernetes keeps events for an hour" />`;
}
