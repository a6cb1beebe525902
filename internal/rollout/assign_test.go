// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/rollout"
)

func TestWavesOfAShare(t *testing.T) {
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	ring := &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "first"}}
	for name, tt := range map[string]struct {
		clusters int
		waves    []rollout.Wave
		want     []int // members of each wave, and of the rest
	}{
		"a share counts members that no earlier wave took": {
			200, []rollout.Wave{{Name: "a", Share: 1}, {Name: "b", Share: 10}}, []int{2, 20, 178},
		},
		"a share is at least one member": {
			3, []rollout.Wave{{Name: "a", Share: 1}, {Name: "b", Share: 10}}, []int{1, 1, 1},
		},
		"a single member": {
			1, []rollout.Wave{{Name: "a", Share: 1}, {Name: "b", Share: 10}}, []int{1, 0, 0},
		},
		"a wave may take all": {5, []rollout.Wave{{Name: "a", Share: 100}}, []int{5, 0}},
		"a share of the selected members": {
			100, []rollout.Wave{{Name: "a", Selector: ring, Share: 50}}, []int{5, 95},
		},
		"a share after a wave with a selector": {
			100, []rollout.Wave{{Name: "a", Selector: ring}, {Name: "b", Share: 50}}, []int{10, 45, 45},
		},
		"a wave without share takes the rest": {
			100, []rollout.Wave{{Name: "a", Share: 50}, {Name: "b"}}, []int{50, 50, 0},
		},
		"no members": {0, []rollout.Wave{{Name: "a", Share: 1}}, []int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var clusters []rollout.Cluster
			for i := range tt.clusters {
				c := rollout.Cluster{Name: fmt.Sprintf("w/c%03d", i), Selected: true}
				if i%10 == 0 {
					c.Labels = ring.MatchLabels
				}
				clusters = append(clusters, c)
			}
			plan := rollout.FleetPlan{Revision: "r", Pace: rollout.Pace{Waves: tt.waves}}
			waves := func(all []rollout.Cluster) map[string]string {
				f, err := rollout.NewFleet(all, plan, now)
				if err != nil {
					t.Fatal(err)
				}
				of := map[string]string{}
				for i := range all {
					of[all[i].Name] = f.WaveOf(i)
				}
				return of
			}
			counts, got := map[string]int{}, waves(clusters)
			for _, wave := range got {
				counts[wave]++
			}
			for i, w := range append(slices.Clone(tt.waves), rollout.Wave{Name: rollout.Rest}) {
				if counts[w.Name] != tt.want[i] {
					t.Errorf("wave %s has %d members, want %d", w.Name, counts[w.Name], tt.want[i])
				}
			}
			if tt.clusters < 2 {
				return
			}
			moved := 0 // removing a Cluster changes little for the others
			for name, wave := range waves(clusters[1:]) {
				if got[name] != wave {
					moved++
				}
			}
			if moved > len(tt.waves) {
				t.Errorf("%d members are in another wave after one was removed, want at most one for each wave", moved)
			}
		})
	}
}

// TestBegin checks that Begin records the state that NewFleet finds afterward.
func TestBegin(t *testing.T) {
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	var clusters []rollout.Cluster
	for i := range 40 {
		clusters = append(clusters, rollout.Cluster{Name: fmt.Sprintf("c%02d", i), Selected: true})
	}
	plan := rollout.FleetPlan{Revision: "r",
		Pace: rollout.Pace{MaxConcurrent: 3, Waves: []rollout.Wave{{Name: "a", Share: 5}, {Name: "b", Share: 50}}}}
	for round := range 40 {
		f, err := rollout.NewFleet(clusters, plan, now)
		if err != nil {
			t.Fatal(err)
		}
		for {
			d := f.Next()
			if fresh := rollout.NextMember(slices.Clone(clusters), plan, now); fmt.Sprint(d.Wait) != fmt.Sprint(fresh.Wait) ||
				(d.Step == nil) != (fresh.Step == nil) {
				t.Fatalf("round %d: %+v %+v, want %+v %+v as a new fleet finds", round, d.Step, d.Wait, fresh.Step, fresh.Wait)
			}
			if d.Step == nil {
				break
			}
			f.Begin(d.Step)
		}
		working := 0
		for i := range clusters {
			if c := clusters[i].Claim; c != nil && c.Complete == nil {
				working++
				clusters[i].Claim = &rollout.ClusterClaim{Revision: "r", Since: c.Since, Complete: &now}
			}
		}
		if working > 3 {
			t.Fatalf("round %d: %d at work, want at most 3", round, working)
		}
	}
	if slices.ContainsFunc(clusters, func(c rollout.Cluster) bool { return c.Claim == nil }) {
		t.Error("some members never began, want all to begin")
	}
}
