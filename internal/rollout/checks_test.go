// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestMemberStartsOnlyAfterItsChecks(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	const unsafe, applying = v1.ReasonUpgradeUnsafe, v1.ReasonApplying
	reported := func(reason string, generation int64) *v1.PlanStatus {
		return &v1.PlanStatus{LatestHash: "h1", ObservedGeneration: generation, Conditions: []metav1.Condition{
			{Type: v1.ConditionComplete, Reason: reason, Message: "as reported"}}}
	}
	started := func(hash string) *v1.PlanStatus {
		return &v1.PlanStatus{LatestHash: "h1", Gates: &v1.GateStatus{Started: hash}}
	}
	enforced := func(c rollout.Checks) rollout.Checks {
		c.Policy = v1.UpgradeChecksEnforce
		return c
	}
	closed := &v1.TimeWindow{StartTime: "02:00", EndTime: "03:00"}
	green := rollout.Checks{Revision: "h1", At: now.Add(-time.Second)}
	red := rollout.Checks{Revision: "h1", At: now.Add(-time.Second), Refusal: "node x is not ready"}
	for name, tt := range map[string]struct {
		checks rollout.Checks
		plan   func(*v1.PlanSpec)
		node   func(*rollout.Node)
		member func(*rollout.Member)
		reason string // "begin" if the node starts
		// unchecked is true if the member has to be checked now, and message is a part of the message
		unchecked bool
		message   string
	}{
		"a plan without checks starts": {checks: rollout.Checks{Policy: v1.UpgradeChecksDisabled}, reason: "begin"},
		"a member that was not checked waits": {
			checks: enforced(rollout.Checks{}), reason: applying, unchecked: true, message: "is checked",
		},
		"a member without findings starts": {checks: enforced(green), reason: "begin"},
		"an outcome for another version does not count": {
			checks: enforced(rollout.Checks{Revision: "h0", At: now}), reason: applying, unchecked: true,
		},
		"an old outcome does not count": {
			checks: enforced(rollout.Checks{Revision: "h1", At: now.Add(-time.Minute)}), reason: applying, unchecked: true,
		},
		"a member with findings waits": {
			checks: enforced(red), reason: unsafe, unchecked: true, message: "node x is not ready",
		},
		"a new agent keeps the findings until it has checked the member": {
			checks: enforced(rollout.Checks{Last: reported(unsafe, 1)}), reason: unsafe, unchecked: true, message: "as reported",
		},
		"findings for another version are not kept": {
			checks: enforced(rollout.Checks{Last: func() *v1.PlanStatus {
				s := reported(unsafe, 1)
				s.LatestHash = "h0"
				return s
			}()}), reason: applying, unchecked: true,
		},
		"a refused Plan of the hub waits for the hub, and is not checked": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Last: reported(unsafe, 1)}), reason: unsafe,
			message: "as reported",
		},
		"a refused Plan that the hub has delivered again is checked": {
			checks: enforced(rollout.Checks{Hub: true, Last: reported(unsafe, 0)}), reason: unsafe, unchecked: true,
		},
		"a refused Plan that the hub has delivered again starts": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Last: reported(unsafe, 0)}), reason: "begin",
		},
		"a refused Plan that the hub has paused is still checked": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now.Add(-time.Minute), Refusal: "r",
				Last: reported(unsafe, 1)}),
			plan: func(s *v1.PlanSpec) { s.Paused = true }, reason: unsafe, unchecked: true, message: "r",
		},
		"a refused Plan that the hub has paused says when it is safe": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true }, reason: v1.ReasonPaused,
		},
		"a refused Plan stays refused while its window is closed": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Refusal: "r", Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused, s.Window = true, closed }, reason: unsafe, unchecked: true, message: "r",
		},
		"a refused Plan stays refused while the member's own window is closed": {
			checks: enforced(rollout.Checks{Hub: true, Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true },
			member: func(m *rollout.Member) { m.Window, _ = rollout.NewWindow(closed) },
			reason: unsafe, unchecked: true, message: "as reported",
		},
		"a refused Plan stays refused while the member holds plans": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Refusal: "r", Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true },
			member: func(m *rollout.Member) { m.Hold = "not now" }, reason: unsafe, unchecked: true,
		},
		"a refused Plan stays refused while no node can start": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Refusal: "r", Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true },
			node:   func(n *rollout.Node) { n.Ready = false }, reason: unsafe, unchecked: true,
		},
		"a refused Plan that has not been delivered again stays refused while its window is closed": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Window = closed }, reason: unsafe, message: "as reported",
		},
		"a refused Plan says when it is safe although the member holds plans": {
			checks: enforced(rollout.Checks{Hub: true, Revision: "h1", At: now, Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true },
			member: func(m *rollout.Member) { m.Hold = "not now" }, reason: v1.ReasonPaused,
		},
		"a paused Plan that was not refused is not checked": {
			checks: enforced(rollout.Checks{Hub: true, Last: reported(v1.ReasonPaused, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true }, reason: v1.ReasonPaused,
		},
		"a member's own paused Plan is not checked": {
			checks: enforced(rollout.Checks{Last: reported(unsafe, 1)}),
			plan:   func(s *v1.PlanSpec) { s.Paused = true }, reason: v1.ReasonPaused,
		},
		"a reported finding does not keep the plan from starting": {
			checks: rollout.Checks{Policy: v1.UpgradeChecksReport, Revision: "h1", At: now, Refusal: "r"}, reason: "begin",
		},
		"the plan starts after the report": {
			checks: rollout.Checks{Policy: v1.UpgradeChecksReport, Last: reported(unsafe, 1)}, reason: applying, unchecked: true,
		},
		"a member that has started is not checked again": {
			checks: enforced(rollout.Checks{Revision: "h1", At: now, Refusal: "r", Last: started("h1")}), reason: "begin",
		},
		"a member that has started another version is checked": {
			checks: enforced(rollout.Checks{Last: started("h0")}), reason: applying, unchecked: true,
		},
		"a closed window comes before the checks": {
			checks: enforced(red), reason: v1.ReasonAwaitingWindow,
			plan: func(s *v1.PlanSpec) { s.Window = closed },
		},
		"a member in which no node can start is not checked": {
			checks: enforced(red), reason: v1.ReasonAwaitingNodes, node: func(n *rollout.Node) { n.Ready = false },
		},
		"a complete member is not checked": {
			checks: enforced(red), reason: v1.ReasonComplete,
			node: func(n *rollout.Node) { n.Labels[v1.PlanLabel("p")] = "h1" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, "x")
			b.now = now
			if tt.node != nil {
				tt.node(&b.m.Nodes[0])
			}
			if tt.member != nil {
				tt.member(&b.m.Member)
			}
			if tt.checks.Last == nil {
				tt.checks.Last = &v1.PlanStatus{}
			}
			p := aPlan("p", tt.plan)
			p.Guard(tt.checks, now)
			d := rollout.Next(b.m.Member, p, now)
			got := d.Wait.Reason
			if d.Step != nil {
				got = string(d.Step.Verb)
			}
			if got != tt.reason || d.Wait.Unchecked != tt.unchecked || !strings.Contains(d.Wait.Message, tt.message) {
				t.Errorf("got %q, %+v, want %q, to be checked: %v, message %q", got, d.Wait, tt.reason, tt.unchecked, tt.message)
			}
		})
	}
}

