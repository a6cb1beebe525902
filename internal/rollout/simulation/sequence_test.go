// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/rollout/simulation"
)

func newSimulation(t testing.TB, text string) (*simulation.Simulation, *[]string) {
	t.Helper()
	var scenario simulation.Scenario
	if err := yaml.UnmarshalStrict([]byte(text), &scenario); err != nil {
		t.Fatal(err)
	}
	p, err := simulation.New(scenario)
	if err != nil {
		t.Fatal(err)
	}
	start, lines := p.Now, []string{}
	p.Observe = func(l simulation.Event) error {
		where := strings.Trim(l.Cluster+"/"+l.Node, "/")
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%d %s %s %s", int(l.At.Sub(start).Seconds()), where, l.Verb,
			l.Note)))
		return nil
	}
	return p, &lines
}

func TestSequences(t *testing.T) {
	const base = `{start: "2026-11-21T00:00:00Z", plan: {metadata: {name: p}, spec: {version: v1, upgrade: {image: i}, %s}}, clusters: %s}`
	for name, tt := range map[string]struct{ spec, clusters, want, reason string }{
		"one node after the other": { // an upgrade takes 60 s
			"concurrency: 1", "[{name: m, nodes: [{name: a}, {name: b}]}]",
			"0 a begin, 0 a upgrade, 60 a complete, 60 b begin, 60 b upgrade, 120 b complete", "Complete",
		},
		"half of four nodes at once": { // 50 % of 4 is 2
			"concurrency: 50%", "[{name: m, nodes: [{name: a}, {name: b}, {name: c}, {name: d}]}]",
			"0 a begin, 0 a upgrade, 0 b begin, 0 b upgrade, 60 a complete, 60 b complete, 60 c begin, 60 c upgrade, 60 d begin, 60 d upgrade, 120 c complete, 120 d complete", "Complete",
		},
		"prepare, cordon, drain, upgrade": { // 10 s + 30 s + 60 s
			"prepare: {image: p}, drain: {}", "[{name: m, nodes: [{name: a}]}]",
			"0 a begin, 0 a prepare, 10 a cordon, 10 a drain, 40 a upgrade, 100 a complete uncordoned", "Complete",
		},
		"a node that was cordoned before stays cordoned": {
			"cordon: true", "[{name: m, nodes: [{name: a, unschedulable: true}]}]",
			"0 a begin, 0 a cordon, 0 a upgrade, 60 a complete", "Complete",
		},
		"back-off doubles, then the node has failed and the next does not begin": { // 60 +30, 150 +60, 270
			"concurrency: 1, retries: {limit: 2, backoff: 30s}", "[{name: m, nodes: [{name: a, fails: 9}, {name: b}]}]",
			"0 a begin, 0 a upgrade, 60 a fail UpgradeFailed, 90 a retry attempt 2, 90 a clean, 90 a upgrade attempt 2, 150 a fail UpgradeFailed, " +
				"210 a retry attempt 3, 210 a clean, 210 a upgrade attempt 3, 270 a fail UpgradeFailed, no attempt left", "NodeFailed",
		},
		"a Job that hangs ends at its deadline": {
			"jobActiveDeadlineSecs: 300, retries: {limit: 0}", "[{name: m, nodes: [{name: a, fails: 1, hangs: true}]}]",
			"0 a begin, 0 a upgrade, 300 a fail DeadlineExceeded, no attempt left", "NodeFailed",
		},
		"a complete node keeps its slot for a while": { // 60 + 120
			"postCompleteDelay: 2m", "[{name: m, nodes: [{name: a}, {name: b}]}]",
			"0 a begin, 0 a upgrade, 60 a complete, 180 a settle, 180 b begin, 180 b upgrade, 240 b complete, 360 b settle", "Complete",
		},
		"the window only limits the start of nodes": { // it closes at 60 and opens again at 86340
			`window: {startTime: "23:59", endTime: "00:01"}`, "[{name: m, nodes: [{name: a}, {name: b}]}]",
			"0 a begin, 0 a upgrade, 60 a complete, 86340 b begin, 86340 b upgrade, 86400 b complete", "Complete",
		},
		"the plan waits for a node that is not ready": {
			"", "[{name: m, nodes: [{name: a, notReady: true}, {name: b}]}]",
			"0 b begin, 0 b upgrade, 60 b complete", "AwaitingNodes",
		},
		"a node with the label disabled is left out": {
			"", "[{name: m, nodes: [{name: a, labels: {plan.cluster.drover.dev/p: disabled}}, {name: b}]}]",
			"0 b begin, 0 b upgrade, 60 b complete", "Complete",
		},
		"waves follow each other after their soak": { // 60 + 600
			"clusterSelector: {}, rollout: {waves: [{name: first, clusterSelector: {matchLabels: {ring: one}}, soak: 10m}]}",
			"[{name: a, nodes: [{name: x}]}, {name: b, labels: {ring: one}, nodes: [{name: x}]}]",
			"0 b begin, 0 b/x begin, 0 b/x upgrade, 60 b/x complete, 60 b complete 1/1 nodes, 660 a begin, 660 a/x begin, 660 a/x upgrade, 720 a/x complete, 720 a complete 1/1 nodes", "Complete",
		},
		"a failed canary stops the rest": {
			"clusterSelector: {}, retries: {limit: 0}, rollout: {waves: [{name: first, clusterSelector: {matchLabels: {ring: one}}}]}",
			"[{name: a, nodes: [{name: x}]}, {name: b, labels: {ring: one}, nodes: [{name: x, fails: 1}]}]",
			"0 b begin, 0 b/x begin, 0 b/x upgrade, 60 b/x fail UpgradeFailed, no attempt left, 60 b fail", "TooManyFailures",
		},
		"the plan continues within the failure budget": {
			"clusterSelector: {}, retries: {limit: 0}, rollout: {maxFailedClusters: 1}",
			"[{name: a, nodes: [{name: x, fails: 1}]}, {name: b, nodes: [{name: x}]}]",
			"0 a begin, 0 a/x begin, 0 a/x upgrade, 60 a/x fail UpgradeFailed, no attempt left, 60 a fail, 60 b begin, 60 b/x begin, 60 b/x upgrade, 120 b/x complete, 120 b complete 1/1 nodes", "NodeFailed",
		},
		"members that are away or hold plans do not block others": {
			"clusterSelector: {}", "[{name: a, away: not connected, nodes: [{name: x}]}, {name: b, hold: not now, nodes: [{name: x}]}, {name: c, nodes: [{name: x}]}]",
			"0 c begin, 0 c/x begin, 0 c/x upgrade, 60 c/x complete, 60 c complete 1/1 nodes", "MembersAway",
		},
		"a wave whose members are all away keeps the next from beginning": {
			"clusterSelector: {}, rollout: {waves: [{name: first, clusterSelector: {matchLabels: {ring: one}}}]}",
			"[{name: a, nodes: [{name: x}]}, {name: b, away: not connected, labels: {ring: one}, nodes: [{name: x}]}]", "", "MembersAway",
		},
	} {
		t.Run(name, func(t *testing.T) {
			text := fmt.Sprintf(base, tt.spec, tt.clusters)
			p, lines := newSimulation(t, text)
			why, err := p.Run()
			if err != nil {
				t.Fatal(err)
			}
			// Jobs that are deleted after a quarter of an hour do not matter here.
			got := slices.DeleteFunc(*lines,
				func(l string) bool { return strings.HasSuffix(l, " clean") && !strings.Contains(tt.want, l) })
			if joined := strings.Join(got, ", "); joined != tt.want || why.Reason != tt.reason {
				t.Errorf("got  %s: %s (%s)\nwant %s: %s", joined, why.Reason, why.Message, tt.want, tt.reason)
			}
		})
	}
}

