// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/rollout/simulation"
)

var (
	seed   = flag.Uint64("seed", 0, "seed of generated fleets; 0 takes one from the clock")
	rounds = flag.Int("rounds", 150, "generated fleets")
)

// generatedScenario returns a random plan on a random fleet.
func generatedScenario(r *rand.Rand) simulation.Scenario {
	s := simulation.Scenario{Start: metav1.NewTime(time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC))}
	s.Plan.Name = "p"
	spec := &s.Plan.Spec
	spec.Version, spec.Upgrade.Image, spec.ClusterSelector = "v1", "i", &metav1.LabelSelector{}
	spec.Concurrency = new(intstr.FromInt32(1 + r.Int32N(3)))
	if r.IntN(3) == 0 {
		spec.Concurrency = new(intstr.FromString(fmt.Sprintf("%d%%", 1+r.IntN(100))))
	}
	spec.Cordon = r.IntN(2) == 0
	if r.IntN(2) == 0 {
		spec.Drain = &v1.Drain{}
	}
	if r.IntN(2) == 0 {
		spec.Prepare = &v1.PlanContainer{Image: "i"}
	}
	if r.IntN(4) == 0 {
		spec.PostCompleteDelay = &metav1.Duration{Duration: time.Duration(r.IntN(300)) * time.Second}
	}
	if r.IntN(4) == 0 {
		spec.Window = &v1.TimeWindow{StartTime: "22:00", EndTime: "04:00", TimeZone: "Europe/Berlin"}
	}
	spec.Retries = &v1.PlanRetries{Limit: new(r.Int32N(3))}
	spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1 + r.Int32N(4), MaxFailedClusters: r.Int32N(3)}
	for ring := range r.IntN(4) {
		spec.Rollout.Waves = append(spec.Rollout.Waves, v1.Wave{
			Name: fmt.Sprint(ring), ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": fmt.Sprint(ring)}},
			Soak: &metav1.Duration{Duration: time.Duration(r.IntN(3)) * time.Hour},
		})
	}
	for c := range 1 + r.IntN(8) {
		cluster := simulation.Cluster{Name: fmt.Sprintf("c%d", c), Labels: map[string]string{"ring": fmt.Sprint(r.IntN(5))}}
		for n := range r.IntN(6) {
			node := simulation.Node{Name: fmt.Sprintf("n%d", n), Unschedulable: r.IntN(5) == 0}
			node.Durations.Upgrade = &metav1.Duration{Duration: time.Duration(1+r.IntN(600)) * time.Second}
			if r.IntN(12) == 0 {
				node.Fails = 1 + r.Int32N(4)
			}
			cluster.Nodes = append(cluster.Nodes, node)
		}
		s.Clusters = append(s.Clusters, cluster)
	}
	return s
}

// checkSteps returns a function that checks the invariants after every step.
func checkSteps(p *simulation.Simulation, s *simulation.Scenario) func(simulation.Event) error {
	cordoned := map[string]bool{}
	for _, c := range s.Clusters {
		for _, n := range c.Nodes {
			cordoned[c.Name+"/"+n.Name] = n.Unschedulable
		}
	}
	return func(l simulation.Event) error {
		working, failed := int32(0), int32(0)
		for i, m := range p.Members {
			c := p.Clusters[i]
			if c.Claim != nil && c.Claim.Complete == nil && c.Claim.Failed == nil {
				working++
			}
			if c.Claim != nil && c.Claim.Failed != nil {
				failed++
			}
			if err := checkNodes(m, c.Name, s.Plan.Spec.Concurrency, cordoned); err != nil {
				return fmt.Errorf("%v %s: %w", l.At, l.Verb, err)
			}
		}
		if working > s.Plan.Spec.Rollout.MaxConcurrentClusters {
			return fmt.Errorf("%v: %d members at work, more than allowed", l.At, working)
		}
		if l.Node == "" && l.Verb == rollout.VerbBegin && failed > s.Plan.Spec.Rollout.MaxFailedClusters {
			return fmt.Errorf("%v: member %s begins although %d failed", l.At, l.Cluster, failed)
		}
		return nil
	}
}

