// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The library as views use it: templates, hooks and signals. Views import from here and never from vendor/.

import htm from "../vendor/htm.js";
import { Component, createElement } from "../vendor/preact.js";

export { Component, Fragment, createRef, options, render } from "../vendor/preact.js";
export { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../vendor/hooks.js";
export { batch, computed, effect, signal, untracked, useComputed, useSignal } from "../vendor/signals.js";

/** Creates elements from a template. Values become text or attributes, and are never parsed as HTML. */
export const html = htm.bind(createElement);

/**
 * Joins class names, leaving out those that are false.
 * @param {...(string | false | null | undefined)} names
 */
export const classes = (...names) => names.filter(Boolean).join(" ");

/** A component that renders again only when one of its properties is another value. */
export class Pure extends Component {
  /** @param {Record<string, any>} next */
  shouldComponentUpdate(next) {
    for (const key in next) if (next[key] !== this.props[key]) return true;
    for (const key in this.props) if (!(key in next)) return true;
    return false;
  }
}
