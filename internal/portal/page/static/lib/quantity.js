// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Kubernetes' quantities: "1500m" of CPU, "12Gi" of memory.

import { digits } from "./text.js";

/** @type {Record<string, number>} */
const factors = {
  n: 1e-9, u: 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** Returns the value of a quantity, or 0. @param {string | number | undefined} text */
export function quantity(text) {
  const [, number, unit] = /^([+-]?[0-9.]+(?:e[+-]?\d+)?)([a-zA-Z]{0,2})$/.exec(typeof text === "object" ? "" : String(text ?? "")) ?? [];
  return number ? Number(number) * (factors[unit] ?? 1) || 0 : 0;
}

const round = (/** @type {number} */ n) => digits(n >= 100 ? Math.round(n) : Math.round(n * 10) / 10);

/** @param {number} n */
export const cores = (n) => round(n);

/** @param {number} n */
export function bytes(n) {
  const unit = ["Ti", "Gi", "Mi", "Ki"].find((each) => n >= factors[each]);
  return unit ? `${round(n / factors[unit])} ${unit}B` : `${n} B`;
}
