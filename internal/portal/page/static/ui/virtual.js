// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Which rows of a long list are rendered: those in sight, and some above and below.

import { useEffect, useLayoutEffect, useRef, useState } from "../lib/html.js";

const spare = 8; // rows above and below
/** @type {Map<string, number>} */
const places = new Map(); // where a list was scrolled to, for Back

/**
 * Returns the range of rows to render in a list of a number of rows of one height.
 * @param {{ id: string, rows: number, height: number, shown?: boolean }} list
 */
export function useWindow({ id, rows, height, shown = rows > 0 }) {
  const ref = useRef(/** @type {any} */ (null));
  const [top, setTop] = useState(0);
  const [size, setSize] = useState({ height: 800, width: 1200 });
  useLayoutEffect(() => {
    const scroller = ref.current;
    if (!scroller) return undefined;
    scroller.scrollTop = places.get(id) ?? 0;
    const measure = () => setSize((was) => (was.height === scroller.clientHeight && was.width === scroller.clientWidth ? was : { height: scroller.clientHeight, width: scroller.clientWidth }));
    const observer = new ResizeObserver(measure);
    observer.observe(scroller);
    measure();
    return () => observer.disconnect();
  }, [id, shown]);
  useEffect(() => {
    const scroller = ref.current;
    if (!scroller) return undefined;
    const moved = () => {
      if (scroller.scrollTop > 0) places.set(id, scroller.scrollTop);
      else places.delete(id);
      setTop(Math.floor(scroller.scrollTop / (height * 4)) * height * 4); // renders once per four rows
    };
    moved();
    scroller.addEventListener("scroll", moved, { passive: true });
    return () => scroller.removeEventListener("scroll", moved);
  }, [id, height, shown]);
  const first = Math.max(0, Math.min(Math.floor(top / height), rows - Math.ceil(size.height / height)) - spare);
  const last = Math.min(rows, Math.ceil((top + size.height) / height) + 4 + spare);
  return { ref, first, last, width: size.width, before: first * height, after: Math.max(0, rows - last) * height };
}
