// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package heap tests how much memory the worst input of each entry point can make the manager use.
package heap
