// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arch holds the tests that keep the shape of this tree: package sentences, imports, budgets, licence headers.
//
// A rule that is broken for a good reason is changed here, where the reason can be read, and not waived beside the
// code.
package arch
