// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// said is the status of a plan of revision r in a member.
func said(revision, reason string, applying ...string) *v1.PlanStatus {
	s := &v1.PlanStatus{Revision: revision, Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Reason: reason}}}
	for _, node := range applying {
		s.Applying = append(s.Applying, v1.ApplyingNode{Node: node})
	}
	return s
}

func TestMembers(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	claim := func(revision string) *rollout.ClusterClaim {
		return &rollout.ClusterClaim{Revision: revision, Since: now}
	}
	complete := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: now, Complete: &now} }
	failed := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: now, Failed: &now} }
	label := func(key, value string) map[string]string { return map[string]string{key: value} }
	waves := func(p *rollout.FleetPlan) {
		p.Spec.Rollout = &v1.Rollout{MaxFailedClusters: 1, Waves: []v1.Wave{{Name: "first", ClusterSelector: &metav1.LabelSelector{MatchLabels: label("ring", "one")}}}}
	}
	for name, tt := range map[string]struct {
		a, b   rollout.Cluster // both are selected unless their name is "-"
		change func(*rollout.FleetPlan)
		step   string // verb and cluster
		reason string
		given  [2]rollout.Delivery
	}{
		"the first by name begins": {
			step: "begin a", given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverNothing},
		},
		"the second waits for its place": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("r", v1.ReasonApplying, "n")}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"what a member says of another revision does not count": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("before", v1.ReasonComplete)}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that is complete is written down": {
			a: rollout.Cluster{Claim: claim("r"), Status: said("r", v1.ReasonComplete)}, step: "complete a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member that went away keeps its place": {
			a: rollout.Cluster{Claim: claim("r"), Away: "not connected"}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a member of another revision is paused and keeps its place while it is at work": {
			a: rollout.Cluster{Claim: claim("before"), Status: said("r", v1.ReasonPaused, "n")}, b: rollout.Cluster{Hold: "no"},
			step: "", reason: v1.ReasonApplying, given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"it begins anew when it is idle": {
			a: rollout.Cluster{Claim: claim("before"), Status: said("r", v1.ReasonPaused)}, step: "begin a",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a failure over the budget pauses who is at work and leaves the complete": {
			a: rollout.Cluster{Claim: failed(), Status: said("r", v1.ReasonNodeFailed)}, b: rollout.Cluster{Claim: claim("r")},
			reason: v1.ReasonTooManyFailures, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverPaused},
		},
		"a failed member that is at work again is no failure": {
			a: rollout.Cluster{Claim: failed(), Status: said("r", v1.ReasonApplying, "n")}, step: "recover a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"a complete member of which a node fails later is a failure": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonNodeFailed)}, step: "fail a",
			given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"pausing the plan pauses all": {
			a: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonPaused)}, b: rollout.Cluster{Claim: claim("r")},
			change: func(p *rollout.FleetPlan) { p.Spec.Paused = true }, reason: v1.ReasonPaused,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverPaused},
		},
		"a deselected member that is at work is paused": {
			a: rollout.Cluster{Name: "-", Claim: claim("r"), Status: said("r", v1.ReasonPaused, "n")}, reason: v1.ReasonApplying,
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a deselected member that is idle is let go": {
			a: rollout.Cluster{Name: "-", Claim: claim("r"), Status: said("r", v1.ReasonPaused)}, step: "release -",
			given: [2]rollout.Delivery{rollout.DeliverPaused, rollout.DeliverNothing},
		},
		"a member that is labelled disabled is left out": {
			a: rollout.Cluster{Labels: label("plan.cluster.drover.dev/p", v1.PlanDisabled)}, step: "begin b",
			given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverNothing},
		},
		"a member that is labelled to hold waits, and nobody for it": {
			a: rollout.Cluster{Labels: label(v1.LabelPlansHold, "true")}, b: rollout.Cluster{Claim: complete()}, reason: v1.ReasonHeld,
			given: [2]rollout.Delivery{rollout.DeliverNothing, rollout.DeliverPlan},
		},
		"a wave all of which failed opens no other, whatever the budget": {
			a: rollout.Cluster{Labels: label("ring", "one"), Claim: failed(), Status: said("r", v1.ReasonNodeFailed)}, change: waves,
			reason: v1.ReasonNodeFailed, given: [2]rollout.Delivery{rollout.DeliverPlan, rollout.DeliverNothing},
		},
		"who comes back begins although a later wave is open": {
			a: rollout.Cluster{Labels: label("ring", "one")}, b: rollout.Cluster{Claim: complete()}, change: waves, step: "begin a",
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
				t.Errorf("they are given %v, want %v", given, tt.given)
			}
		})
	}
}

func TestAMemberThatIsAwayAtWorkIsNamedWithWhatToDo(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	a := rollout.Cluster{Name: "a", Selected: true, Away: "it is not connected", Claim: &rollout.ClusterClaim{Revision: "r", Since: now}}
	d := rollout.NextMember([]rollout.Cluster{a, {Name: "b", Selected: true}}, rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r"}, now)
	const want = "1 clusters at work; cluster a keeps its place although it is not connected: bring it back, or delete it if it is gone for good"
	if d.Step != nil || d.Wait.Message != want {
		t.Errorf("%+v, %s", d.Step, d.Wait.Message)
	}
}
