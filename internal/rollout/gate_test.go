// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestApprovalCountsOnlyForItsWaveAndRevision(t *testing.T) {
	approvals := []v1.Approval{{Wave: "canary", Revision: "old", ApprovedBy: "alice"},
		{Wave: "prod", Revision: "new", ApprovedBy: "bob"}, {Wave: "odd", ApprovedBy: "eve"}}
	for name, tt := range map[string]struct{ wave, revision, want string }{
		"the wave and revision that were approved": {"prod", "new", "bob"},
		"an earlier revision":                      {"canary", "new", ""},
		"another wave":                             {"rest", "new", ""},
		"an unknown revision":                      {"odd", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rollout.ApprovedBy(tt.wave, tt.revision, approvals); got != tt.want {
				t.Errorf("ApprovedBy(%q, %q) is %q, want %q", tt.wave, tt.revision, got, tt.want)
			}
		})
	}
}

func TestApprovalRevisionChangesWithEverythingButPauseAndApprovals(t *testing.T) {
	spec := v1.PlanSpec{}
	spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{Name: "canary"}, {Name: "prod"}}}
	spec.Version, spec.Upgrade.Image = "v1", "i"
	revision := func(uid types.UID, work string, change func(*v1.PlanSpec)) string {
		t.Helper()
		changed := spec.DeepCopy()
		change(changed)
		got, err := rollout.ApprovalRevision(uid, work, changed)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	same := func(*v1.PlanSpec) {}
	was := revision("uid", "r", same)
	for name, tt := range map[string]struct {
		uid    types.UID
		work   string
		change func(*v1.PlanSpec)
		same   bool
	}{
		"nothing":   {"uid", "r", same, true},
		"a pause":   {"uid", "r", func(s *v1.PlanSpec) { s.Paused = true }, true},
		"approvals": {"uid", "r", func(s *v1.PlanSpec) { s.Approvals = []v1.Approval{{Wave: "a"}} }, true},
		"a copy":    {"another", "r", same, false},
		"a Secret":  {"uid", "r2", same, false},
		"image":     {"uid", "r", func(s *v1.PlanSpec) { s.Upgrade.Image = "j" }, false},
		"version":   {"uid", "r", func(s *v1.PlanSpec) { s.Version = "v2" }, false},
		"members":   {"uid", "r", func(s *v1.PlanSpec) { s.ClusterSelector = &metav1.LabelSelector{} }, false},
		"waves":     {"uid", "r", func(s *v1.PlanSpec) { slices.Reverse(s.Rollout.Waves) }, false},
		"a wave's members": {"uid", "r", func(s *v1.PlanSpec) {
			s.Rollout.Waves[0].ClusterSelector = &metav1.LabelSelector{}
		}, false},
		"failures": {"uid", "r", func(s *v1.PlanSpec) { s.Rollout.MaxFailedClusters = 9 }, false},
		"window":   {"uid", "r", func(s *v1.PlanSpec) { s.Window = &v1.TimeWindow{} }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := revision(tt.uid, tt.work, tt.change); (got == was) != tt.same {
				t.Errorf("the revision is %s after %s, want the same as %s: %v", got, name, was, tt.same)
			}
		})
	}
}

