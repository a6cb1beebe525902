// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/test/testkit"
)

// restored is a hub whose Plan and claims come from a backup: the members a and b have completed a later revision
// since.
func restored(t *testing.T, env *testkit.Env) *fixture {
	t.Helper()
	s := newFixture(t, env, "a", "b")
	s.plan(func(spec *v1.PlanSpec) { spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 2} })
	s.reconcile()
	for _, name := range []string{"a", "b"} {
		s.says(name, v1.ReasonComplete, v1.PlanCount{Total: 3, Complete: 3})
	}
	s.reconcile()
	s.expect(v1.ReasonComplete)
	s.events()
	later := &v1.PlanStatus{Revision: "later", LatestHash: "later", Nodes: &v1.PlanCount{Total: 3, Complete: 3},
		Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Status: metav1.ConditionTrue, Reason: v1.ReasonComplete, Message: "done"}}}
	for _, name := range []string{"a", "b"} {
		s.members[name] = plan.MemberState{Connected: true, Silent: s.clock.Now()}
	}
	s.clock.Advance(fullStop)
	s.reconcile()
	for _, name := range []string{"a", "b"} {
		if set := s.delivered[types.NamespacedName{Namespace: s.name.Namespace, Name: name}]; set == nil || set.JSON() != nil {
			t.Errorf("before %s is heard it is given %+v", name, set)
		}
		s.members[name] = plan.MemberState{Connected: true, Reported: true, Status: later}
	}
	s.clock.Advance(fullStop)
	s.reconcile()
	return s
}

// A plan from a backup may have been deleted or changed since. It does not start anywhere while a member is waiting for
// a confirmation.
func TestPlanBeginsNowhereWhileAMemberAwaitsConfirmation(t *testing.T) {
	env := testkit.Shared(t)
	s := newFixture(t, env, "a", "b")
	waiting, known := map[string]*checkpoint.Difference{"b": {Checkpoint: "lost", Add: []string{"plan/k3s"}}}, true
	s.r.Unconfirmed = func(name types.NamespacedName) (*checkpoint.Difference, bool) { return waiting[name.Name], known }
	s.plan(func(spec *v1.PlanSpec) { spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 2} })
	begun := func(want bool) {
		t.Helper()
		s.reconcile()
		for _, name := range []string{"a", "b"} {
			if is := s.claim(name) != nil; is != want {
				t.Errorf("the plan began in %s: %t, want %t", name, is, want)
			}
		}
	}
	begun(false)
	message := s.expect(v1.ReasonHubRestored)
	if !strings.Contains(message, "1 cluster: b.") || !strings.Contains(message, "kubectl drover restored") || !meta.IsStatusConditionTrue(s.read().Status.Conditions, v1.ConditionStalled) {
		t.Errorf("the message is %q, want the member, the command, and Stalled", message)
	}
	c := s.cluster("b")
	c.Status.Restore = &v1.RestoreStatus{Checkpoint: "lost", Summary: "1 to add, 0 to change, 0 to remove"}
	if err := s.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	known, waiting = false, nil
	s.leaves("b")
	begun(false)
	s.expect(v1.ReasonHubRestored) // a disconnected member is still waiting
	known = true
	c = s.cluster("b")
	c.Status.Restore = nil
	if err := s.Client.Status().Update(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	s.members["a"], s.members["b"] = plan.MemberState{Connected: true, Reported: true}, plan.MemberState{Connected: true, Reported: true}
	known = false
	begun(false)
	s.expect(v1.ReasonApplying) // an agent is about to report its state
	known = true
	begun(true)
	waiting = map[string]*checkpoint.Difference{"b": {}}
	s.says("a", v1.ReasonComplete, v1.PlanCount{Total: 3, Complete: 3})
	s.reconcile()
	if s.claim("a").Complete == nil || s.given("b") == nil || s.given("b").Spec.Paused {
		t.Errorf("what has begun does not go on: the claim of a is %+v, b is given %+v", s.claim("a"), s.given("b"))
	}
}

// Agents that cannot reach the hub yet, because its front is not open, may have newer information about the plan.
// Without their reports, the plan must not start.
func TestPlanBeginsNowhereBeforeAgentsHadTimeToReturn(t *testing.T) {
	env := testkit.Shared(t)
	s := newFixture(t, env, "a", "b")
	returned := false
	s.r.Settled, s.r.Returned = func() bool { return true }, func() bool { return returned }
	s.r.Unconfirmed = func(name types.NamespacedName) (*checkpoint.Difference, bool) { return nil, name.Name == "a" }
	s.plan(func(spec *v1.PlanSpec) { spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 2} })
	s.leaves("b")
	for _, want := range []bool{false, true} {
		returned = want
		s.reconcile()
		if began := s.claim("a") != nil; began != want {
			t.Errorf("agents have had time to come back: %t, and the plan began: %t", returned, began)
		}
	}
}

func TestRestoredHub(t *testing.T) {
	env := testkit.Shared(t)
	t.Run("nothing old runs again, and the plan says what to do", func(t *testing.T) {
		s := restored(t, env)
		message := s.expect(v1.ReasonMemberAhead)
		st := s.read().Status
		if !strings.Contains(message, "a, b") || !strings.Contains(message, v1.AnnotationResume+"="+st.Revision) || !meta.IsStatusConditionTrue(st.Conditions, v1.ConditionStalled) {
			t.Errorf("%s; status %+v, want both members named, the annotation to set, and Stalled", message, st)
		}
		for _, name := range []string{"a", "b"} {
			if p := s.given(name); p == nil || !p.Spec.Paused || s.claim(name).Ahead == nil || s.claim(name).Complete != nil {
				t.Errorf("%s is given %+v, its claim is %+v", name, p, s.claim(name))
			}
		}
		if got := s.events(); !slices.Equal(got, []string{"Warning MemberAhead"}) {
			t.Errorf("events %q, want a warning MemberAhead alone", got)
		}
	})
	t.Run("when a person resumes it, it goes wave by wave", func(t *testing.T) {
		s := restored(t, env)
		p := s.read()
		p.Spec.Rollout.MaxConcurrentClusters = 1
		p.Annotations = map[string]string{v1.AnnotationResume: p.Status.Revision}
		if err := s.Client.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3})
		s.says("b", v1.ReasonPaused, v1.PlanCount{Total: 3})
		s.reconcile()
		if p := s.given("a"); p == nil || p.Spec.Paused || !s.given("b").Spec.Paused {
			t.Errorf("a is given %+v, b %+v", p, s.given("b"))
		}
	})
	t.Run("the plan as it should be finds its work done", func(t *testing.T) {
		s := restored(t, env)
		s.change(func(spec *v1.PlanSpec) { spec.Version = "v1.37.0+k3s1" })
		s.clock.Advance(fullStop)
		s.reconcile()
		for range 2 {
			for _, name := range []string{"a", "b"} {
				s.says(name, v1.ReasonComplete, v1.PlanCount{Total: 3, Complete: 3})
			}
			s.clock.Advance(fullStop)
			s.reconcile()
		}
		s.expect(v1.ReasonComplete)
	})
}
