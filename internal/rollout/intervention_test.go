// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/rollout/simulation"
)

// fixture is a member whose plans and nodes a test can change between steps.
type fixture struct {
	*testing.T
	m     *simulation.Member
	now   time.Time
	lines []string
}

func newFixture(t *testing.T, nodes ...string) *fixture {
	c := simulation.Cluster{Name: "m"}
	for _, name := range nodes {
		c.Nodes = append(c.Nodes, simulation.Node{Name: name})
	}
	m, err := simulation.NewMember(c, simulation.Durations{})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, m: m, now: time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)}
}

func aPlan(name string, change func(*v1.PlanSpec)) rollout.Plan {
	p := rollout.Plan{Name: name, UID: name + "-uid", Generation: 1, Version: "v1", Hash: "h1", Revision: "h1"}
	p.Spec.Upgrade.Image = "i"
	p.Spec.Cordon = true
	if change != nil {
		change(&p.Spec)
	}
	return p
}

// steps takes all steps that can be taken now, and returns why there is no further step.
func (b *fixture) steps(p rollout.Plan) rollout.Wait {
	b.Helper()
	for range 1000 {
		d := rollout.Next(b.m.Member, p, b.now)
		if d.Step == nil {
			return d.Wait
		}
		if err := b.m.Apply(d.Step, &p, b.now); err != nil {
			b.Fatal(err)
		}
		b.lines = append(b.lines, fmt.Sprintf("%s %s", d.Step.Node, d.Step.Verb))
	}
	b.Fatal("it does not come to rest")
	return rollout.Wait{}
}

func (b *fixture) after(d time.Duration) {
	b.now = b.now.Add(d)
	b.m.Advance(b.now)
}

func (b *fixture) want(lines string) {
	b.Helper()
	if got := strings.Join(b.lines, ", "); got != lines {
		b.Errorf("got  %s\nwant %s", got, lines)
	}
	b.lines = nil
}

func (b *fixture) reason(w rollout.Wait, want string) {
	b.Helper()
	if w.Reason != want {
		b.Errorf("it waits with %s: %s; want %s", w.Reason, w.Message, want)
	}
}

