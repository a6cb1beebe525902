// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arch holds the tests that keep the shape of this tree: package sentences, imports, budgets, license headers.
//
// If a rule must be broken for a good reason, change the rule here, with the reason, instead of adding an exception
// next to the code.
package arch
