// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// observed is a Progress whose members' connections the test sets.
type observed struct {
	*plan.Progress
	t       *testing.T
	member  types.NamespacedName
	state   members.State
	changed []string
}

func (o *observed) lead() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = o.Start(ctx) }()
	o.t.Cleanup(func() { cancel(); <-done })
	synctest.Wait()
}

// connect connects the member, or changes its agent's report.
func (o *observed) connect(capabilities protocol.Capabilities) {
	o.state = members.State{Peers: []members.Peer{{ID: "1"}}, Report: &protocol.Report{Capabilities: capabilities}}
	o.Changed(o.member)
}

func (o *observed) disconnect() {
	o.state = members.State{}
	o.Changed(o.member)
}

func (o *observed) expect(what string, check func(plan.MemberState) bool) {
	o.t.Helper()
	if s := o.State("k3s", o.member); !check(s) {
		o.t.Errorf("%s: the state is %+v", what, s)
	}
}

func stateOf(name, revision string) *protocol.PlanEvent {
	return &protocol.PlanEvent{State: &protocol.PlanState{Name: name, Status: v1.PlanStatus{Revision: revision}}}
}

func hold(reason string) *protocol.PlanEvent {
	return &protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: reason}}
}

func TestProgress(t *testing.T) {
	able := protocol.Capabilities{Features: []string{protocol.FeaturePlans}}
	checks := protocol.Capabilities{Features: []string{protocol.FeaturePlans, protocol.FeatureUpgradeChecks}}
	for name, test := range map[string]func(*testing.T, *observed){
		"what was reported stays while the member is away, and what comes later replaces all": func(t *testing.T, o *observed) {
			o.lead()
			o.connect(able)
			o.Synced(o.member, []*protocol.PlanEvent{hold("not now"), stateOf("k3s", "1")})
			o.expect("reported", func(s plan.MemberState) bool {
				return s.Connected && s.Reported && s.Silent.IsZero() && s.Hold == "not now" && s.Status.Revision == "1"
			})
			o.Stopped(o.member)
			o.disconnect()
			o.expect("away", func(s plan.MemberState) bool {
				return !s.Connected && !s.Reported && s.Silent.IsZero() && s.Status != nil
			})
			o.connect(able)
			o.expect("back", func(s plan.MemberState) bool { return !s.Reported && !s.Silent.IsZero() && s.Status != nil })
			o.Synced(o.member, []*protocol.PlanEvent{hold("")})
			o.expect("reported again", func(s plan.MemberState) bool { return s.Reported && s.Status == nil && s.Hold == "" })
		},
		"the plan is woken by its status, all plans of the member by what concerns all": func(t *testing.T, o *observed) {
			o.lead()
			o.connect(able)
			o.Synced(o.member, nil)
			for _, event := range []*protocol.PlanEvent{
				hold(""), stateOf("k3s", "1"), stateOf("k3s", "1"), stateOf("k3s", "2"), hold("x"), {Removed: "k3s"}, {Removed: "k3s"},
			} {
				o.Event(o.member, event)
			}
			o.Stopped(o.member)
			o.Changed(o.member)
			o.disconnect()
			if want := []string{"member a", "member a", "plan k3s", "plan k3s", "member a", "plan k3s", "member a", "member a"}; !slices.Equal(o.changed, want) {
				t.Errorf("woken: %q, want %q", o.changed, want)
			}
		},
		"an agent reports whether it checks the member": func(t *testing.T, o *observed) {
			o.connect(able)
			o.expect("older", func(s plan.MemberState) bool { return s.Unchecked && s.Refuses == "" })
			o.connect(checks)
			o.expect("newer", func(s plan.MemberState) bool { return !s.Unchecked })
			if want := []string{"member a", "member a"}; !slices.Equal(o.changed, want) {
				t.Errorf("woken: %q, want %q", o.changed, want)
			}
		},
		"the findings are dropped when the plan is complete": func(t *testing.T, o *observed) {
			o.connect(checks)
			for status, want := range map[metav1.ConditionStatus]bool{metav1.ConditionFalse: true, metav1.ConditionTrue: false} {
				event := stateOf("k3s", "1")
				event.State.Status.Gates = &v1.GateStatus{Findings: []v1.UpgradeFinding{{Check: "NodesReady"}}}
				event.State.Status.Conditions = []metav1.Condition{{Type: v1.ConditionComplete, Status: status}}
				o.Synced(o.member, []*protocol.PlanEvent{event})
				o.expect("complete is "+string(status), func(s plan.MemberState) bool { return (s.Status.Gates != nil) == want })
			}
		},
		"an agent that is too old, or may run none, refuses and is not silent": func(t *testing.T, o *observed) {
			o.lead()
			for want, can := range map[string]protocol.Capabilities{
				v1.ReasonAgentTooOld:   {Features: []string{"plans"}},
				v1.ReasonAgentReadOnly: {Features: []string{protocol.FeaturePlans}, Profile: string(v1.ProfileReadOnly)},
			} {
				o.connect(can)
				o.expect(want, func(s plan.MemberState) bool { return s.Refuses == want && s.Silent.IsZero() && !s.Reported })
			}
		},
		"an agent is silent from when this manager leads": func(t *testing.T, o *observed) {
			o.connect(able)
			o.expect("before", func(s plan.MemberState) bool { return s.Connected && s.Silent.IsZero() })
			o.lead()
			o.expect("leading", func(s plan.MemberState) bool { return !s.Silent.IsZero() })
			o.Synced(o.member, nil)
			o.expect("reported", func(s plan.MemberState) bool { return s.Silent.IsZero() && s.Reported })
		},
		"the number of plans that are kept is bounded": func(t *testing.T, o *observed) {
			o.connect(able)
			o.Synced(o.member, nil)
			kept := 0
			for i := range 1000 {
				o.Event(o.member, stateOf(fmt.Sprint("p", i), "1"))
				if o.State(fmt.Sprint("p", i), o.member).Status != nil {
					kept++
				}
			}
			if kept != 128 {
				t.Errorf("%d are kept, want 128", kept)
			}
		},
		"a Cluster that is gone is forgotten, but not one that is connected": func(t *testing.T, o *observed) {
			o.connect(able)
			o.Synced(o.member, []*protocol.PlanEvent{stateOf("k3s", "1")})
			o.Forget(o.member)
			o.expect("connected", func(s plan.MemberState) bool { return s.Status != nil })
			o.Stopped(o.member)
			o.disconnect()
			o.Forget(o.member)
			o.expect("gone", func(s plan.MemberState) bool { return s.Status == nil })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &observed{t: t, member: types.NamespacedName{Namespace: "team-a", Name: "a"}}
				o.Progress = plan.NewProgress(func(types.NamespacedName) members.State { return o.state })
				o.OnPlan(func(plan types.NamespacedName) { o.changed = append(o.changed, "plan "+plan.Name) })
				o.OnMember(func(member types.NamespacedName) { o.changed = append(o.changed, "member "+member.Name) })
				test(t, o)
			})
		})
	}
}