func TestInterventionsDuringAPlan(t *testing.T) {
	drained := func(s *v1.PlanSpec) { s.Drain = &v1.Drain{} }
	paused := func(s *v1.PlanSpec) { s.Paused = true }
	t.Run("pausing releases a node that drains, and resuming continues with it", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", drained))
		b.want("a begin, a cordon, a drain")
		b.reason(b.steps(aPlan("p", paused)), v1.ReasonPaused)
		b.want("a release")
		if b.m.Nodes[0].Unschedulable {
			t.Error("the node is still cordoned, want it uncordoned")
		}
	})
	t.Run("an invalid label keeps nodes from beginning, and leaves no node cordoned", func(t *testing.T) {
		labelled := func(value v1.LabelTemplate) func(*v1.PlanSpec) {
			return func(s *v1.PlanSpec) {
				s.Cordon, s.PostCompleteLabels = true, map[string]v1.LabelTemplate{"example.org/done": value}
			}
		}
		b := newFixture(t, "a", "b")
		b.reason(b.steps(aPlan("p", labelled("$(LATEST_VERSION)-"))), v1.ReasonInvalidPlan)
		b.want("")
		b.steps(aPlan("p", labelled("$(LATEST_VERSION)")))
		b.want("a begin, a cordon, a upgrade")
		b.after(time.Minute)
		b.reason(b.steps(aPlan("p", labelled("$(LATEST_VERSION)-"))), v1.ReasonInvalidPlan)
		b.want("a complete")
		if n := b.m.Nodes[0]; n.Unschedulable || n.Labels["example.org/done"] != "" {
			t.Errorf("the node ends as %+v", n)
		}
	})
	t.Run("the message names a node that goes silent at work", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		b.m.Nodes[0].Ready = false
		if w := b.steps(aPlan("p", nil)); !strings.Contains(w.Message, "node a is not ready") {
			t.Errorf("it says %s: %s", w.Reason, w.Message)
		}
	})
	t.Run("a node that died at work fails, and is retried only when it is back", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		p := aPlan("p", func(s *v1.PlanSpec) { s.Concurrency = new(intstr.FromInt32(2)) })
		b.m.Nodes[1].Ready = false
		b.steps(p)
		b.m.Nodes[0].Ready, b.m.Nodes[1].Ready = false, true
		b.m.Jobs[0].State, b.m.Jobs[0].Reason = rollout.Failed, v1.ReasonDeadlineExceeded
		b.lines = nil
		b.reason(b.steps(p), v1.ReasonApplying)
		b.want("a fail, b begin, b cordon, b upgrade")
		if f := b.m.Nodes[0].Claims["p"].Failure; f.Final || !strings.Contains(f.Message, "node a is not ready") {
			t.Errorf("failure %+v", f)
		}
		b.now = b.now.Add(time.Minute)
		b.reason(b.steps(p), v1.ReasonNodeFailed)
		b.want("")
		if w := b.steps(p); !strings.Contains(w.Message, "node a") {
			t.Errorf("it says %s", w.Message)
		}
		if progress, err := rollout.ProgressOf(b.m.Member, p, b.now); err != nil || progress.Nodes.Failed != 1 {
			t.Errorf("nodes %+v, %v", progress.Nodes, err)
		}
		b.m.Nodes[0].Ready = true
		b.reason(b.steps(p), v1.ReasonApplying)
		b.want("a retry, a clean, a cordon, a upgrade")
	})
	t.Run("a node whose last pod cannot be ended has failed, and no second pod runs", func(t *testing.T) {
		b := newFixture(t, "a")
		p := aPlan("p", nil)
		b.steps(p)
		b.m.Jobs[0].State = rollout.Failed
		b.steps(p)
		b.now = b.now.Add(time.Minute)
		b.m.Jobs[0].Deleting = true
		b.lines = nil
		b.reason(b.steps(p), v1.ReasonApplying)
		b.want("a retry")
		b.m.Nodes[0].Ready = false
		b.reason(b.steps(p), v1.ReasonNodeFailed)
		b.want("")
	})
	t.Run("pausing lets an upgrade finish and begins nothing else", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		b.steps(aPlan("p", nil))
		b.after(time.Minute)
		b.reason(b.steps(aPlan("p", paused)), v1.ReasonPaused)
		b.want("a begin, a cordon, a upgrade, a complete")
	})
	t.Run("pausing releases a node between attempts, so that the member is idle and may begin with another version",
		func(t *testing.T) {
			b := newFixture(t, "a")
			b.m.Nodes[0].Claims = map[string]rollout.Claim{"p": {UID: "p-uid", Hash: "h1", Generation: 1, Attempt: 1, Spent: 1,
				Failure: &rollout.Failure{At: b.now, Reason: v1.ReasonUpgradeFailed}}}
			changed := aPlan("p", paused)
			changed.Hash, changed.Generation = "h2", 2
			b.reason(b.steps(changed), v1.ReasonPaused)
			b.want("a release")
			if p, err := rollout.ProgressOf(b.m.Member, changed, b.now); err != nil || len(p.Applying) > 0 {
				t.Errorf("at work are %+v: %v", p.Applying, err)
			}
		})
	t.Run("a change while a node drains starts over and keeps the cordon", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", drained))
		changed := aPlan("p", drained)
		changed.Hash = "h2"
		b.lines = nil
		b.steps(changed)
		b.want("a restart, a cordon, a drain")
		b.after(time.Minute)
		b.steps(changed)
		b.after(time.Minute)
		b.steps(changed)
		b.want("a upgrade, a complete")
		if n := b.m.Nodes[0]; n.Unschedulable || n.Labels[v1.PlanLabel("p")] != "h2" {
			t.Errorf("the node ends as %+v", n)
		}
	})
	t.Run("a change while an upgrade runs lets it finish and repeats the node", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		changed := aPlan("p", nil)
		changed.Hash = "h2"
		b.steps(changed)
		b.after(time.Minute)
		b.steps(changed)
		b.want("a begin, a cordon, a upgrade, a complete, a begin, a clean, a cordon, a upgrade")
	})
	t.Run("deleting the plan uncordons the nodes that it cordoned", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		b.m.Nodes[1].Unschedulable = true
		p := aPlan("p", func(s *v1.PlanSpec) { s.Concurrency = new(intstr.FromInt32(2)) })
		b.steps(p)
		steps := rollout.Orphans(b.m.Nodes, nil)
		for i := range steps {
			if err := b.m.Apply(&steps[i], &p, b.now); err != nil {
				t.Fatal(err)
			}
		}
		if len(steps) != 2 || b.m.Nodes[0].Unschedulable || !b.m.Nodes[1].Unschedulable || len(b.m.Nodes[0].Claims) != 0 {
			t.Errorf("after %d steps: %+v", len(steps), b.m.Nodes)
		}
		if left := rollout.Orphans(b.m.Nodes, map[string]string{"p": "p-uid"}); len(left) != 0 {
			t.Errorf("a second call returned %+v, want no steps", left)
		}
	})
	t.Run("a Job that is deleted by hand is created again", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		b.m.Jobs = nil
		b.steps(aPlan("p", nil))
		b.want("a begin, a cordon, a upgrade, a upgrade")
	})
	t.Run("the plan waits for a Job that is being deleted", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		b.m.Jobs[0].Deleting = true
		b.lines = nil
		b.reason(b.steps(aPlan("p", nil)), v1.ReasonApplying)
		b.want("")
	})
	t.Run("the Job of a node that is removed is deleted", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		b.steps(aPlan("p", nil))
		b.m.Nodes = slices.Delete(b.m.Nodes, 0, 1)
		b.steps(aPlan("p", nil))
		b.want("a begin, a cordon, a upgrade, a clean, b begin, b cordon, b upgrade")
	})
	t.Run("a node whose label is removed is upgraded again", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		b.after(time.Minute)
		b.reason(b.steps(aPlan("p", nil)), v1.ReasonComplete)
		delete(b.m.Nodes[0].Labels, v1.PlanLabel("p"))
		b.lines = nil
		b.steps(aPlan("p", nil))
		b.want("a begin, a clean, a cordon, a upgrade")
	})
	t.Run("a node that a user uncordons and cordons during an upgrade stays cordoned", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", nil))
		b.m.Nodes[0].Unschedulable = false
		b.steps(aPlan("p", nil))
		b.m.Nodes[0].Unschedulable = true
		b.after(time.Minute)
		b.steps(aPlan("p", nil))
		b.want("a begin, a cordon, a upgrade, a disown, a complete")
		if !b.m.Nodes[0].Unschedulable {
			t.Error("the user's cordon is gone, want it kept")
		}
	})
	t.Run("a node that is uncordoned while it drains is cordoned again", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", drained))
		b.m.Nodes[0].Unschedulable = false
		b.lines = nil
		b.steps(aPlan("p", drained))
		b.want("a cordon")
	})
	t.Run("a drain that fails uncordons the node and is retried", func(t *testing.T) {
		b := newFixture(t, "a")
		b.steps(aPlan("p", drained))
		b.m.Drains["a"] = rollout.Drain{Hash: "h1", Attempt: 1, Done: true, Failed: "pod web/a: disruption budget"}
		b.reason(b.steps(aPlan("p", drained)), v1.ReasonAwaitingRetry)
		if n := b.m.Nodes[0]; n.Unschedulable || n.Claims["p"].Failure.Reason != v1.ReasonDrainFailed {
			t.Errorf("it is %+v", n)
		}
		b.after(30 * time.Second)
		b.steps(aPlan("p", drained))
		b.want("a begin, a cordon, a drain, a fail, a retry, a cordon, a drain")
	})
	t.Run("a Job that the API server refuses is a failure", func(t *testing.T) {
		b := newFixture(t, "a")
		b.m.Refused = map[string]string{"a": "admission"}
		b.reason(b.steps(aPlan("p", nil)), v1.ReasonAwaitingRetry)
		b.want("a begin, a cordon, a fail")
	})
	t.Run("a prepare container past its deadline does not use up an attempt", func(t *testing.T) {
		b := newFixture(t, "a")
		p := aPlan("p", func(s *v1.PlanSpec) {
			s.Prepare = &v1.PlanContainer{Image: "i"}
			s.Retries = &v1.PlanRetries{Limit: new(int32(0)), Backoff: &metav1.Duration{Duration: time.Second}}
		})
		for range 5 {
			b.steps(p)
			b.m.Jobs[0].State, b.m.Jobs[0].Reason = rollout.Failed, v1.ReasonDeadlineExceeded
			b.reason(b.steps(p), v1.ReasonAwaitingRetry)
			b.after(time.Second)
		}
	})
	t.Run("a failed node is retried when the plan's generation changes, and released when it is disabled",
		func(t *testing.T) {
			b := newFixture(t, "a", "b")
			p := aPlan("p", func(s *v1.PlanSpec) { s.Retries = &v1.PlanRetries{Limit: new(int32(0))} })
			b.steps(p)
			b.m.Jobs[0].State = rollout.Failed
			b.reason(b.steps(p), v1.ReasonNodeFailed)
			p.Generation++
			b.steps(p)
			b.want("a begin, a cordon, a upgrade, a fail, a restart, a clean, a cordon, a upgrade")
			b.m.Jobs[0].State = rollout.Failed
			b.steps(p)
			b.m.Nodes[0].Labels[v1.PlanLabel("p")] = v1.PlanDisabled
			b.lines = nil
			b.steps(p)
			b.want("a release, a clean, b begin, b cordon, b upgrade")
		})
	t.Run("a member that holds plans begins nothing, also when its own window is closed", func(t *testing.T) {
		b := newFixture(t, "a")
		b.m.Hold = "not now"
		b.reason(b.steps(aPlan("p", nil)), v1.ReasonHeld)
		window, err := rollout.ParseWindow("Sun")
		if err != nil {
			t.Fatal(err)
		}
		b.m.Hold, b.m.Window = "", window
		why := b.steps(aPlan("p", nil))
		b.reason(why, v1.ReasonHeld)
		if !why.Until.Equal(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)) {
			t.Errorf("it asks again at %v", why.Until)
		}
		b.want("")
	})
	t.Run("a complete node that does not become ready keeps its slot", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		b.steps(aPlan("p", nil))
		b.m.Nodes[0].Ready = false
		b.after(time.Minute)
		b.reason(b.steps(aPlan("p", nil)), v1.ReasonAwaitingNodes)
	})
	t.Run("two plans never work on one node at once, and exclusive plans never in one member", func(t *testing.T) {
		b := newFixture(t, "a", "b")
		exclusive := func(s *v1.PlanSpec) { s.Exclusive = true }
		b.steps(aPlan("p", nil))
		b.steps(aPlan("q", nil))
		b.want("a begin, a cordon, a upgrade, b begin, b cordon, b upgrade")
		b.reason(b.steps(aPlan("r", nil)), v1.ReasonAwaitingSlot)
		b = newFixture(t, "a", "b")
		b.steps(aPlan("p", exclusive))
		b.lines = nil
		b.reason(b.steps(aPlan("q", exclusive)), v1.ReasonAwaitingSlot)
		b.want("")
	})
}

