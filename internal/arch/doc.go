// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arch contains tests that enforce the structure of this source tree: package comments, imports, budgets and
// license headers.
//
// If a rule must be broken for a good reason, change the rule here and give the reason, instead of adding an exception
// next to the code.
package arch
