// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan runs the Plans of the member, node by node, and reports their progress.
//
// Only the leader runs Plans. It watches the member, and stores the responses to its own writes immediately. Based on
// this data, the planner chooses the next step, and the Runner performs it. This repeats until all Plans are waiting.
// All persistent state is on the nodes and Jobs, so another Runner can continue if this one stops at any point.
package plan