func TestWavesWaitForApproval(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	hour := now.Add(-time.Hour)
	begun := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: hour} }
	complete := func() *rollout.ClusterClaim {
		return &rollout.ClusterClaim{Revision: "r", Since: hour, Complete: &hour}
	}
	failed := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: hour, Failed: &hour} }
	approved := func(waves ...string) func(*rollout.FleetPlan) {
		return func(p *rollout.FleetPlan) {
			for _, w := range waves {
				p.Approvals = append(p.Approvals, v1.Approval{Wave: w, Revision: "a", ApprovedBy: "alice"})
			}
		}
	}
	const plan, paused, nothing = rollout.DeliverPlan, rollout.DeliverPaused, rollout.DeliverNothing
	type given [3]rollout.Delivery
	for name, tt := range map[string]struct {
		first, second, last rollout.Cluster // in the waves canary, prod and rest; both named waves require approval
		change              func(*rollout.FleetPlan)
		step, reason        string
		given               given
	}{
		"the first wave waits": {reason: v1.ReasonAwaitingApproval, given: given{nothing, nothing, nothing}},
		"an approval of a later wave does not open it": {
			change: approved("prod"), reason: v1.ReasonAwaitingApproval, given: given{nothing, nothing, nothing},
		},
		"an approval of another revision does not open it": {
			change: func(p *rollout.FleetPlan) { approved("canary")(p); p.ApprovalRevision = "b" },
			reason: v1.ReasonAwaitingApproval, given: given{nothing, nothing, nothing},
		},
		"an approved wave starts": {
			change: approved("canary"), step: "begin a", given: given{nothing, nothing, nothing},
		},
		"an approved wave works, and the next one does not start": {
			first: rollout.Cluster{Claim: begun()}, change: approved("canary"), reason: v1.ReasonApplying,
			given: given{plan, nothing, nothing},
		},
		"the next wave waits for its own approval": {
			first: rollout.Cluster{Claim: complete()}, change: approved("canary"), reason: v1.ReasonAwaitingApproval,
			given: given{plan, nothing, nothing},
		},
		"the next wave starts with its own approval": {
			first: rollout.Cluster{Claim: complete()}, change: approved("canary", "prod"), step: "begin b",
			given: given{plan, nothing, nothing},
		},
		"a wave soaks first, although the next one is approved": {
			first: rollout.Cluster{Claim: complete()}, reason: v1.ReasonSoaking, given: given{plan, nothing, nothing},
			change: func(p *rollout.FleetPlan) { approved("canary", "prod")(p); p.Pace.Waves[0].Soak = 2 * time.Hour },
		},
		"a withdrawn approval pauses members at work": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Claim: begun()}, change: approved("canary"),
			reason: v1.ReasonAwaitingApproval, given: given{plan, paused, nothing},
		},
		"a failed member does not try again without approval": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Claim: failed()},
			change: func(p *rollout.FleetPlan) { approved("canary")(p); p.Pace.MaxFailed = 1 },
			reason: v1.ReasonAwaitingApproval, given: given{plan, paused, nothing},
		},
		"a wave that needs no approval does not pass one that does": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Claim: complete()},
			last: rollout.Cluster{Claim: begun()}, change: approved("canary"),
			reason: v1.ReasonAwaitingApproval, given: given{plan, plan, paused},
		},
		"an empty wave waits too": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Name: "-"}, change: approved("canary"),
			reason: v1.ReasonAwaitingApproval, given: given{plan, nothing, nothing},
		},
		"members that are away wait for no approval": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Away: "lost"},
			last: rollout.Cluster{Away: "lost"}, change: approved("canary"), reason: v1.ReasonMembersAway,
			given: given{plan, nothing, nothing},
		},
		"a complete plan is complete, although its approvals are gone": {
			first: rollout.Cluster{Claim: complete()}, second: rollout.Cluster{Claim: complete()},
			last: rollout.Cluster{Claim: complete()}, reason: v1.ReasonComplete, given: given{plan, plan, plan},
		},
		"a member without approval that keeps the only slot is the reason to wait": {
			second: rollout.Cluster{Claim: begun()}, change: approved("canary"), reason: v1.ReasonAwaitingApproval,
			given: given{nothing, paused, nothing},
		},
		"a paused plan is paused": {
			change: func(p *rollout.FleetPlan) { p.Pace.Paused = true }, reason: v1.ReasonPaused,
			given: given{nothing, nothing, nothing},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ring := func(value string) *metav1.LabelSelector {
				return &metav1.LabelSelector{MatchLabels: map[string]string{"ring": value}}
			}
			p := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r", ApprovalRevision: "a", Pace: rollout.Pace{
				Waves: []rollout.Wave{{Name: "canary", Selector: ring("0"), NeedsApproval: true},
					{Name: "prod", Selector: ring("1"), NeedsApproval: true}}}}
			if tt.change != nil {
				tt.change(&p)
			}
			clusters := []rollout.Cluster{tt.first, tt.second, tt.last}
			for i := range clusters {
				c := &clusters[i]
				c.Selected, c.Labels = c.Name != "-", map[string]string{"ring": string("012"[i])}
				c.Name = string("abc"[i])
				if c.Claim != nil && c.Claim.Failed != nil {
					c.Status = said("r", v1.ReasonNodeFailed)
				}
			}
			f, err := rollout.NewFleet(clusters, p, now)
			if err != nil {
				t.Fatal(err)
			}
			d, step := f.Next(), ""
			if d.Step != nil {
				step = string(d.Step.Verb) + " " + d.Step.Cluster
			}
			if step != tt.step || d.Wait.Reason != tt.reason {
				t.Errorf("step %q, wait %+v, want step %q, reason %q", step, d.Wait, tt.step, tt.reason)
			}
			if d.Wait.Reason == v1.ReasonAwaitingApproval &&
				!strings.Contains(d.Wait.Message, `"kubectl drover plan approve p"`) {
				t.Errorf("the message is %q, want the command that approves", d.Wait.Message)
			}
			for i := range clusters {
				if got := f.Deliver(&clusters[i]); got != tt.given[i] {
					t.Errorf("cluster %s receives %s, want %s", clusters[i].Name, got, tt.given[i])
				}
			}
		})
	}
}

