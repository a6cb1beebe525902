// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/test/testkit"
)

// refuses makes a member report that it cannot be upgraded safely.
func (s *fixture) refuses(name string, findings ...v1.UpgradeFinding) {
	s.t.Helper()
	s.says(name, v1.ReasonUpgradeUnsafe, v1.PlanCount{Total: 3, Summary: "0/3"})
	s.members[name].Status.Gates = &v1.GateStatus{Findings: findings}
	s.reconcile()
}

func TestMemberThatCannotBeUpgradedSafelyIsShownAndOverridden(t *testing.T) {
	env := testkit.Shared(t)
	found := v1.UpgradeFinding{Check: "NodesReady", Object: "node/x", Cause: "it is not ready", Remedy: "repair it"}
	refused := func(t *testing.T) *fixture {
		s := newFixture(t, env, "a", "b")
		s.plan()
		s.reconcile()
		s.clock.Advance(fullStop)
		s.refuses("a", found)
		return s
	}
	t.Run("it gives up its slot, and the plan waits when the others are complete", func(t *testing.T) {
		s := refused(t)
		if c := s.claim("a"); c == nil || c.Refused == nil || !s.given("a").Spec.Paused {
			t.Errorf("a has the claim %+v and the plan %+v, want that it is refused and paused", c, s.given("a").Spec)
		}
		if s.claim("b") == nil {
			t.Fatal("b has no claim, want that it uses the slot")
		}
		s.clock.Advance(fullStop)
		s.says("b", v1.ReasonComplete, v1.PlanCount{Total: 1, Complete: 1})
		s.reconcile()
		message := s.expect(v1.ReasonUpgradeUnsafe)
		for _, part := range []string{"1 cluster cannot", "Cluster a: as the test wants", `"kubectl drover plan check k3s"`} {
			if !strings.Contains(message, part) {
				t.Errorf("the message is %q, want that it contains %q", message, part)
			}
		}
		status := s.read().Status
		want := found
		want.Cluster = "a"
		if g := status.Gates; g == nil || len(g.Findings) != 1 || g.Findings[0] != want || len(g.Revision) != 56 {
			t.Errorf("the gates are %+v, want the finding %+v and a revision", g, want)
		}
		if len(status.Members) != 1 || status.Members[0].Reason != v1.ReasonUpgradeUnsafe || status.Clusters.Held != 1 {
			t.Errorf("members %+v, counts %+v, want that a is held", status.Members, status.Clusters)
		}
		if meta.FindStatusCondition(status.Conditions, v1.ConditionStalled) != nil {
			t.Errorf("conditions %+v, want that the plan is not stalled", status.Conditions)
		}
		if got := s.events(); !slices.Contains(got, "Warning UpgradeUnsafe") {
			t.Errorf("events %q, want UpgradeUnsafe", got)
		}
		writes, claims := s.writes, s.claims
		s.clock.Advance(time.Hour)
		if again := s.reconcile(); again.RequeueAfter != 0 || s.writes != writes || s.claims != claims {
			t.Errorf("after an hour %d writes, and again after %v, want neither", s.writes+s.claims-writes-claims,
				again.RequeueAfter)
		}
		s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3})
		s.reconcile()
		if c := s.claim("a"); c.Refused != nil || s.given("a").Spec.Paused {
			t.Errorf("a has the claim %+v and the plan %+v, want that it starts when it is safe", c, s.given("a").Spec)
		}
		s.clock.Advance(fullStop)
		s.reconcile()
		if g := s.read().Status.Gates; g != nil {
			t.Errorf("the gates are %+v, want none", g)
		}
	})
	t.Run("an override reaches the member, and is recorded with its user, time and reason", func(t *testing.T) {
		s := refused(t)
		revision := s.read().Status.Gates.Revision
		override := v1.Override{Check: "NodesReady", Revision: revision, OverriddenBy: "alice", Reason: "it is replaced"}
		before := s.given("a").Spec
		s.change(func(spec *v1.PlanSpec) { spec.Overrides = []v1.Override{override} })
		s.events()
		s.reconcile()
		at := s.clock.Now()
		given := s.given("a")
		if got := given.Annotations[v1.AnnotationOverrides]; got != "NodesReady" || given.Spec.Overrides != nil {
			t.Errorf("a has the overrides %q and %+v, want NodesReady in the annotation only", got, given.Spec.Overrides)
		}
		if !equality.Semantic.DeepEqual(given.Spec, before) {
			t.Errorf("a has the spec %+v, want %+v: a change would make failed nodes try again", given.Spec, before)
		}
		s.clock.Advance(time.Hour)
		s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3})
		s.reconcile()
		want := v1.OverrideStatus{Check: "NodesReady", Revision: revision, OverriddenBy: "alice", Reason: "it is replaced"}
		g := s.read().Status.Gates
		if g == nil || len(g.Overrides) != 1 {
			t.Fatalf("the gates are %+v, want the override", g)
		}
		is := g.Overrides[0]
		if is.OverriddenAt.Unix() != at.Unix() {
			t.Errorf("the time is %v, want %v", is.OverriddenAt, at)
		}
		if want.OverriddenAt = is.OverriddenAt; !equality.Semantic.DeepEqual(is, want) {
			t.Errorf("the override is %+v, want %+v", is, want)
		}
		overridden := slices.DeleteFunc(s.events(), func(e string) bool { return e != "Warning CheckOverridden" })
		if len(overridden) != 1 {
			t.Errorf("%d events of the override, want 1", len(overridden))
		}
		s.change(func(spec *v1.PlanSpec) { spec.Overrides[0].Clusters = []string{"b"} })
		s.reconcile()
		if got := s.given("a").Annotations[v1.AnnotationOverrides]; got != "" {
			t.Errorf("with an override for b, a has the overrides %q, want none", got)
		}
		if g := s.read().Status.Gates; g == nil || len(g.Overrides) != 1 ||
			!slices.Equal(g.Overrides[0].Clusters, []string{"b"}) {
			t.Errorf("the gates are %+v, want the override for b", g)
		}
		s.change(func(spec *v1.PlanSpec) { spec.Rollout = &v1.Rollout{MaxFailedClusters: 5} })
		s.clock.Advance(fullStop)
		s.reconcile()
		if got := s.given("a").Annotations[v1.AnnotationOverrides]; got != "" {
			t.Errorf("after a change a has the overrides %q, want none", got)
		}
		if g := s.read().Status.Gates; g != nil {
			t.Errorf("after a change the gates are %+v, want that the override has expired", g)
		}
	})
	t.Run("members whose agents do not check them start only without gates, and are listed", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.members["a"] = plan.MemberState{Connected: true, Reported: true, Unchecked: true}
		enforce := &v1.PlanGates{UpgradeChecks: v1.UpgradeChecksEnforce}
		s.plan(func(spec *v1.PlanSpec) { spec.Gates = enforce })
		s.reconcile()
		message := s.expect(v1.ReasonHeld)
		if s.claim("a") != nil || !strings.Contains(message, "AgentTooOld") ||
			!strings.Contains(message, "upgrade the agent") {
			t.Errorf("a has the claim %+v, message %q, want no claim, AgentTooOld and the remedy", s.claim("a"), message)
		}
		s.change(func(spec *v1.PlanSpec) { spec.Gates = nil })
		s.reconcile()
		want := v1.UpgradeFinding{Cluster: "a", Check: v1.CheckUpgradeChecks,
			Cause: "not checked: its agent is too old (AgentTooOld)", Remedy: "upgrade the agent"}
		if g := s.read().Status.Gates; s.claim("a") == nil || g == nil ||
			!slices.Equal(g.Findings, []v1.UpgradeFinding{want}) {
			t.Errorf("without gates a has the claim %+v, the gates are %+v, want a claim and %+v", s.claim("a"), g, want)
		}
		s.change(func(spec *v1.PlanSpec) { spec.Gates = enforce })
		s.reconcile()
		if s.given("a").Spec.Gates != nil || s.given("a").Spec.Paused {
			t.Errorf("a is given %+v, want a plan that continues without gates, because its CRD has none", s.given("a").Spec)
		}
	})
	t.Run("the status lists at most ten findings", func(t *testing.T) {
		s := newFixture(t, env, "a", "b", "c")
		s.plan(func(spec *v1.PlanSpec) { spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 3} })
		s.reconcile()
		for _, name := range []string{"a", "b", "c"} {
			s.clock.Advance(fullStop)
			s.refuses(name, slices.Repeat([]v1.UpgradeFinding{found}, 4)...)
		}
		s.clock.Advance(fullStop)
		s.reconcile()
		if g := s.read().Status.Gates; g == nil || len(g.Findings) != v1.MaxFindings || g.Findings[9].Cluster != "c" {
			t.Errorf("the gates are %+v, want the first ten findings", g)
		}
	})
}
