// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// An object as YAML, as the hub's API server has it.

import { html } from "../lib/html.js";
import { exact, yaml } from "../lib/yaml.js";
import { drover, get } from "../core/api.js";
import { may } from "../core/rights.js";
import { useCommands } from "../shell/commands.js";
import { openDialog } from "../ui/dialog.js";
import { Icon } from "../ui/icons.js";
import { Command, Loading, Note, Problem, useFetch } from "../ui/parts.js";

/** @typedef {{ resource: string, namespace: string, name: string }} Shown */

/** The button in the heading of a view that shows its object, if the user may get it. @param {Shown} shown */
export function ManifestButton({ resource, namespace, name }) {
  const allowed = may({ verb: "get", resource, namespace, name });
  const show = () => openDialog(`${name} as YAML`, Manifest, { resource, namespace, name }, { drawer: true });
  useCommands(allowed ? [{ id: "yaml", title: `Show ${name} as YAML`, icon: "code", run: show }] : [], [allowed, namespace, name]);
  return allowed ? html`<button type="button" class="icon-button framed" aria-label="Show as YAML" title="YAML" onClick=${show}><${Icon} name="code" /></button>` : null;
}

/** @param {Shown} shown */
function Manifest(shown) {
  const { value, error, retry } = useFetch((signal) => get({ ...drover, ...shown }, { raw: true, signal }), []);
  return html`<div class="dialog-body">${error ? html`<${Problem} error=${error} retry=${retry} />` : !value ? html`<${Loading} />`
    : !exact(value) ? html`<${Note}>The object has a number that browsers round. Read it with kubectl.</${Note}>`
    : html`<${Command} text=${yaml({ ...value, metadata: { ...value.metadata, managedFields: undefined } })} what="Manifest" lines />`}</div>`;
}
