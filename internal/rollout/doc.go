// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout computes the next step of a Plan, or the reason to wait.
//
// It does so on two levels in the same way: Next for the nodes of one member, NextMember for the members of a fleet.
// Both depend only on the observed state and on the time that they are given, so the same observation always gives the
// same step. All state is kept on the objects themselves, as a claim (an annotation) and a label. A step is a single
// write, or it is harmless when repeated. docs/spec/plan.md has the rules, docs/design/0005-plans.md the reasons.
package rollout