// stepwise runs the first cluster of a scenario and reads its state before each step, as an agent does.
func stepwise(t *testing.T, s simulation.Scenario) (lines []string) {
	t.Helper()
	m, err := simulation.NewMember(s.Clusters[0], s.Durations)
	if err != nil {
		t.Fatal(err)
	}
	spec := rollout.ForMember(s.Plan.Name, &s.Plan.Spec, s.Plan.Spec.Version)
	hash, err := rollout.Hash(&spec.NodeWork, s.Plan.Spec.Version, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := rollout.Plan{Name: s.Plan.Name, UID: "simulation", Generation: 1, Spec: *spec, Version: s.Plan.Spec.Version,
		Hash: hash}
	for now := s.Start.Time; ; {
		d := rollout.Next(m.Member, p, now)
		if d.Step != nil {
			lines = append(lines, fmt.Sprint(now.Sub(s.Start.Time), d.Step.Node, d.Step.Verb))
			if err := m.Apply(d.Step, &p, now); err != nil {
				t.Fatal(err)
			}
			continue
		}
		next := m.Due()
		if at := d.Wait.Until; next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
		if d.Wait.Reason == v1.ReasonComplete || d.Wait.Reason == v1.ReasonNoNodes || next.IsZero() {
			return append(lines, fmt.Sprint(d.Wait))
		}
		now = next
		m.Advance(now)
	}
}

func TestRehearsalTakesTheStepsOfAnAgent(t *testing.T) {
	for seed := range uint64(*rounds) {
		s := generatedScenario(rand.New(rand.NewPCG(seed, 0)))
		s.Plan.Spec.ClusterSelector, s.Plan.Spec.Rollout, s.Clusters = nil, nil, s.Clusters[:1]
		r := rand.New(rand.NewPCG(0, seed))
		for i := range s.Clusters[0].Nodes {
			s.Clusters[0].Nodes[i].NotReady = r.IntN(9) == 0
			s.Clusters[0].Nodes[i].Labels = map[string]string{"some": fmt.Sprint(r.IntN(4))}
		}
		if r.IntN(2) == 0 {
			s.Plan.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "some",
				Operator: metav1.LabelSelectorOpNotIn, Values: []string{"0"}}}}
		}
		var lines []string
		p, err := simulation.New(s)
		if err != nil {
			t.Fatal(err)
		}
		p.Observe = func(l simulation.Event) error {
			lines = append(lines, fmt.Sprint(l.At.Sub(s.Start.Time), l.Node, l.Verb))
			return nil
		}
		why, err := p.Run()
		if want := stepwise(t, s); err != nil || !slices.Equal(append(lines, fmt.Sprint(why)), want) {
			t.Fatalf("seed %d: %v, the steps are\n%s\n%v\nwant\n%s", seed, err, strings.Join(lines, "\n"), why,
				strings.Join(want, "\n"))
		}
	}
}

