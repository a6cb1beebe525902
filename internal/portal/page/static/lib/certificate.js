// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// When certificates expire.

/**
 * Returns when the first certificate of a PEM text expires, in milliseconds, or 0 if it cannot be read. It looks for the
 * two times of the validity, which are the first times in a certificate (RFC 5280, section 4.1).
 * @param {string | undefined} pem
 */
export function expires(pem) {
  const [, base64] = /-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]{1,16384})-----END/.exec(pem ?? "") ?? [];
  if (!base64) return 0;
  try {
    const der = atob(base64.replace(/\s/g, ""));
    // UTCTime has the tag 0x17 and 13 characters, GeneralizedTime 0x18 and 15.
    const times = [...der.matchAll(/\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z/g)];
    const [, utc, full] = times[1] ?? [];
    const digits = full ?? (utc ? (Number(utc.slice(0, 2)) < 50 ? "20" : "19") + utc : "");
    return Date.parse(digits.replace(/^(\d{4})(\d\d)(\d\d)(\d\d)(\d\d)(\d\d)$/, "$1-$2-$3T$4:$5:$6Z")) || 0;
  } catch {
    return 0;
  }
}
