// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// scenarioOf returns a scenario of clusters with three nodes each.
func scenarioOf(clusters int, rollout *v1.Rollout) Scenario {
	s := Scenario{Start: metav1.NewTime(time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC))}
	s.Plan.Name, s.Plan.Spec.Version = "p", "v1"
	s.Plan.Spec.ClusterSelector, s.Plan.Spec.Rollout = &metav1.LabelSelector{}, rollout
	for i := range clusters {
		s.Clusters = append(s.Clusters, Cluster{Name: fmt.Sprintf("c%04d", i),
			Nodes: []Node{{Name: "a"}, {Name: "b"}, {Name: "c"}}})
	}
	return s
}

// generatedScenario returns a scenario with clusters that are away, held or not selected, nodes that fail, and waves
// that soak.
func generatedScenario(r *rand.Rand) Scenario {
	rollout := &v1.Rollout{MaxConcurrentClusters: 1 + r.Int32N(4), MaxFailedClusters: r.Int32N(4)}
	for i := range r.IntN(4) {
		wave := v1.Wave{Name: fmt.Sprintf("w%d", i),
			ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": fmt.Sprint(r.IntN(4))}}}
		if r.IntN(2) == 0 {
			wave.Soak = &metav1.Duration{Duration: time.Duration(r.IntN(3)) * time.Hour}
		}
		rollout.Waves = append(rollout.Waves, wave)
	}
	s := scenarioOf(1+r.IntN(14), rollout)
	for i := range s.Clusters {
		c := &s.Clusters[i]
		c.Labels = map[string]string{"ring": fmt.Sprint(r.IntN(4))}
		switch r.IntN(12) {
		case 0:
			c.Away = "it is not connected"
		case 1:
			c.Hold = "its administrator holds plans"
		case 2:
			c.Labels[v1.LabelPlansHold] = "true"
		case 3:
			c.Labels[v1.PlanLabel("p")] = v1.PlanDisabled
		case 4:
			c.Nodes = nil
		case 5:
			c.Nodes[1].Fails = 1 + r.Int32N(5)
		case 6:
			c.Nodes[1].NotReady = true
		}
	}
	return s
}

// events runs a scenario and returns its steps and its outcome.
func events(t *testing.T, s Scenario, each func(*Simulation)) []string {
	t.Helper()
	p, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	p.Observe = func(l Event) error {
		all = append(all, fmt.Sprint(l))
		each(p)
		return nil
	}
	wait, err := p.Run()
	if err != nil {
		t.Fatal(err)
	}
	return append(all, fmt.Sprint(wait, p.Now))
}

func TestSimulationWithFewActiveMembersTakesTheSameSteps(t *testing.T) {
	for seed := range uint64(50) {
		generate := func() Scenario { return generatedScenario(rand.New(rand.NewPCG(seed, 0))) }
		few := events(t, generate(), func(*Simulation) {})
		all := events(t, generate(), func(p *Simulation) { p.activateAll() })
		if !slices.Equal(few, all) {
			t.Fatalf("seed %d: with few active members the steps are\n%s\nwant the steps with all members active\n%s", seed,
				strings.Join(few, "\n"), strings.Join(all, "\n"))
		}
	}
}

func TestNumberOfActiveMembersIsBounded(t *testing.T) {
	for _, concurrent := range []int32{1, 20} {
		most := 0
		events(t, scenarioOf(150, &v1.Rollout{MaxConcurrentClusters: concurrent}),
			func(p *Simulation) { most = max(most, len(p.active.members)) })
		// A member takes over three minutes, and its Jobs are kept for another quarter of an hour.
		if bound := int(concurrent)*7 + 1; most > bound {
			t.Errorf("%d at once: %d members are active, want at most %d of 150", concurrent, most, bound)
		}
	}
}

func BenchmarkPrint(b *testing.B) {
	for _, clusters := range []int{250, 1000, 4000} {
		for _, concurrent := range []int32{1, 20} {
			b.Run(fmt.Sprintf("%d clusters, %d at once", clusters, concurrent), func(b *testing.B) {
				for b.Loop() {
					if err := Print(scenarioOf(clusters, &v1.Rollout{MaxConcurrentClusters: concurrent}), io.Discard); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
