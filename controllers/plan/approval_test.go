// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/test/testkit"
)

// gated makes two waves, of which the second requires approval.
func gated(s *v1.PlanSpec) {
	s.Rollout = &v1.Rollout{MaxConcurrentClusters: 2, Waves: []v1.Wave{
		{Name: "canary", ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "canary"}}},
		{Name: "prod", Approval: v1.ApprovalRequired}}}
}

func (s *fixture) approval(wave string) *v1.WaveApproval {
	s.t.Helper()
	for _, w := range s.read().Status.Waves {
		if w.Name == wave {
			return w.Approval
		}
	}
	s.t.Fatalf("the status has no wave %s: %+v", wave, s.read().Status.Waves)
	return nil
}

func (s *fixture) approve(wave, revision, user string) {
	s.t.Helper()
	s.change(func(spec *v1.PlanSpec) {
		spec.Approvals = []v1.Approval{{Wave: wave, Revision: revision, ApprovedBy: user}}
	})
	s.reconcile()
}

// planSecret creates a Secret that plans can use.
func planSecret(s *fixture, name string) *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{ObjectMeta: s.meta(name), Data: map[string][]byte{"run.sh": []byte("something")}}
	secret.Labels = map[string]string{v1.LabelPlansUse: "true"}
	s.Apply(s.t, secret)
	return secret
}