// Four times as many nodes take about four times as long, and not sixteen times. A small number of nodes does not show
// this, because finished Jobs are kept for a while.
func TestTimeOfARehearsalGrowsLinearlyWithItsNodes(t *testing.T) {
	lasts := func(nodes int, concurrency intstr.IntOrString) time.Duration {
		s := simulation.Scenario{Clusters: make([]simulation.Cluster, 1)}
		s.Plan.Name, s.Plan.Spec.Version, s.Plan.Spec.Drain, s.Plan.Spec.Concurrency = "p", "v1", &v1.Drain{}, &concurrency
		for i := range nodes {
			s.Clusters[0].Nodes = append(s.Clusters[0].Nodes, simulation.Node{Name: fmt.Sprintf("n%04d", i)})
		}
		shortest := time.Duration(math.MaxInt64)
		for range 2 { // garbage of earlier tests makes a run slower, but nothing makes it faster
			start := processorTime(t)
			if err := simulation.Print(s, io.Discard); err != nil {
				t.Fatal(err)
			}
			shortest = min(shortest, processorTime(t)-start)
		}
		return shortest
	}
	for _, concurrency := range []intstr.IntOrString{intstr.FromInt32(1), intstr.FromInt32(50)} {
		if few, many := lasts(1000, concurrency), lasts(4000, concurrency); many > 10*few {
			t.Errorf("concurrency %v: 1000 nodes take %v and 4000 nodes take %v, want about four times as long", &concurrency,
				few, many)
		}
	}
}

// processorTime returns the processor time that this process has used. Other work on the machine does not count.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatalf("read the processor time of this process: %v", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
