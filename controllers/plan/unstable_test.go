// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/test/testkit"
)

func testUnstableMembers(t *testing.T, env *testkit.Env) {
	t.Run("another reason is written at once, counts once a second", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan()
		s.reconcile()
		for complete := range int32(5) {
			s.says("a", v1.ReasonApplying, v1.PlanCount{Total: 9, Complete: complete}, "n")
			if again := s.reconcile(); again.RequeueAfter <= 0 || again.RequeueAfter > time.Second {
				t.Fatalf("it looks again after %v", again.RequeueAfter)
			}
		}
		if s.writes != 1 {
			t.Errorf("%d writes in no time", s.writes)
		}
		s.says("a", v1.ReasonComplete, v1.PlanCount{Total: 9, Complete: 9})
		s.reconcile()
		s.expect(v1.ReasonComplete)
		if st := s.read().Status; s.writes != 2 || st.Nodes.Summary != "9/9" {
			t.Errorf("%d writes, status %+v, want 2 and 9/9 nodes", s.writes, st)
		}
	})
	t.Run("a member that flaps costs two writes of its Cluster a minute, an event a minute for each reason, and no more than a write of the status a second", func(t *testing.T) {
		s := newFixture(t, env, "a", "b")
		s.plan()
		s.reconcile()
		claims, writes := s.claims, s.writes
		s.events()
		const minutes = 2
		for range minutes * 60 * 2 {
			s.clock.Advance(250 * time.Millisecond)
			s.says("a", v1.ReasonNodeFailed, v1.PlanCount{Total: 3, Failed: 1})
			s.reconcile()
			s.clock.Advance(250 * time.Millisecond)
			s.says("a", v1.ReasonApplying, v1.PlanCount{Total: 3, Applying: 1}, "n")
			s.reconcile()
		}
		told := s.events()
		if got := s.claims - claims; got > 2*minutes || got < 2 {
			t.Errorf("%d writes of Clusters in %d minutes", got, minutes)
		}
		if len(told) > 2*minutes || len(told) < 2 {
			t.Errorf("%d events in %d minutes: %q", len(told), minutes, told)
		}
		if got := s.writes - writes; got > 62*minutes {
			t.Errorf("%d writes of the status in %d minutes", got, minutes)
		}
		t.Logf("%d writes of Clusters, %d events, %d writes of the status in %d minutes", s.claims-claims, len(told), s.writes-writes, minutes)
	})
	t.Run("one that comes and goes costs no more", func(t *testing.T) {
		s := newFixture(t, env, "a", "b")
		s.plan()
		s.members["b"] = plan.MemberState{}
		s.reconcile()
		s.says("a", v1.ReasonComplete, v1.PlanCount{})
		s.reconcile()
		s.expect(v1.ReasonMembersAway)
		claims, writes := s.claims, s.writes
		s.events()
		for range 60 * 2 {
			s.clock.Advance(250 * time.Millisecond)
			s.members["b"] = plan.MemberState{Connected: true, Silent: s.clock.Now()}
			s.reconcile()
			s.clock.Advance(250 * time.Millisecond)
			s.members["b"] = plan.MemberState{}
			s.reconcile()
		}
		if told, got := s.events(), s.writes-writes; len(told) > 2 || got > 62 || s.claims != claims {
			t.Errorf("events %q, %d writes of the status, %d of Clusters", told, got, s.claims-claims)
		}
	})
	t.Run("after a change of the spec a reason gets its event again, however soon", func(t *testing.T) {
		s := newFixture(t, env, "a")
		s.plan()
		s.reconcile()
		for range 3 {
			s.change(func(spec *v1.PlanSpec) { spec.Paused = true })
			s.reconcile()
			s.change(func(spec *v1.PlanSpec) { spec.Paused = false })
			s.reconcile()
		}
		if got := s.events(); len(got) != 7 {
			t.Errorf("events %q, want 7", got)
		}
	})
	t.Run("a member that is lost at work gets one event, with its name, since when, and what to do", func(t *testing.T) {
		s := newFixture(t, env, "a", "b")
		s.plan()
		s.reconcile()
		s.events()
		s.says("a", v1.ReasonApplying, v1.PlanCount{Total: 3, Applying: 1}, "n")
		s.leaves("a")
		since := s.clock.Now().Format(time.RFC3339)
		again := s.reconcile()
		s.expect(v1.ReasonApplying)
		s.clock.Advance(again.RequeueAfter) // nothing is done with a disconnected member
		again = s.reconcile()
		if s.clock.Advance(again.RequeueAfter); again.RequeueAfter != 0 {
			s.reconcile()
		}
		message := s.expect(v1.ReasonMemberLost)
		for _, want := range []string{"cluster a", "not connected since " + since, "plan.cluster.drover.dev/k3s=disabled", "delete it"} {
			if !strings.Contains(message, want) {
				t.Errorf("%q does not say %q", message, want)
			}
		}
		for range 10 {
			s.clock.Advance(time.Minute)
			s.reconcile()
		}
		if got := s.events(); !slices.Equal(got, []string{"Warning MemberLost"}) || s.claim("b") != nil {
			t.Errorf("events %q, claim %v, want a warning MemberLost and no claim", got, s.claim("b"))
		}
	})
	t.Run("both ways out that it names free the place", func(t *testing.T) {
		for name, out := range map[string]func(*fixture){
			"labelled disabled": func(s *fixture) {
				s.edit("a", func(c *v1.Cluster) { c.Labels = map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled} })
			},
			"deleted": func(s *fixture) {
				if err := s.Client.Delete(t.Context(), s.cluster("a")); err != nil {
					t.Fatal(err)
				}
			},
		} {
			s := newFixture(t, env, "a", "b")
			s.plan()
			s.reconcile()
			s.leaves("a")
			s.clock.Advance(5 * time.Minute)
			s.reconcile()
			s.expect(v1.ReasonMemberLost)
			out(s)
			s.reconcile()
			if s.claim("b") == nil {
				t.Errorf("%s: b does not begin", name)
			}
			s.says("b", v1.ReasonComplete, v1.PlanCount{Total: 3, Complete: 3})
			s.reconcile()
			s.expect(v1.ReasonComplete)
		}
	})
	t.Run("a member that comes back after it was left out finishes what runs there and is let go", func(t *testing.T) {
		s := newFixture(t, env, "a", "b")
		s.plan()
		s.reconcile()
		s.leaves("a")
		s.clock.Advance(5 * time.Minute)
		s.edit("a", func(c *v1.Cluster) { c.Labels = map[string]string{v1.PlanLabel("k3s"): v1.PlanDisabled} })
		s.reconcile()
		s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3, Applying: 1}, "n")
		s.reconcile()
		if p := s.given("a"); p == nil || !p.Spec.Paused || s.claim("a") == nil {
			t.Fatalf("given %+v, claim %v, want the plan paused there and the claim kept", p, s.claim("a"))
		}
		s.says("a", v1.ReasonPaused, v1.PlanCount{Total: 3})
		s.reconcile()
		if s.given("a") != nil || s.claim("a") != nil {
			t.Errorf("given %+v, claim %v, want both taken away", s.given("a"), s.claim("a"))
		}
	})
	t.Run("an agent that says nothing, or no longer runs plans, is lost as well", func(t *testing.T) {
		for name, state := range map[string]func(time.Time) plan.MemberState{
			"has not said how its plans are since": func(at time.Time) plan.MemberState { return plan.MemberState{Connected: true, Silent: at} },
			"has the ReadOnly profile": func(time.Time) plan.MemberState {
				return plan.MemberState{Connected: true, Refuses: v1.ReasonAgentReadOnly}
			},
			"is too old": func(time.Time) plan.MemberState {
				return plan.MemberState{Connected: true, Refuses: v1.ReasonAgentTooOld}
			},
		} {
			s := newFixture(t, env, "a", "b")
			s.plan()
			s.reconcile()
			s.members["a"] = state(s.clock.Now())
			s.clock.Advance(5 * time.Minute)
			s.reconcile()
			if message := s.expect(v1.ReasonMemberLost); !strings.Contains(message, name) {
				t.Errorf("%q does not say %q", message, name)
			}
		}
	})
}
