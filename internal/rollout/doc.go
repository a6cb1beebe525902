// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout computes the next step of a Plan, or the reason to wait.
//
// The computation works in the same way on two levels: Next is for the nodes of one member, and NextMember is for the
// members of a fleet. Both depend only on the observed state and the given time, so the same input always results in
// the same step. All state is stored on the objects themselves, in a claim (an annotation) and a label. Each step is a
// single write or is safe to repeat. docs/spec/plan.md defines the rules, and docs/design/0005-plans.md explains the
// reasons.
package rollout
