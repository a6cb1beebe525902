// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers_test

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
)

// fakeDeliveries replaces the delivery store in tests that call Reconcile directly. It keeps the sets, by the kind of
// their owner, and reports the outcomes that the test sets for members.
type fakeDeliveries struct {
	outcomes   []delivery.Outcome
	guards     []delivery.Outcome // outcomes of the guards in members; nil if they are the same as for all other sets
	kept       map[types.NamespacedName]*set.Set
	held, away int
	sets       map[string]map[types.NamespacedName]*set.Set
}

func (d *fakeDeliveries) Replace(key delivery.Key, sets map[types.NamespacedName]*set.Set) {
	if d.sets == nil {
		d.sets = map[string]map[types.NamespacedName]*set.Set{}
	}
	d.sets[key.Kind] = sets
}

func (d *fakeDeliveries) Outcomes(id string, _ []types.NamespacedName) []delivery.Outcome {
	if id == set.Guards && d.guards != nil {
		return d.guards
	}
	return d.outcomes
}

func (d *fakeDeliveries) Kept(_ string, member types.NamespacedName) *set.Set { return d.kept[member] }

func (d *fakeDeliveries) Remains(string, []types.NamespacedName) (held, away, unreported int) {
	return d.held, d.away, 0
}
func (d *fakeDeliveries) Forget(types.NamespacedName)  {}
func (d *fakeDeliveries) Changed(types.NamespacedName) {}