func TestWaveStartsWhenItIsApproved(t *testing.T) {
	env := testkit.Shared(t)
	// canaryDone is a plan whose first wave is complete.
	canaryDone := func(t *testing.T) *fixture {
		s := newFixture(t, env, "a", "b", "c")
		s.edit("a", func(c *v1.Cluster) { c.Labels = map[string]string{"ring": "canary"} })
		s.plan(gated)
		s.reconcile()
		s.clock.Advance(fullStop)
		s.says("a", v1.ReasonComplete, v1.PlanCount{Total: 1, Complete: 1})
		s.reconcile()
		return s
	}
	t.Run("the status says what to approve, and the plan is not stalled", func(t *testing.T) {
		s := canaryDone(t)
		message := s.expect(v1.ReasonAwaitingApproval)
		is := s.approval("prod")
		if is == nil || len(is.Revision) != 56 || is.ApprovedBy != "" || is.ApprovedAt != nil {
			t.Errorf("wave prod has the approval %+v, want only its revision", is)
		}
		if s.approval("canary") != nil {
			t.Errorf("wave canary has the approval %+v, want none", s.approval("canary"))
		}
		for _, part := range []string{"wave prod", "2 clusters", is.Revision, `"kubectl drover plan approve k3s"`} {
			if !strings.Contains(message, part) {
				t.Errorf("the message is %q, want that it contains %q", message, part)
			}
		}
		conditions := s.read().Status.Conditions
		if meta.IsStatusConditionTrue(conditions, v1.ConditionReady) ||
			meta.FindStatusCondition(conditions, v1.ConditionStalled) != nil {
			t.Errorf("conditions %+v, want neither Ready nor Stalled", conditions)
		}
		if got := s.events(); !slices.Contains(got, "Normal AwaitingApproval") {
			t.Errorf("events %q, want AwaitingApproval", got)
		}
		writes, claims := s.writes, s.claims
		s.clock.Advance(time.Hour)
		if again := s.reconcile(); again.RequeueAfter != 0 || s.writes != writes || s.claims != claims {
			t.Errorf("after an hour %d writes, and again after %v, want neither", s.writes+s.claims-writes-claims,
				again.RequeueAfter)
		}
	})
	t.Run("an approval starts the wave, and is recorded with its time and user", func(t *testing.T) {
		s := canaryDone(t)
		s.events()
		revision := s.approval("prod").Revision
		s.approve("prod", revision, "alice")
		at := s.clock.Now()
		if s.claim("b") == nil || s.claim("c") == nil || s.given("b") == nil || s.given("b").Spec.Approvals != nil {
			t.Errorf("claims %+v and %+v, given %+v, want both begun, without approvals", s.claim("b"), s.claim("c"),
				s.given("b"))
		}
		s.clock.Advance(time.Hour)
		s.says("b", v1.ReasonComplete, v1.PlanCount{Total: 1, Complete: 1})
		s.reconcile()
		is := s.approval("prod")
		if is.Revision != revision || is.ApprovedBy != "alice" || is.ApprovedAt == nil ||
			is.ApprovedAt.Unix() != at.Unix() {
			t.Errorf("the approval is %+v, want revision %s by alice at %v", is, revision, at)
		}
		approved := slices.DeleteFunc(s.events(), func(e string) bool { return e != "Normal WaveApproved" })
		if len(approved) != 1 {
			t.Errorf("%d events of the approval, want 1", len(approved))
		}
	})
	t.Run("a change expires the approval, and pauses members at work", func(t *testing.T) {
		s := canaryDone(t)
		s.approve("prod", s.approval("prod").Revision, "alice")
		s.says("b", v1.ReasonApplying, v1.PlanCount{Total: 3, Complete: 1, Applying: 1}, "node")
		s.change(func(spec *v1.PlanSpec) { spec.Rollout.MaxFailedClusters = 5 })
		s.reconcile()
		if p := s.given("b"); !p.Spec.Paused {
			t.Errorf("b has %+v, want the plan paused", p.Spec)
		}
		s.expect(v1.ReasonAwaitingApproval)
		if is := s.approval("prod"); is.ApprovedBy != "" || is.ApprovedAt != nil {
			t.Errorf("the approval is %+v, want that it has expired", is)
		}
		s.approve("prod", s.approval("prod").Revision, "bob")
		if p := s.given("b"); p.Spec.Paused {
			t.Error("b has the plan paused, want that it continues after the second approval")
		}
	})
	t.Run("a Secret that changes expires the approval", func(t *testing.T) {
		s := newFixture(t, env, "a")
		secret := planSecret(s, "script")
		s.plan(func(spec *v1.PlanSpec) {
			spec.Rollout = &v1.Rollout{Waves: []v1.Wave{{Name: "all", Approval: v1.ApprovalRequired}}}
			spec.Secrets = []v1.PlanSecret{{Name: secret.Name}}
		})
		s.reconcile()
		old := s.approval("all").Revision
		secret.Data["run.sh"] = []byte("something else")
		if err := s.Client.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		s.approve("all", old, "alice")
		if s.claim("a") != nil || s.approval("all").Revision == old {
			t.Errorf("claim %+v, revision %s, want nothing begun, and another revision", s.claim("a"), old)
		}
	})
	t.Run("a problem that passes changes neither the time nor the user of an approval", func(t *testing.T) {
		s := newFixture(t, env, "a")
		secret := planSecret(s, "script")
		s.plan(func(spec *v1.PlanSpec) {
			spec.Rollout = &v1.Rollout{Waves: []v1.Wave{{Name: "all", Approval: v1.ApprovalRequired},
				{Name: "rest", Approval: v1.ApprovalRequired}}}
			spec.Secrets = []v1.PlanSecret{{Name: secret.Name}}
		})
		s.reconcile()
		s.approve("all", s.approval("all").Revision, "alice")
		want := s.approval("all")
		label := func(value string) {
			s.clock.Advance(time.Hour)
			secret.Labels[v1.LabelPlansUse] = value
			if err := s.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
			s.events()
			s.reconcile()
		}
		label("false")
		s.expect(v1.ReasonSecretNotFound)
		if is := s.approval("all"); !equality.Semantic.DeepEqual(is, want) {
			t.Errorf("during the problem the approval is %+v, want %+v", is, want)
		}
		if is := s.approval("rest"); *is != (v1.WaveApproval{}) {
			t.Errorf("the approval of the other wave is %+v, want no revision during the problem", is)
		}
		label("true")
		if is := s.approval("all"); !equality.Semantic.DeepEqual(is, want) {
			t.Errorf("after the problem the approval is %+v, want %+v", is, want)
		}
		if got := s.events(); slices.Contains(got, "Normal WaveApproved") {
			t.Errorf("events %q, want none of an approval: the user has approved it once", got)
		}
	})
	t.Run("an approval that is removed during a problem is not kept", func(t *testing.T) {
		s := canaryDone(t)
		s.approve("prod", s.approval("prod").Revision, "alice")
		s.clock.Advance(time.Hour)
		s.change(func(spec *v1.PlanSpec) {
			spec.Approvals, spec.Secrets = nil, []v1.PlanSecret{{Name: "missing"}}
		})
		s.reconcile()
		s.expect(v1.ReasonSecretNotFound)
		if is := s.approval("prod"); *is != (v1.WaveApproval{}) {
			t.Errorf("the approval is %+v, want none", is)
		}
	})
	t.Run("a plan that is created again has another revision", func(t *testing.T) {
		s := canaryDone(t)
		old := s.read()
		if err := s.Client.Delete(t.Context(), old.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		s.reconcile()
		s.plan(gated, func(spec *v1.PlanSpec) {
			spec.Approvals = []v1.Approval{{Wave: "prod", Revision: old.Status.Waves[1].Approval.Revision,
				ApprovedBy: "alice"}}
		})
		s.members = map[string]plan.MemberState{}
		s.reconcile()
		s.says("a", v1.ReasonComplete, v1.PlanCount{Total: 1, Complete: 1})
		s.clock.Advance(fullStop)
		s.reconcile()
		s.expect(v1.ReasonAwaitingApproval)
		if s.claim("b") != nil {
			t.Errorf("b has the claim %+v, want none", s.claim("b"))
		}
	})
	t.Run("a plan with a problem has no revision to approve", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan(func(spec *v1.PlanSpec) {
			spec.Rollout = &v1.Rollout{Waves: []v1.Wave{{Name: "all", Approval: v1.ApprovalRequired}}}
			spec.Secrets = []v1.PlanSecret{{Name: "missing"}}
		})
		s.reconcile()
		s.expect(v1.ReasonSecretNotFound)
		if is := s.approval("all"); *is != (v1.WaveApproval{}) {
			t.Errorf("the approval is %+v, want no revision", is)
		}
	})
}