func checkNodes(m *simulation.Member, cluster string, concurrency *intstr.IntOrString, cordoned map[string]bool) error {
	limit, err := intstr.GetScaledValueFromIntOrPercent(concurrency, len(m.Nodes), false)
	if err != nil {
		return err
	}
	running, claims := map[string]int{}, 0
	for _, j := range m.Jobs {
		if j.State == rollout.Running {
			if running[j.Node]++; running[j.Node] > 1 {
				return fmt.Errorf("node %s/%s is at work twice", cluster, j.Node)
			}
		}
	}
	for _, n := range m.Nodes {
		claims += len(n.Claims)
		if before := cordoned[cluster+"/"+n.Name]; before && !n.Unschedulable {
			return fmt.Errorf("node %s/%s was cordoned by a user and no longer is", cluster, n.Name)
		} else if c, at := n.Claims["p"]; !before && n.Unschedulable && (!at || c.Failure != nil || c.Done != nil) {
			return fmt.Errorf("node %s/%s is still cordoned", cluster, n.Name)
		}
	}
	if claims > max(limit, 1) {
		return fmt.Errorf("%d nodes of %s at work", claims, cluster)
	}
	return nil
}

func TestInvariantsOfGeneratedFleets(t *testing.T) {
	from := *seed
	if from == 0 {
		from = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed=%d -rounds=%d", from, *rounds)
	for round := range *rounds {
		r := func() *rand.Rand { return rand.New(rand.NewPCG(from, uint64(round))) }
		lines, outcome := runOnce(t, generatedScenario(r()), func(int) bool { return false })
		again, _ := runOnce(t, generatedScenario(r()), func(int) bool { return false })
		if strings.Join(lines, "\n") != strings.Join(again, "\n") {
			t.Fatalf("round %d: the same fleet took different steps, want the same", round)
		}
		// The agent restarts after one step, which over all rounds covers every kind of step. Then it restarts after all of
		// them.
		at := r().IntN(len(lines) + 1)
		for _, restart := range []func(int) bool{func(step int) bool { return step == at }, func(int) bool { return true }} {
			if _, restarted := runOnce(t, generatedScenario(r()), restart); restarted != outcome {
				t.Fatalf("round %d: restarted after step %d the plan ends with %s, want %s", round, at, restarted, outcome)
			}
		}
	}
}

// runOnce runs a scenario. It restarts the agent after each step for which restart returns true.
func runOnce(t *testing.T, s simulation.Scenario, restart func(step int) bool) (lines []string, outcome string) {
	t.Helper()
	p, err := simulation.New(s)
	if err != nil {
		t.Fatal(err)
	}
	check := checkSteps(p, &s)
	p.Observe = func(l simulation.Event) error {
		lines = append(lines, fmt.Sprint(l))
		if restart(len(lines)) && l.Verb != rollout.VerbDrain { // a drain that begins again would do so forever
			for i, m := range p.Members {
				if p.Clusters[i].Name == l.Cluster {
					m.RestartAgent()
				}
			}
		}
		return check(l)
	}
	why, err := p.Run()
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(lines, "\n"))
	}
	limit := *s.Plan.Spec.Retries.Limit
	fails := int32(0)
	for _, c := range s.Clusters {
		for _, n := range c.Nodes {
			if n.Fails > limit {
				fails++
				break
			}
		}
	}
	if fails == 0 && why.Reason != v1.ReasonComplete && why.Reason != v1.ReasonNoNodes {
		t.Fatalf("the plan ends with %s: %s\n%s", why.Reason, why.Message, strings.Join(lines, "\n"))
	} else if fails > 0 && why.Reason != v1.ReasonNodeFailed && why.Reason != v1.ReasonTooManyFailures {
		t.Fatalf("%d members fail, and the plan ends with %s: %s\n%s", fails, why.Reason, why.Message,
			strings.Join(lines, "\n"))
	}
	return lines, why.Reason
}
