// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// reported returns the status of a plan of a revision in a member.
func reported(revision, reason string, applying ...string) *v1.PlanStatus {
	s := &v1.PlanStatus{Revision: revision, Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Reason: reason}}}
	for _, node := range applying {
		s.Applying = append(s.Applying, v1.ApplyingNode{Node: node})
	}
	s.Nodes = &v1.PlanCount{Applying: int32(len(applying))}
	return s
}

// said returns the same status as the planner sees it.
func said(revision, reason string, applying ...string) *rollout.Status {
	return rollout.StatusOf(reported(revision, reason, applying...))
}

func TestMembers(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	claim := func(revision string) *rollout.ClusterClaim {
		return &rollout.ClusterClaim{Revision: revision, Since: now}
	}
	complete := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: now, Complete: &now} }
	before := now.Add(-time.Hour)
	failed := func() *rollout.ClusterClaim {
		return &rollout.ClusterClaim{Revision: "r", Since: before, Failed: &before}
	}
	dead := reported("r", v1.ReasonNodeFailed)
	dead.Applying = []v1.ApplyingNode{{Node: "n"}}
	stuck := rollout.StatusOf(dead)
	disabled := map[string]string{"plan.cluster.drover.dev/p": v1.PlanDisabled}
	label := func(key, value string) map[string]string { return map[string]string{key: value} }
	waves := func(p *rollout.FleetPlan) {
		p.Pace = rollout.Pace{MaxFailed: 1,
			Waves: []rollout.Wave{{Name: "first", Selector: &metav1.LabelSelector{MatchLabels: label("ring", "one")}}}}
	}
	for name, tt := range map[string]struct {
		a, b   rollout.Cluster // the plan selects both, unless their name is "-"
		change func(*rollout.FleetPlan)
		step   string // verb and cluster
		reason string
		given  [2]rollout.Delivery
	}{
		"the first member by name begins": {
			step: "begin a", given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverNothing},
		},
		"the second member waits for its slot": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("r", v1.ReasonApplying, "n")}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a report on another revision does not count": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("before", v1.ReasonComplete)}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a complete member is recorded": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("r", v1.ReasonComplete)}, step: "complete a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that went away keeps its slot": {
			a: rollout.Cluster{Claim: claim("r"), Away: "not connected"}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member of another revision is paused and keeps its slot while it is at work": {
			a: rollout.Cluster{Claim: claim("before"), Status: said("r", v1.ReasonPaused, "n")}, b: rollout.Cluster{Hold: "no"},
			step: "", reason: v1.ReasonApplying, given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a member of another revision yields when it is idle": {
			a: rollout.Cluster{Claim: claim("before"), Status: said("r", v1.ReasonPaused)}, step: "yield a",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a member that yielded begins again": {
			a: rollout.Cluster{Claim: claim(""), Status: said("r", v1.ReasonPaused)}, step: "begin a",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a failure over the budget pauses members at work and leaves complete members alone": {
			a: rollout.Cluster{Claim: failed(), Status: said("r", v1.ReasonNodeFailed)}, b: rollout.Cluster{Claim: claim("r")},
			reason: v1.ReasonTooManyFailures, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverPaused},
		},
		"a failed member that is at work again does not count as failed": {
			a: rollout.Cluster{Claim: failed(), Status: said("r", v1.ReasonApplying, "n")}, step: "recover a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that failed a moment ago stays failed, whatever it reports": {
			a: rollout.Cluster{Claim: &rollout.ClusterClaim{Revision: "r", Since: now, Failed: &now},
				Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonTooManyFailures, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a failure in the future does not count as recent": {
			a: rollout.Cluster{Claim: &rollout.ClusterClaim{Revision: "r", Since: now, Failed: new(now.Add(time.Hour))},
				Status: said("r", v1.ReasonComplete)},
			step: "complete a", given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a failed member keeps its slot while its nodes are at work": {
			a:      rollout.Cluster{Claim: failed(), Status: said("r", v1.ReasonNodeFailed, "n")},
			change: func(p *rollout.FleetPlan) { p.Pace.MaxFailed = 1 },
			reason: v1.ReasonApplying, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a failed member frees its slot when only a dead node is at work": {
			a:      rollout.Cluster{Claim: failed(), Status: stuck},
			change: func(p *rollout.FleetPlan) { p.Pace.MaxFailed = 1 },
			step:   "begin b", given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that went away at work long ago is lost, and keeps its slot": {
			a: rollout.Cluster{Claim: claim("r"), Away: "not connected", AwaySince: before}, reason: v1.ReasonMemberLost,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a lost member of another revision keeps its slot too": {
			a: rollout.Cluster{Claim: claim("before"), Away: "not connected", AwaySince: before}, reason: v1.ReasonMemberLost,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"disabling the plan on a lost member frees its slot": {
			a: rollout.Cluster{Labels: disabled, Claim: claim("r"), Away: "not connected", AwaySince: before}, step: "begin b",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"disabling the plan on a member that has just gone away does not free its slot": {
			a: rollout.Cluster{Labels: disabled, Claim: claim("r"), Away: "not connected",
				AwaySince: now}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a lost member that is back takes a slot until its work has finished": {
			a: rollout.Cluster{Labels: disabled, Claim: claim("r"),
				Status: said("r", v1.ReasonPaused, "n")}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a complete member with a node that fails later counts as failed": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonNodeFailed)}, step: "fail a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"pausing the plan pauses all": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonPaused)}, b: rollout.Cluster{Claim: claim("r")},
			change: func(p *rollout.FleetPlan) { p.Pace.Paused = true }, reason: v1.ReasonPaused,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverPaused},
		},
		"a failed member that has paused with the plan is tried again, however recently it failed": {
			a: rollout.Cluster{Claim: &rollout.ClusterClaim{Revision: "r", Since: before, Failed: &now},
				Status: said("r", v1.ReasonPaused)},
			change: func(p *rollout.FleetPlan) { p.Pace.Paused = true }, step: "recover a",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"no member fails while the plan is paused": {
			a:      rollout.Cluster{Claim: claim("r"), Status: said("r", v1.ReasonNodeFailed)},
			change: func(p *rollout.FleetPlan) { p.Pace.Paused = true }, reason: v1.ReasonPaused,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a deselected member that is at work is paused": {
			a: rollout.Cluster{Name: "-", Claim: claim("r"), Status: said("r", v1.ReasonPaused, "n")}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a deselected member that is idle is released": {
			a: rollout.Cluster{Name: "-", Claim: claim("r"), Status: said("r", v1.ReasonPaused)}, step: "release -",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"members without a node for the plan differ from complete members": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonNoNodes)}, b: rollout.Cluster{Claim: complete(),
				Status: said("r", v1.ReasonNoNodes)},
			reason: v1.ReasonNoNodes, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverPlan},
		},
		"one member with a node is enough for Complete": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonNoNodes)}, b: rollout.Cluster{Claim: complete(),
				Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonComplete, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverPlan},
		},
		"a member with the label disabled is left out": {
			a: rollout.Cluster{Labels: label("plan.cluster.drover.dev/p", v1.PlanDisabled)}, step: "begin b",
			given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverNothing},
		},
		"a member with the hold label waits, and no other member waits for it": {
			a: rollout.Cluster{Labels: label(v1.LabelPlansHold,
				"true")}, b: rollout.Cluster{Claim: complete()}, reason: v1.ReasonHeld,
			given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverPlan},
		},
		"a wave in which all members failed does not open the next, whatever the budget": {
			a: rollout.Cluster{Labels: label("ring", "one"), Claim: failed(),
				Status: said("r", v1.ReasonNodeFailed)}, change: waves,
			reason: v1.ReasonNodeFailed, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that comes back begins although a later wave is open": {
			a: rollout.Cluster{Labels: label("ring",
				"one")}, b: rollout.Cluster{Claim: complete()}, change: waves, step: "begin a",
			given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverPlan},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := []rollout.Cluster{tt.a, tt.b}
			for i, of := range []string{"a", "b"} {
				c := &clusters[i]
				c.Selected = c.Name != "-"
				if c.Name == "" {
					c.Name = of
				}
			}
			plan := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r"}
			if tt.change != nil {
				tt.change(&plan)
			}
			f, err := rollout.NewFleet(clusters, plan, now)
			if err != nil {
				t.Fatal(err)
			}
			d, step := f.Next(), ""
			if d.Step != nil {
				step = string(d.Step.Verb) + " " + d.Step.Cluster
			}
			if step != tt.step || d.Wait.Reason != tt.reason {
				t.Errorf("got %q, %+v; want %q, %s", step, d.Wait, tt.step, tt.reason)
			}
			if given := [2]rollout.Delivery{f.Deliver(&clusters[0]), f.Deliver(&clusters[1])}; given != tt.given {
				t.Errorf("deliveries are %v, want %v", given, tt.given)
			}
		})
	}
}