// A node that has started with another version is released instead of starting again. A member in which a node has
// started continues.
func TestChecksApplyOnlyBeforeTheFirstNode(t *testing.T) {
	refused := func(b *fixture, hash, started string) rollout.Plan {
		p := aPlan("p", nil)
		p.Hash, p.Revision = hash, hash
		p.Guard(rollout.Checks{Policy: v1.UpgradeChecksEnforce, Revision: hash, At: b.now, Refusal: "r",
			Last: &v1.PlanStatus{Gates: &v1.GateStatus{Started: started}}}, b.now)
		return p
	}
	b := newFixture(t, "x", "y")
	b.steps(aPlan("p", nil))
	if got := b.steps(refused(b, "h1", "")).Reason; got != v1.ReasonApplying {
		t.Errorf("findings while node x is in progress lead to %s, want Applying", got)
	}
	b.now = b.m.Due()
	b.m.Advance(b.now)
	b.steps(refused(b, "h1", "h1"))
	if _, begun := b.m.Nodes[1].Claims["p"]; !begun {
		t.Errorf("node y has not started after node x, want that the member continues despite the findings")
	}
	b.m.Jobs = nil // the Job of y has not been created yet
	if got := b.steps(refused(b, "h2", "h1")).Reason; got != v1.ReasonUpgradeUnsafe {
		t.Errorf("findings for another version lead to %s, want UpgradeUnsafe", got)
	}
	if y := b.m.Nodes[1]; len(y.Claims) > 0 || y.Unschedulable {
		t.Errorf("node y has the claims %v, unschedulable %v, want that it was released", y.Claims, y.Unschedulable)
	}
}

