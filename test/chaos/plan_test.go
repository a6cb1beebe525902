// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
	"time"
)

func someTargets() []target {
	return []target{{"manager-0", manager}, {"manager-1", manager}, {"agent", agent}, {"fleetsim", simulator}, {"api", apiServer}, {"link", link}}
}

func TestAPlan(t *testing.T) {
	const duration = 30 * time.Minute
	actions := plan(7, duration, someTargets())
	t.Run("is the same for the same seed and another for another", func(t *testing.T) {
		if !slices.Equal(actions, plan(7, duration, someTargets())) {
			t.Error("the same seed gives another plan")
		}
		if slices.Equal(actions, plan(8, duration, someTargets())) {
			t.Error("another seed gives the same plan")
		}
	})
	t.Run("does every kind of harm to every target that it can happen to", func(t *testing.T) {
		for _, target := range someTargets() {
			for _, h := range harmsOf(target.class) {
				if !slices.ContainsFunc(actions, func(a action) bool { return a.target == target.name && a.kind == h.kind }) {
					t.Errorf("%s never happens to %s", h.kind, target.name)
				}
			}
		}
	})
	t.Run("leaves a target alone while something happens to it, and a moment longer", func(t *testing.T) {
		busy := map[string]time.Duration{}
		for _, a := range actions {
			if a.after < busy[a.target] {
				t.Errorf("%s at %s comes before %s", a, a.after, busy[a.target])
			}
			busy[a.target] = a.after + a.lasts + recovery
		}
	})
	t.Run("ends no process of Drover in its last part", func(t *testing.T) {
		for _, a := range actions {
			ends := (a.class == manager || a.class == agent) && (a.kind == killed || a.kind == stopped)
			if ends && a.after > duration-time.Duration(calmShare*float64(duration)) {
				t.Errorf("%s at %s", a, a.after)
			}
		}
	})
	t.Run("keeps within its time", func(t *testing.T) {
		for _, a := range actions {
			if a.after >= duration {
				t.Errorf("%s at %s", a, a.after)
			}
		}
	})
}