func TestHashCoversOnlyTheWorkOnNodes(t *testing.T) {
	hash := func(change func(*v1.PlanSpec), version string, secrets map[string]string) string {
		p := aPlan("p", change)
		h, err := rollout.Hash(&p.Spec.NodeWork, version, secrets)
		if err != nil || len(h) > 63 {
			t.Fatalf("the hash is %q, %v, want a value that fits a label", h, err)
		}
		return h
	}
	before := hash(nil, "v1", nil)
	for name, other := range map[string]string{
		"version": hash(nil, "v2", nil),
		"args":    hash(func(s *v1.PlanSpec) { s.Upgrade.Args = []string{"x"} }, "v1", nil),
		"drain":   hash(func(s *v1.PlanSpec) { s.Drain = &v1.Drain{} }, "v1", nil),
		"secret":  hash(func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "s"}} }, "v1", map[string]string{"s": "1"}),
	} {
		if other == before {
			t.Errorf("%s does not change the hash, want another hash", name)
		}
	}
	if hash(func(s *v1.PlanSpec) { s.Paused, s.Concurrency, s.Exclusive = true, new(intstr.FromInt32(9)), true }, "v1",
		nil) != before {
		t.Error("the pace changes the hash, want the same hash")
	}
	if hash(nil, "v1+k3s1", nil) != hash(nil, "v1-k3s1", nil) {
		t.Error("the hub's hash of the version as written differs from the member's hash of its tag, want the same hash")
	}
	named := func(ignore bool) func(*v1.PlanSpec) {
		return func(s *v1.PlanSpec) { s.Secrets = []v1.PlanSecret{{Name: "s", IgnoreUpdates: ignore}} }
	}
	if hash(named(false), "v1", map[string]string{"s": "1"}) == hash(named(false), "v1", map[string]string{"s": "2"}) {
		t.Error("the content of a Secret does not change the hash, want another hash")
	}
	if hash(named(true), "v1", map[string]string{"s": "1"}) != hash(named(true), "v1", map[string]string{"s": "2"}) {
		t.Error("the content of a Secret with ignoreUpdates changes the hash, want the same hash")
	}
}