// A node that is in progress does not let nodes start that were selected after the checks.
func TestNodesThatThePlanSelectsLaterAreChecked(t *testing.T) {
	b := newFixture(t, "x", "y")
	b.steps(aPlan("p", nil))
	last := &v1.PlanStatus{Gates: &v1.GateStatus{Started: "h1"}}
	p := aPlan("p", func(s *v1.PlanSpec) { s.Concurrency = new(intstr.FromInt32(2)) })
	p.Revision = "wider"
	guarded := func(refusal string) rollout.Plan {
		p.Guard(rollout.Checks{Policy: v1.UpgradeChecksEnforce, Revision: "wider", At: b.now, Refusal: refusal, Last: last},
			b.now)
		return p
	}
	if got := b.steps(guarded("y is not ready")).Reason; got != v1.ReasonUpgradeUnsafe {
		t.Errorf("findings while node x is in progress lead to %s, want UpgradeUnsafe", got)
	}
	if x, y := b.m.Nodes[0].Claims["p"], b.m.Nodes[1].Claims; x.Hash != "h1" || len(y) > 0 {
		t.Errorf("node x has the claim %+v, and y has %v, want that x goes on and y does not start", x, y)
	}
	b.steps(guarded(""))
	if _, begun := b.m.Nodes[1].Claims["p"]; !begun {
		t.Error("node y has not started, want that it starts without findings")
	}
}

// The mark that a member has started may not have been written yet when the first node completes the plan.
func TestMemberContinuesInThePassInWhichItsFirstNodeCompletes(t *testing.T) {
	b := newFixture(t, "x", "y")
	b.steps(aPlan("p", nil))
	b.now = b.m.Due()
	b.m.Advance(b.now)
	p := aPlan("p", nil)
	p.Guard(rollout.Checks{Policy: v1.UpgradeChecksEnforce, Revision: "h1", At: b.now, Refusal: "r",
		Last: &v1.PlanStatus{}}, b.now)
	wait, err := rollout.Settle(&b.m.Member, p, b.now, func(s *rollout.Step) error { return b.m.Apply(s, &p, b.now) })
	if _, begun := b.m.Nodes[1].Claims["p"]; err != nil || !begun {
		t.Errorf("node y waits for %+v, %v, want that it starts after node x despite the findings", wait, err)
	}
}

// After a change of the plan has been undone, some nodes still have the label of the earlier version.
func TestPlanThatIsChangedBackIsChecked(t *testing.T) {
	b := newFixture(t, "x", "y")
	b.m.Nodes[0].Labels[v1.PlanLabel("p")] = "h2"
	b.m.Nodes[1].Labels[v1.PlanLabel("p")] = "h1"
	p := aPlan("p", nil)
	p.Guard(rollout.Checks{Policy: v1.UpgradeChecksEnforce, Revision: "h1", At: b.now, Refusal: "it is a downgrade",
		Last: &v1.PlanStatus{Gates: &v1.GateStatus{Started: "h2"}}}, b.now)
	if d := rollout.Next(b.m.Member, p, b.now); d.Wait.Reason != v1.ReasonUpgradeUnsafe {
		t.Errorf("got %+v and %+v, want UpgradeUnsafe although node y has the label of this version", d.Step, d.Wait)
	}
}