func TestStatusOfWavesShowsWhatToApprove(t *testing.T) {
	p := rollout.FleetPlan{Name: "p", Revision: "r", ApprovalRevision: "a", Pace: rollout.Pace{Waves: []rollout.Wave{
		{Name: "free"}, {Name: "canary", NeedsApproval: true}, {Name: "prod", NeedsApproval: true}}},
		Approvals: []v1.Approval{{Wave: "canary", Revision: "a", ApprovedBy: "alice"}}}
	f, err := rollout.NewFleet(nil, p, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]v1.WaveApproval{"canary": {Revision: "a", ApprovedBy: "alice"}, "prod": {Revision: "a"}}
	for _, w := range f.Waves() {
		switch is, required := want[w.Name]; {
		case required != (w.Approval != nil):
			t.Errorf("wave %s has the approval %+v, want one: %v", w.Name, w.Approval, required)
		case required && *w.Approval != is:
			t.Errorf("wave %s has the approval %+v, want %+v", w.Name, *w.Approval, is)
		}
	}
}

func TestApprovalRevisionOfABaselineChangesWithItsContentAndSpec(t *testing.T) {
	spec := v1.BaselineSpec{RoleTemplateName: "view"}
	spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	spec.Rollout = &v1.Rollout{MaxConcurrentClusters: 1, Waves: []v1.Wave{{Name: "canary"}, {Name: "prod"}}}
	revision := func(uid types.UID, content string, change func(*v1.BaselineSpec)) string {
		t.Helper()
		changed := spec.DeepCopy()
		change(changed)
		got, err := rollout.BaselineApprovalRevision(uid, content, changed)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	same := func(*v1.BaselineSpec) {}
	was := revision("uid", "c", same)
	for name, tt := range map[string]struct {
		uid     types.UID
		content string
		change  func(*v1.BaselineSpec)
		same    bool
	}{
		"nothing":   {"uid", "c", same, true},
		"a pause":   {"uid", "c", func(s *v1.BaselineSpec) { s.Paused = true }, true},
		"approvals": {"uid", "c", func(s *v1.BaselineSpec) { s.Approvals = []v1.Approval{{Wave: "a"}} }, true},
		"manifests that the cache does not contain": {"uid", "c", func(s *v1.BaselineSpec) {
			s.Manifests = []v1.Manifest{{}}
		}, true},
		"a copy":   {"another", "c", same, false},
		"objects":  {"uid", "c2", same, false},
		"role":     {"uid", "c", func(s *v1.BaselineSpec) { s.RoleTemplateName = "admin" }, false},
		"members":  {"uid", "c", func(s *v1.BaselineSpec) { s.ClusterSelector = &metav1.LabelSelector{} }, false},
		"waves":    {"uid", "c", func(s *v1.BaselineSpec) { slices.Reverse(s.Rollout.Waves) }, false},
		"rollback": {"uid", "c", func(s *v1.BaselineSpec) { s.Revision = "0123456789abcdef" }, false},
		"conflict": {"uid", "c", func(s *v1.BaselineSpec) { s.Conflicts = v1.ConflictsTake }, false},
	} {
		if got := revision(tt.uid, tt.content, tt.change); (got == was) != tt.same || len(got) != 56 {
			t.Errorf("%s: got %s after %s, want the same: %v", name, got, was, tt.same)
		}
	}
}
