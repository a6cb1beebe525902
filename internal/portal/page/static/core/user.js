// @ts-check
// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// The user who is signed in, with the names in bindings.

import { signal } from "../lib/html.js";

/** @type {import("../third_party/signals.js").Signal<{ username: string, groups?: string[] }>} */
export const me = signal({ username: "" });