func TestRefusedMembersHoldTheirWaveWithoutASlot(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	hour := now.Add(-time.Hour)
	begun := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: hour} }
	complete := func() *rollout.ClusterClaim {
		return &rollout.ClusterClaim{Revision: "r", Since: hour, Complete: &hour}
	}
	refused := func() *rollout.ClusterClaim { return &rollout.ClusterClaim{Revision: "r", Since: hour, Refused: &hour} }
	unsafe := func() *rollout.Status {
		s := said("r", v1.ReasonUpgradeUnsafe)
		s.Message = "node x is not ready"
		return s
	}
	const plan, paused, nothing = rollout.DeliverPlan, rollout.DeliverPaused, rollout.DeliverNothing
	type given [3]rollout.Delivery
	for name, tt := range map[string]struct {
		first, second, next rollout.Cluster // first and second are in the first wave
		step, reason        string
		given               given
	}{
		"a member that refuses gives up its slot": {
			first: rollout.Cluster{Claim: begun(), Status: unsafe()}, step: "refuse a", given: given{plan, nothing, nothing},
		},
		"a complete member whose nodes are reset can refuse": {
			first: rollout.Cluster{Claim: complete(), Status: unsafe()}, step: "refuse a", given: given{plan, nothing, nothing},
		},
		"a report of an earlier revision is not a refusal": {
			first: rollout.Cluster{Claim: begun(), Status: said("q", v1.ReasonUpgradeUnsafe)}, reason: v1.ReasonApplying,
			given: given{plan, nothing, nothing},
		},
		"another member of the wave uses the slot": {
			first: rollout.Cluster{Claim: refused(), Status: unsafe()}, step: "begin b", given: given{paused, nothing, nothing},
		},
		"the next wave waits": {
			first:  rollout.Cluster{Claim: refused(), Status: unsafe()},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonUpgradeUnsafe, given: given{paused, plan, nothing},
		},
		"the next wave waits for a disconnected member that refused": {
			first:  rollout.Cluster{Claim: refused(), Status: unsafe(), Away: "lost"},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonUpgradeUnsafe, given: given{paused, plan, nothing},
		},
		"a member without report still refuses": {
			first:  rollout.Cluster{Claim: refused(), Away: "lost"},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonUpgradeUnsafe, given: given{paused, plan, nothing},
		},
		"members in progress are the reason to wait": {
			first: rollout.Cluster{Claim: refused(), Status: unsafe()}, second: rollout.Cluster{Claim: begun()},
			reason: v1.ReasonApplying, given: given{paused, plan, nothing},
		},
		"a member that no longer refuses starts again": {
			first:  rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonPaused)},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			step:   "begin a", given: given{paused, plan, nothing},
		},
		"a member that no longer refuses waits for a slot": {
			first:  rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonPaused)},
			second: rollout.Cluster{Claim: begun()}, reason: v1.ReasonApplying, given: given{paused, plan, nothing},
		},
		"a member that started before it was paused occupies a slot": {
			first:  rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonPaused, "x")},
			reason: v1.ReasonApplying, given: given{paused, nothing, nothing},
		},
		"a disconnected member that no longer refuses does not hold the wave": {
			first:  rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonPaused), Away: "lost"},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			step:   "begin c", given: given{paused, plan, nothing},
		},
		"an excluded member does not hold the wave": {
			first:  rollout.Cluster{Name: "-", Claim: refused(), Status: unsafe()},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			step:   "release a", given: given{paused, plan, nothing},
		},
		"a refusal of an earlier revision gives up its claim": {
			first: rollout.Cluster{Claim: &rollout.ClusterClaim{Revision: "q", Since: hour, Refused: &hour},
				Status: said("r", v1.ReasonPaused)},
			step: "yield a", given: given{paused, nothing, nothing},
		},
		"a refusal does not open earlier waves": {
			next: rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonPaused)}, step: "begin a",
			given: given{nothing, nothing, paused},
		},
		"a member that has just refused does not start again": {
			first: rollout.Cluster{Claim: &rollout.ClusterClaim{Revision: "r", Refused: &now},
				Status: said("r", v1.ReasonPaused)},
			second: rollout.Cluster{Claim: complete(), Status: said("r", v1.ReasonComplete)},
			reason: v1.ReasonUpgradeUnsafe, given: given{paused, plan, nothing},
		},
		"all work can be done despite an earlier refusal": {
			first: rollout.Cluster{Claim: refused(), Status: said("r", v1.ReasonComplete)}, step: "complete a",
			given: given{paused, nothing, nothing},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r", Pace: rollout.Pace{
				Waves: []rollout.Wave{{Name: "canary", Selector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"ring": "0"}}}}}}
			clusters := []rollout.Cluster{tt.first, tt.second, tt.next}
			for i := range clusters {
				c := &clusters[i]
				c.Selected, c.Labels = c.Name != "-", map[string]string{"ring": string("001"[i])}
				c.Name = string("abc"[i])
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
			if d.Wait.Reason == v1.ReasonUpgradeUnsafe {
				parts := []string{"Cluster a", `"kubectl drover plan check p"`, `"kubectl drover plan override p"`}
				if tt.first.Away != "" {
					parts = append(parts, "because "+tt.first.Away+", label it "+v1.PlanLabel("p")+"="+v1.PlanDisabled)
				}
				for _, part := range parts {
					if !strings.Contains(d.Wait.Message, part) {
						t.Errorf("the message is %q, want that it contains %q", d.Wait.Message, part)
					}
				}
			}
			for i := range clusters {
				if got := f.Deliver(&clusters[i]); got != tt.given[i] {
					t.Errorf("cluster %s receives %s, want %s", clusters[i].Name, got, tt.given[i])
				}
			}
		})
	}
}

