// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k3s decides which Hosts belong to a k3s or RKE2 cluster, and which instructions each Host has to carry out.
//
// The package has no side effects. The caller first stores the decisions that must not be made twice. Then it claims
// and releases Hosts, and writes their instructions. After that, it calls Decide again.
//
// Decide lists all steps of a decision: package restore, and then join.go, leave.go, task.go and change.go. Package roster
// has the facts, and package distribution creates the instructions of a host.
package k3s

import (
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/restore"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// Decide returns the actions to take now. The same input always results in the same decision.
func Decide(in roster.Input) (decision.Decision, error) {
	dist, err := distributionOf(in.Spec.Distribution)
	if err != nil {
		return decision.Decision{}, err
	}
	d := decision.Begin(roster.New(in), dist)
	if err := steps(d); err != nil {
		return decision.Decision{}, err
	}
	out := d.Finish()
	out.Etcd, err = progressOf(d)
	return out, err
}

// steps performs the steps of the decision in order. It returns when a step has to wait.
func steps(d *decision.Draft) error {
	if restores, err := restore.Continue(d); restores || err != nil {
		return err
	}
	if d.Roster.Refused {
		d.Out.Take = nil
		d.WaitAll("a spec that can be had")
		return nil
	}
	if !begin(d) {
		return nil
	}
	removes := leaves(d)
	decideTask(d, len(removes))
	if err := change(d, removes); err != nil {
		return err
	}
	return join(d)
}
