// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rollout computes the next step of a Plan, or the reason to wait.
//
// It does so on two levels of one shape: Next for the nodes of one member, NextMember for the members of a fleet. Both
// look at nothing but what is observed and are given the time: the same observation gives the same step. All state is
// on the objects that are worked on, as a claim (an annotation) and a label; a step is one write, or is harmless when
// repeated. docs/spec/plan.md has the rules, docs/design/0005-plans.md the reasons.
package rollout