func TestMembersThatAreSlowToCheckAreCheckedLessOften(t *testing.T) {
	now := time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		took    time.Duration
		refusal string
		want    time.Duration
	}{
		"a fast member with findings":    {time.Second, "r", time.Minute},
		"a slow member with findings":    {2 * time.Minute, "r", 20 * time.Minute},
		"a slow member without findings": {2 * time.Minute, "", time.Minute},
	} {
		c := rollout.Checks{Revision: "h1", At: now, Took: tt.took, Refusal: tt.refusal}
		if got := c.Due("h1").Sub(now); got != tt.want {
			t.Errorf("%s is checked again after %s, want %s", name, got, tt.want)
		}
	}
}

func TestOverrideCountsOnlyForItsRevisionAndItsClusters(t *testing.T) {
	all := []v1.Override{{Check: "old", Revision: "a"}, {Check: "new", Revision: "b"}, {Check: "odd"},
		{Check: "one", Revision: "b", Clusters: []string{"prod", "test"}}}
	for in, want := range map[[2]string][]string{
		{"a", "prod"}: {"old"}, {"b", "prod"}: {"new", "one"}, {"b", "dev"}: {"new"}, {"b", ""}: {"new"},
		{"c", "prod"}: nil, {"", "prod"}: nil,
	} {
		var got []string
		for _, o := range rollout.Overridden(in[0], in[1], all) {
			got = append(got, o.Check)
		}
		if !slices.Equal(got, want) {
			t.Errorf("the overrides of revision %q in cluster %q are %q, want %q", in[0], in[1], got, want)
		}
	}
}

// A member that is moved to an earlier wave, or reconnects late, may refuse the plan after the next wave has opened.
func TestMemberThatRefusesLateHoldsAllWavesThatAreClosed(t *testing.T) {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	hour := now.Add(-time.Hour)
	var waves []rollout.Wave
	for _, ring := range []string{"0", "1"} {
		waves = append(waves, rollout.Wave{Name: ring,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"ring": ring}}})
	}
	member := func(name, ring string, claim *rollout.ClusterClaim, reason string) rollout.Cluster {
		return rollout.Cluster{Name: name, Selected: true, Labels: map[string]string{"ring": ring}, Claim: claim,
			Status: said("r", reason)}
	}
	clusters := []rollout.Cluster{
		member("a", "0", &rollout.ClusterClaim{Revision: "r", Since: hour, Refused: &hour}, v1.ReasonUpgradeUnsafe),
		member("b", "1", &rollout.ClusterClaim{Revision: "r", Since: hour, Complete: &hour}, v1.ReasonComplete),
		member("c", "2", nil, v1.ReasonPaused),
	}
	d := rollout.NextMember(clusters, rollout.FleetPlan{Name: "p", Hash: "h", Revision: "r",
		Pace: rollout.Pace{Waves: waves}}, now)
	if d.Step != nil || d.Wait.Reason != v1.ReasonUpgradeUnsafe {
		t.Errorf("got the step %+v and %+v, want that member c waits for member a", d.Step, d.Wait)
	}
}