func BenchmarkNextIn100MembersOf10Nodes(b *testing.B) {
	var clusters []rollout.Cluster
	for i := range 100 {
		clusters = append(clusters, rollout.Cluster{Name: fmt.Sprintf("c%05d", i), Selected: true})
	}
	benchmark(b, clusters)
}

func BenchmarkNextIn10000Members(b *testing.B) {
	var clusters []rollout.Cluster
	for i := range 10_000 {
		clusters = append(clusters, rollout.Cluster{Name: fmt.Sprintf("c%05d", i), Selected: true})
	}
	benchmark(b, clusters)
}

// benchmark computes the next step of a fleet of which half is complete, and of a member of ten nodes of which half are
// complete.
func benchmark(b *testing.B, clusters []rollout.Cluster) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	plan := rollout.FleetPlan{Name: "p", Revision: "r", Hash: "h1"}
	plan.Pace.MaxConcurrent = 5
	for i := range clusters[:len(clusters)/2] {
		clusters[i].Claim = &rollout.ClusterClaim{Revision: "r", Since: now, Complete: &now}
	}
	var m rollout.Member
	for i := range 10 {
		n := rollout.Node{Name: fmt.Sprint(i), Hostname: fmt.Sprint(i), Ready: true, Labels: map[string]string{}}
		if i < 5 {
			n.Labels[v1.PlanLabel("p")] = "h1"
		}
		m.Nodes = append(m.Nodes, n)
	}
	p := aPlan("p", nil)
	b.ReportAllocs()
	for b.Loop() {
		if rollout.NextMember(clusters, plan, now).Step == nil || rollout.Next(m, p, now).Step == nil {
			b.Fatal("there is a step")
		}
	}
}

