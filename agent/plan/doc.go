// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan runs the Plans of the member: it takes the steps that the planner decides, node by node, and says how far they are.
//
// Only the replica that leads does. What is known is gathered from watches, in which the answers of own writes count at once; the
// planner looks at that and names one step; the step is taken, and so on until all Plans wait. All state is on the nodes and Jobs:
// a Runner that is stopped at any point is followed by another that goes on.
package plan