func TestMessageNamesALostMemberAndTheRemedy(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	away := func(name string, since time.Time) rollout.Cluster {
		return rollout.Cluster{Name: name, Selected: true, Away: "it is not connected", AwaySince: since,
			Claim: &rollout.ClusterClaim{Revision: "r", Since: now}}
	}
	const kept = "cluster b keeps its slot although it is not connected: reconnect it, label it plan.cluster.drover.dev/p=disabled to continue without it, " +
		"or delete it if it is gone for good"
	for name, tt := range map[string]struct {
		a, b, c time.Time // when they went away, zero if they did not
		wait    rollout.Wait
	}{
		"a member that may come back by itself does not change the reason": {
			b: now.Add(-time.Minute), wait: rollout.Wait{Reason: v1.ReasonApplying, Message: "1 cluster at work; " + kept,
				Until: now.Add(4 * time.Minute)},
		},
		"after five minutes the reason is MemberLost": {
			b: now.Add(-5 * time.Minute), wait: rollout.Wait{Reason: v1.ReasonMemberLost, Message: "1 cluster at work; " + kept},
		},
		"a lost member is named before others": {
			a: now.Add(-time.Minute), b: now.Add(-time.Hour), c: now.Add(-time.Hour),
			wait: rollout.Wait{Reason: v1.ReasonMemberLost,
				Message: "3 clusters at work; " + kept + "; 1 more lost in the same way",
				Until:   now.Add(4 * time.Minute)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var clusters []rollout.Cluster
			for i, since := range []time.Time{tt.a, tt.b, tt.c} {
				if !since.IsZero() {
					clusters = append(clusters, away(string("abc"[i]), since))
				}
			}
			clusters = append(clusters, rollout.Cluster{Name: "d", Selected: true})
			d := rollout.NextMember(clusters, rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r"}, now)
			if d.Step != nil || d.Wait != tt.wait {
				t.Errorf("%+v, %+v\nwant %+v", d.Step, d.Wait, tt.wait)
			}
		})
	}
}

func TestFlappingMemberCostsTwoWritesAMinute(t *testing.T) {
	start := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	plan := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r", Pace: rollout.Pace{MaxFailed: 1}}
	for _, other := range []string{v1.ReasonApplying, v1.ReasonComplete} {
		t.Run("between NodeFailed and "+other, func(t *testing.T) {
			a := []rollout.Cluster{{Name: "a", Selected: true, Claim: &rollout.ClusterClaim{Revision: "r", Since: start}}}
			writes := 0
			for now := start; now.Before(start.Add(10 * time.Minute)); now = now.Add(100 * time.Millisecond) {
				if a[0].Status = said("r", v1.ReasonNodeFailed); now.UnixMilli()%200 != 0 {
					a[0].Status = said("r", other)
				}
				if d := rollout.NextMember(a, plan, now); d.Step != nil {
					writes++
					a[0].Claim = d.Step.Claim
				}
			}
			if writes > 20 || writes < 18 {
				t.Errorf("%d writes in ten minutes, want 18 to 20", writes)
			}
		})
	}
	t.Run("while the plan is paused it costs one write", func(t *testing.T) {
		paused := plan
		paused.Pace.Paused = true
		a := []rollout.Cluster{{Name: "a", Selected: true,
			Claim: &rollout.ClusterClaim{Revision: "r", Since: start, Failed: &start}}}
		writes := 0
		for i, now := 0, start; i < 1000; i, now = i+1, now.Add(time.Second) {
			a[0].Status = said("r", []string{v1.ReasonNodeFailed, v1.ReasonPaused}[i%2])
			if d := rollout.NextMember(a, paused, now); d.Step != nil {
				writes++
				a[0].Claim = d.Step.Claim
			}
		}
		if writes != 1 {
			t.Errorf("%d writes, want 1", writes)
		}
	})
	t.Run("its last report counts when the minute is over", func(t *testing.T) {
		a := []rollout.Cluster{{Name: "a", Selected: true,
			Claim: &rollout.ClusterClaim{Revision: "r", Since: start, Failed: &start}, Status: said("r", v1.ReasonComplete)}}
		d := rollout.NextMember(a, plan, start.Add(time.Second))
		if d.Step != nil || !d.Wait.Until.Equal(start.Add(time.Minute)) {
			t.Errorf("got %+v, %+v, want no step for a minute", d.Step, d.Wait)
		}
		if d = rollout.NextMember(a, plan, d.Wait.Until); d.Step == nil || d.Step.Verb != rollout.VerbComplete ||
			d.Step.Claim.Failed != nil {
			t.Errorf("got %+v, %+v, want the member to complete", d.Step, d.Wait)
		}
	})
}

func TestMembersAreAskedBeforeTheyBegin(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	plan := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r", Pace: rollout.Pace{MaxConcurrent: 2}}
	member := func(name string, ask bool) rollout.Cluster {
		return rollout.Cluster{Name: name, Selected: true, Ask: ask, Unreported: ask}
	}
	for name, tt := range map[string]struct {
		clusters []rollout.Cluster
		begins   string
		ask      []string
	}{
		"as many members are asked as may begin": {
			[]rollout.Cluster{member("a", true), member("b", true), member("c", true)}, "", []string{"a", "b"},
		},
		"a member that has reported begins while another is asked": {
			[]rollout.Cluster{member("a", true), member("b", false), member("c", false)}, "b", []string{"a"},
		},
		"members that have reported are not asked": {
			[]rollout.Cluster{member("a", false), member("b", true)}, "a", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tt.clusters)
			d := rollout.NextMember(tt.clusters, plan, now)
			if !slices.Equal(d.Ask, tt.ask) {
				t.Errorf("asked %v, want %v", d.Ask, tt.ask)
			}
			if begins := d.Step != nil && d.Step.Cluster == tt.begins; begins != (tt.begins != "") {
				t.Errorf("the step is %+v, want %q to begin", d.Step, tt.begins)
			}
			if tt.begins == "" && d.Wait.Reason != v1.ReasonApplying {
				t.Errorf("the plan waits with %+v, want %s", d.Wait, v1.ReasonApplying)
			}
			if !reflect.DeepEqual(before, tt.clusters) {
				t.Error("the decision changed its input, want the input unchanged")
			}
		})
	}
}
