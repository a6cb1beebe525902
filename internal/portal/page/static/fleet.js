// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The view of the fleet has a tile for each Cluster. Tiles are updated in place.

import { condition, el, field, state } from "./dom.js";
import { all, keyOf } from "./stream.js";
import { show } from "./detail.js";
import { importDialog } from "./import.js";

const tiles = new Map();
const grid = el("ul", { class: "grid", "aria-label": "Clusters" });
const search = el("input", { type: "search", autocomplete: "off", oninput: () => filter() });
const which = el("select", { onchange: () => filter() }, [["", "All"], ["true", "Ready"], ["false", "Not ready"], ["unknown", "Unknown"]].map(([value, text]) => el("option", { value }, text)));
const count = el("p", { role: "status" });

/** The view. */
export const fleet = {
  title: "Clusters",
  element: el("section", { "aria-label": "Clusters" },
    el("div", { class: "tools" }, field("Search by name, workspace, version or label", search), field("State", which),
      el("button", { class: "main", onclick: () => importDialog() }, "Import a cluster"), count),
    grid),
  changed(dirty) {
    const keys = dirty.get("clusters");
    if (!keys) return;
    const added = [];
    for (const key of keys) {
      if (key === "") continue;
      const cluster = all.clusters.get(key);
      const tile = tiles.get(key);
      if (!cluster) {
        tile?.item.remove();
        tiles.delete(key);
      } else if (tile) {
        fill(tile, cluster);
      } else {
        const made = { item: el("li"), button: el("button", { onclick: () => show(key) }), name: el("span"), about: el("small"), why: el("small") };
        made.button.append(made.name, made.about, made.why);
        made.item.append(made.button);
        tiles.set(key, made);
        fill(made, cluster);
        added.push(key);
      }
    }
    if (added.length > 0) place(added);
    filter();
  },
};

function fill(tile, cluster) {
  const ready = condition(cluster, "Ready");
  const { name, word } = state(ready);
  tile.state = name;
  tile.text = [cluster.metadata.name, cluster.metadata.namespace, cluster.status?.version, word, ready?.reason, ...Object.entries(cluster.metadata.labels ?? {}).map((pair) => pair.join("="))].join(" ").toLowerCase();
  tile.button.className = "tile " + name;
  tile.name.textContent = cluster.metadata.name;
  tile.about.textContent = [cluster.metadata.namespace, cluster.status?.version].filter(Boolean).join(" · ");
  tile.why.textContent = name === "true" ? word : `${word}: ${ready?.reason ?? "Pending"}`;
}

// Many tiles are added at once, so that two thousand need one layout.
function place(added) {
  const sorted = [...tiles.keys()].sort();
  if (added.length > 50) {
    grid.replaceChildren(...sorted.map((key) => tiles.get(key).item));
    return;
  }
  for (const key of added.sort()) {
    const next = sorted[sorted.indexOf(key) + 1];
    grid.insertBefore(tiles.get(key).item, next && tiles.get(next).item.parentNode ? tiles.get(next).item : null);
  }
}

function filter() {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const counts = { true: 0, false: 0, unknown: 0 };
  let shown = 0;
  for (const tile of tiles.values()) {
    counts[tile.state]++;
    const fits = (!which.value || tile.state === which.value) && words.every((word) => tile.text.includes(word));
    if (tile.item.hidden === fits) tile.item.hidden = !fits;
    if (fits) shown++;
  }
  const text = tiles.size === 0 ? "There are no Clusters that you can reach or watch." :
    `${shown === tiles.size ? "" : shown + " shown of "}${tiles.size}: ${counts.true} ready, ${counts.false} not ready, ${counts.unknown} unknown.`;
  if (count.textContent !== text) count.textContent = text;
}

/** Returns all workspaces that have a Cluster. */
export const workspaces = () => [...new Set([...all.clusters.values()].map((cluster) => cluster.metadata.namespace))].sort();
export { keyOf };