func TestClaimWithATimeInTheFutureWaitsNoLongerThanAnyOther(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	delay := func(s *v1.PlanSpec) { s.PostCompleteDelay = &metav1.Duration{Duration: time.Minute} }
	for name, tt := range map[string]struct {
		ahead time.Duration
		want  rollout.Verb
	}{
		"a time hours ahead is replaced":                      {5 * time.Hour, rollout.VerbDate},
		"a time slightly ahead is kept":                       {30 * time.Second, ""},
		"a time slightly in the past is kept":                 {-time.Second, ""},
		"the wait is over if the time is further in the past": {-time.Hour, "over"},
	} {
		at := now.Add(tt.ahead)
		for kind, c := range map[string]struct {
			claim rollout.Claim
			over  rollout.Verb
		}{
			"failure": {rollout.Claim{Attempt: 1, Spent: 1, Since: now, Failure: &rollout.Failure{At: at}}, rollout.VerbRetry},
			"done":    {rollout.Claim{Attempt: 1, Since: now, Done: &at}, rollout.VerbSettle},
		} {
			t.Run(kind+": "+name, func(t *testing.T) {
				p := aPlan("p", delay)
				c.claim.UID, c.claim.Hash, c.claim.Generation = p.UID, p.Hash, p.Generation
				m := rollout.Member{Nodes: []rollout.Node{{Name: "a", Hostname: "a", Ready: true,
					Claims: map[string]rollout.Claim{"p": c.claim}}}}
				want, got := tt.want, rollout.Verb("")
				if want == "over" {
					want = c.over
				}
				d := rollout.Next(m, p, now)
				if d.Step != nil {
					got = d.Step.Verb
				}
				if got != want {
					t.Fatalf("got %q, want %q", got, want)
				}
				if want != rollout.VerbDate {
					return
				}
				m.Nodes[0].Claims["p"] = *d.Step.Claim
				if d = rollout.Next(m, p, now); d.Step != nil || d.Wait.Until.After(now.Add(time.Minute)) || d.Wait.Until.IsZero() {
					t.Errorf("then %+v", d)
				}
				if d = rollout.Next(m, p, now.Add(time.Minute)); d.Step == nil || d.Step.Verb != c.over {
					t.Errorf("after the wait %+v", d)
				}
			})
		}
	}
	t.Run("a start in the future is replaced while the upgrade runs, and nothing else of the claim changes",
		func(t *testing.T) {
			b := newFixture(t, "a")
			b.steps(aPlan("p", nil))
			was := b.m.Nodes[0].Claims["p"]
			b.now = b.now.Add(-24 * time.Hour)
			b.lines = nil
			b.steps(aPlan("p", nil))
			b.want("a date")
			if is := b.m.Nodes[0].Claims["p"]; !is.Since.Equal(b.now) || is.Attempt != was.Attempt || !is.Cordoned ||
				!b.m.Nodes[0].Unschedulable {
				t.Errorf("claim %+v", is)
			}
		})
}
