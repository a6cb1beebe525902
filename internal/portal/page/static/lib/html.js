// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The library as views use it: templates, hooks and signals. Views import from here and never from third_party/.

import htm from "../third_party/htm.js";
import { Component, createElement } from "../third_party/preact.js";

export { render } from "../third_party/preact.js";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../third_party/hooks.js";
export { batch, computed, effect, signal } from "../third_party/signals.js";

/** Creates elements from a template. Values become text or attributes, and are never parsed as HTML. */
export const html = htm.bind(createElement);

/**
 * Joins class names without the false ones.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");

/** A component that renders again only when one of its properties is another value. */
export class Pure extends Component {
  /** @returns {any} */
  render() { return null; }

  /** @param {Record<string, any>} next */
  shouldComponentUpdate(next) {
    for (const key in next) if (next[key] !== this.props[key]) return true;
    for (const key in this.props) if (!(key in next)) return true;
    return false;
  }
}
