// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
)

var canaryFirst = rollout.Pace{MaxConcurrent: 1, Waves: []rollout.Wave{{
	Name: "canary", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"canary": "true"}}, Soak: time.Hour,
}}}

// fleetOf returns members a, b and c with the given revisions. Member c is the canary.
func fleetOf(a, b, c string, phase protocol.SetPhase) []observed {
	var members []observed
	for i, revision := range []string{a, b, c} {
		members = append(members, observed{
			name: string(rune('a' + i)), known: true, available: true, revision: revision, phase: phase,
		})
	}
	members[2].labels = map[string]string{"canary": "true"}
	return members
}

// given returns the names of the members that get the current revision, in order.
func given(p *progress, what give) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(p.give)) {
		if p.give[name] == what {
			names = append(names, name)
		}
	}
	return names
}

func decided(t *testing.T, members []observed, s stage, now time.Time) *progress {
	t.Helper()
	p, err := decideRollout(members, s, now)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wantGiven(t *testing.T, p *progress, what give, want ...string) {
	t.Helper()
	if got := given(p, what); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v with content %d", got, want, what)
	}
}

func TestAChangeReachesTheCanaryFirst(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	p := decided(t, fleetOf("old", "old", "old", protocol.SetApplied), s, now)
	wantGiven(t, p, giveCurrent, "c")
	if !p.turns["c"] || p.complete {
		t.Errorf("got %+v, want that the canary has its turn and nothing is complete", p)
	}
	s.turns = p.turns
	wantGiven(t, decided(t, fleetOf("old", "old", "old", protocol.SetApplied), s, now), giveCurrent, "c")
	p = decided(t, fleetOf("old", "old", "new", protocol.SetApplied), s, now)
	wantGiven(t, p, giveCurrent, "c")
	if p.wait.Reason != v1.ReasonSoaking || len(p.turns) > 0 || p.waves[0].SoakUntil == nil ||
		!p.waves[0].SoakUntil.Time.Equal(now.Add(time.Hour)) {
		t.Errorf("got %+v, want that the canary soaks for an hour and has reported", p)
	}
}

func TestASoakSurvivesALeaderChange(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	members := fleetOf("old", "old", "new", protocol.SetApplied)
	s.waves = decided(t, members, s, now).waves // a new leader knows only the status
	p := decided(t, members, s, now.Add(59*time.Minute))
	wantGiven(t, p, giveCurrent, "c")
	if want := now.Add(time.Hour); !p.wait.Until.Equal(want) {
		t.Errorf("it looks again at %v, want %v", p.wait.Until, want)
	}
	wantGiven(t, decided(t, members, s, now.Add(time.Hour)), giveCurrent, "a", "c")
}

func TestAFailedCanaryStopsTheRollout(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	for _, phase := range []protocol.SetPhase{protocol.SetUnhealthy, protocol.SetForbidden, protocol.SetConflict,
		protocol.SetFighting, protocol.SetRoleMissing, protocol.SetFailed} {
		members := fleetOf("old", "old", "new", protocol.SetApplied)
		members[2].phase = phase
		p := decided(t, members, s, now)
		wantGiven(t, p, giveCurrent, "c")
		summary := delivery.Summary{Reason: v1.ReasonUnhealthy, Message: "why"}
		if p.explain(&summary); summary.Reason != v1.ReasonTooManyFailures || !summary.Stalled {
			t.Errorf("%s: got %+v, want TooManyFailures and stalled", phase, summary)
		}
	}
}

func TestANewLeaderRepeatsNothing(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: canaryFirst} // the agents have had no time to report yet
	members := fleetOf("old", "", "old", protocol.SetApplied)
	members[1].known, members[1].available = false, false
	p := decided(t, members, s, now)
	wantGiven(t, p, giveCurrent)
	wantGiven(t, p, giveComplete)
	if p.complete {
		t.Error("it is complete, want that the hub waits for the reports")
	}
}

// A revision can cut members off. Otherwise the next member would lose its connection too, and so on.
func TestAMemberThatIsCutOffInProgressCountsAsFailed(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 1}, begins: true}
	for name, revision := range map[string]string{"it has reported the revision": "new", "it has its turn": "old"} {
		t.Run(name, func(t *testing.T) {
			s := s
			members := fleetOf(revision, "old", "old", protocol.SetProgressing)
			s.turns = map[string]bool{"a": revision == "old"}
			members[0].available, members[0].away = false, now
			p := decided(t, members, s, now.Add(rollout.LostTime-time.Second))
			wantGiven(t, p, giveCurrent, "a")
			if want := now.Add(rollout.LostTime); p.failed > 0 || !p.wait.Until.Equal(want) {
				t.Errorf("got %d failed, and again at %v, want none and %v", p.failed, p.wait.Until, want)
			}
			p = decided(t, members, s, now.Add(rollout.LostTime))
			wantGiven(t, p, giveCurrent, "a")
			summary := delivery.Summary{Reason: v1.ReasonDelivering}
			p.explain(&summary)
			if summary.Reason != v1.ReasonTooManyFailures || !strings.Contains(summary.Message, "Cluster a was disconnected") {
				t.Errorf("got %+v, want TooManyFailures because of cluster a", summary)
			}
			s.pace.MaxFailed = 1
			wantGiven(t, decided(t, members, s, now.Add(rollout.LostTime)), giveCurrent, "a", "b")
			members[0] = observed{name: "a", known: true, available: true, revision: "new", phase: protocol.SetApplied}
			s.pace.MaxFailed = 0
			wantGiven(t, decided(t, members, s, now.Add(time.Hour)), giveCurrent, "a", "b")
		})
	}
}

// A hostile agent could keep its slot for ever, and an object can be deleted and never be gone.
func TestAMemberThatNeverReportsAResultCountsAsFailed(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	for name, tt := range map[string]struct {
		revision string
		phase    protocol.SetPhase
	}{
		"it reports progress": {"new", protocol.SetProgressing}, "it waits": {"new", protocol.SetPending},
		"it does not report the revision": {"old", protocol.SetApplied},
	} {
		t.Run(name, func(t *testing.T) {
			s := stage{current: "new", complete: "old", patience: time.Hour, pace: rollout.Pace{MaxConcurrent: 1}, begins: true,
				turns: map[string]bool{"a": tt.revision == "old"}}
			members := fleetOf(tt.revision, "old", "old", protocol.SetApplied)
			members[0].phase = tt.phase
			after := func(past time.Duration) *progress {
				p := decided(t, members, s, start.Add(past))
				s.turns, s.busy = p.turns, p.busy
				return p
			}
			if p := after(0); p.failed > 0 || !p.wait.Until.Equal(start.Add(time.Hour)) {
				t.Errorf("got %d failed, and again at %v, want none and %v", p.failed, p.wait.Until, start.Add(time.Hour))
			}
			wantGiven(t, after(time.Hour-time.Second), giveCurrent, "a")
			p := after(time.Hour)
			wantGiven(t, p, giveCurrent, "a")
			summary := delivery.Summary{Reason: v1.ReasonDelivering}
			p.explain(&summary)
			if summary.Reason != v1.ReasonTooManyFailures || !strings.Contains(summary.Message, "Cluster a has been in pro") {
				t.Errorf("got %+v, want TooManyFailures because of cluster a", summary)
			}
			s.pace.MaxFailed = 1
			wantGiven(t, after(time.Hour), giveCurrent, "a", "b")
			for i := range members {
				members[i].revision, members[i].phase = "new", protocol.SetApplied
			}
			if p := after(2 * time.Hour); p.failed > 0 || !p.busy["a"].IsZero() {
				t.Errorf("got %+v, want a member that has applied it in the end to be complete", p)
			}
			members[0].phase = protocol.SetProgressing // a Deployment restarts
			if p := after(3 * time.Hour); p.failed > 0 {
				t.Errorf("got %d failed, want that the time begins again", p.failed)
			}
		})
	}
}

func TestARevisionIsCompleteWithFailuresThatTheRolloutAllows(t *testing.T) {
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 3, MaxFailed: 1}, begins: true}
	members := fleetOf("new", "new", "new", protocol.SetApplied)
	members[0].phase = protocol.SetUnhealthy
	if !decided(t, members, s, time.Now()).complete {
		t.Error("it is not complete, want that one failure is allowed: new members would get the former revision first")
	}
	members[1].phase = protocol.SetUnhealthy
	if decided(t, members, s, time.Now()).complete {
		t.Error("it is complete, want that two failures are too many")
	}
	members[1].phase = protocol.SetProgressing
	if decided(t, members, s, time.Now()).complete {
		t.Error("it is complete, want that it waits for the member in progress")
	}
}

func TestAMemberThatRejectsTheRevisionCountsAsFailed(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 1, MaxFailed: 1}, begins: true,
		turns: map[string]bool{"a": true}}
	members := fleetOf("old", "old", "old", protocol.SetApplied)
	members[0].rejects = true
	p := decided(t, members, s, now)
	wantGiven(t, p, giveCurrent, "a", "b")
	if p.failed != 1 || !p.turns["a"] {
		t.Errorf("got %+v, want that a has failed and still gets the revision", p)
	}
}

func TestAMemberThatAcceptsNothingTakesNoSlot(t *testing.T) {
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 1}, begins: true}
	members := fleetOf("new", "old", "old", protocol.SetProgressing)
	members[0].available, members[0].refuses = false, true
	wantGiven(t, decided(t, members, s, time.Now()), giveCurrent, "b")
}

func TestAChangedSoakAppliesToAWaveThatSoaks(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	members := fleetOf("old", "old", "new", protocol.SetApplied)
	s.waves = decided(t, members, s, now).waves
	for soak, want := range map[time.Duration][]string{2 * time.Hour: {"c"}, time.Minute: {"a", "c"}, 0: {"a", "c"}} {
		s.pace.Waves = slices.Clone(canaryFirst.Waves)
		s.pace.Waves[0].Soak = soak
		wantGiven(t, decided(t, members, s, now.Add(61*time.Minute)), giveCurrent, want...)
	}
}

func TestAMemberIsObserved(t *testing.T) {
	now := time.Now()
	current := &set.Set{Digest: "d", Baseline: &set.BaselineOutline{Revision: "new"}}
	disconnected := &v1.Cluster{Status: v1.ClusterStatus{Conditions: []metav1.Condition{{
		Type: v1.ConditionConnected, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
	}}}}
	state := func(digest, revision string) *protocol.SetState {
		return &protocol.SetState{
			Digest: digest, Phase: protocol.SetApplied, Baseline: &protocol.BaselineState{Revision: revision},
		}
	}
	applied := protocol.SetApplied
	for name, tt := range map[string]struct {
		outcome delivery.Outcome
		cluster *v1.Cluster
		want    observed
	}{
		"a member that has the revision": {
			delivery.Outcome{Known: true, Available: true, Reported: state("d", "")}, &v1.Cluster{},
			observed{known: true, available: true, revision: "new", phase: applied},
		},
		"a member that has it with other policies": {
			delivery.Outcome{Known: true, Available: true, Reported: state("e", "new")}, &v1.Cluster{},
			observed{known: true, available: true, revision: "new", phase: applied},
		},
		"a member whose agent does not report revisions": {
			delivery.Outcome{Known: true, Available: true, Reported: &protocol.SetState{Digest: "e"}}, &v1.Cluster{},
			observed{known: true, available: true, revision: earlier},
		},
		"a disconnected member": {
			delivery.Outcome{Stage: delivery.Away}, disconnected, observed{away: now.Add(-time.Hour)},
		},
		"a member that has had its turn for a minute": {
			delivery.Outcome{Stage: delivery.Away, Since: now.Add(-time.Minute)}, disconnected,
			observed{away: now.Add(-time.Minute)},
		},
		"a member of which it is not known yet when it was disconnected": {
			delivery.Outcome{Stage: delivery.Away}, &v1.Cluster{}, observed{away: now},
		},
		"a member whose agent rejects the set": {
			delivery.Outcome{Stage: delivery.Failed, Known: true, Available: true, Reported: state("e", "old")}, &v1.Cluster{},
			observed{known: true, available: true, rejects: true, revision: "old", phase: applied},
		},
		"a member that has failed to apply it": {
			delivery.Outcome{Stage: delivery.Failed, Known: true, Available: true, Reported: state("d", "new")}, &v1.Cluster{},
			observed{known: true, available: true, revision: "new", phase: applied},
		},
		"a member whose agent accepts no sets": {
			delivery.Outcome{Stage: delivery.Refused, Known: true}, &v1.Cluster{},
			observed{known: true, refuses: true, away: now},
		},
		"a Cluster in which plans are on hold": {
			delivery.Outcome{Known: true, Available: true},
			&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1.LabelPlansHold: "true", "a": "b"}}},
			observed{known: true, available: true, labels: map[string]string{"a": "b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := observe(tt.outcome, tt.cluster, current, now); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestTheStatusSaysHowManyMembersWait(t *testing.T) {
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 1}, begins: true}
	p := decided(t, fleetOf("new", "old", "old", protocol.SetProgressing), s, time.Now())
	summary := delivery.Summary{Reason: v1.ReasonDelivering, Clusters: v1.ClusterCount{Summary: "0/3"}}
	if p.explain(&summary); summary.Message != "0/3 clusters have it; 1 in progress, 2 waiting for their turn" {
		t.Errorf("got %q, want the numbers of members in progress and waiting", summary.Message)
	}
}

func TestANewMemberGetsTheCompleteRevisionDuringARollout(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	s.pace.Paused = true
	p := decided(t, fleetOf("", "old", "old", protocol.SetApplied), s, now)
	wantGiven(t, p, giveComplete, "a")
	wantGiven(t, p, giveCurrent)
	s.complete = "new" // the rollout is over
	wantGiven(t, decided(t, fleetOf("", "new", "new", protocol.SetApplied), s, now), giveCurrent, "a", "b", "c")
	s.complete = "" // there has never been a complete revision, so the rollout begins with the canary
	s.pace.Paused = false
	wantGiven(t, decided(t, fleetOf("", "", "", ""), s, now), giveCurrent, "c")
}

func TestARevisionIsCompleteWithoutMembersThatAreAway(t *testing.T) {
	now := time.Now()
	s := stage{current: "new", complete: "old", pace: rollout.Pace{MaxConcurrent: 3}, begins: true}
	members := fleetOf("new", "old", "new", protocol.SetApplied)
	if members[1].available = false; !decided(t, members, s, now).complete {
		t.Error("it is not complete, want that a member that is away does not count")
	}
	if members[1].available = true; decided(t, members, s, now).complete {
		t.Error("it is complete, want that it waits for the member that begins")
	}
	if members[1].available, members[0].phase = false, protocol.SetProgressing; decided(t, members, s, now).complete {
		t.Error("it is complete, want that it waits for the member in progress")
	}
}

func TestARolloutThatMayNotBeginYetLooksAgain(t *testing.T) {
	now := time.Now()
	p := decided(t, fleetOf("old", "old", "old", protocol.SetApplied), stage{current: "new", pace: canaryFirst}, now)
	wantGiven(t, p, giveCurrent)
	if left := p.wait.Until.Sub(now); left <= 0 || left > time.Minute {
		t.Errorf("it looks again after %s, want within a minute: no event says that agents have had time to connect", left)
	}
}

// In random histories, no more members than allowed apply a revision at once, and no wave begins before the previous
// one is complete.
func TestRandomRolloutsKeepTheirLimits(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := stage{current: "1", patience: time.Hour, pace: rollout.Pace{
			MaxConcurrent: 1 + random.IntN(3), MaxFailed: random.IntN(2), Waves: canaryFirst.Waves,
		}}
		now := time.Now().Truncate(time.Second)
		var members []observed
		for i := range 2 + random.IntN(6) {
			members = append(members, observed{name: fmt.Sprint("m", i), known: true, available: true, labels: map[string]string{
				"canary": fmt.Sprint(i < 2),
			}})
		}
		for range 40 {
			s.begins = random.IntN(8) > 0
			if random.IntN(20) == 0 {
				s.current, s.turns, s.busy, s.waves = s.current+"x", nil, nil, nil
			}
			before := maps.Clone(s.turns)
			p := decided(t, members, s, now)
			checkLimits(t, seed, members, s, before, p, now)
			s.turns, s.busy, s.waves = p.turns, p.busy, p.waves
			if p.complete {
				s.complete = s.current
			}
			now = now.Add(time.Duration(random.IntN(40)) * time.Minute)
			for i := range members {
				advance(random, &members[i], p.give[members[i].name], s, now)
			}
		}
	}
}

// advance changes what a member reports, as its agent could.
func advance(random *rand.Rand, m *observed, got give, s stage, now time.Time) {
	switch {
	case random.IntN(10) == 0:
		m.available, m.away = !m.available, time.Time{}
		if !m.available {
			m.away = now
		}
	case !m.available || random.IntN(2) == 0:
	case got == giveCurrent && m.revision != s.current:
		m.revision, m.phase = s.current, protocol.SetPending
	case got == giveComplete:
		m.revision, m.phase = s.complete, protocol.SetApplied
	case m.revision == s.current:
		m.phase = []protocol.SetPhase{protocol.SetApplied, protocol.SetApplied, protocol.SetApplied, protocol.SetProgressing,
			protocol.SetUnhealthy}[random.IntN(5)]
	}
}

func checkLimits(
	t *testing.T, seed uint64, members []observed, s stage, before map[string]bool, p *progress, now time.Time,
) {
	t.Helper()
	working, began := 0, 0
	for _, m := range members {
		if p.give[m.name] != giveCurrent || m.revision == "" && s.complete == s.current && !p.turns[m.name] {
			continue
		}
		begins := m.revision != s.current && !before[m.name]
		if begins {
			began++
		}
		if !s.late(&m, now) &&
			(m.revision != s.current || m.phase == protocol.SetPending || m.phase == protocol.SetProgressing) {
			working++
		}
		if begins && m.labels["canary"] != "true" && slices.ContainsFunc(members, func(c observed) bool {
			return c.labels["canary"] == "true" && c.available && c.revision != s.current && c.revision != "" &&
				p.give[c.name] == 0
		}) {
			t.Fatalf("seed %d: %s begins before the canaries have begun, want them first", seed, m.name)
		}
	}
	if began > 0 && working > s.pace.MaxConcurrent {
		t.Fatalf("seed %d: %d members are in progress after %d began, want at most %d", seed, working, began,
			s.pace.MaxConcurrent)
	}
	if began > 0 && p.failed > s.pace.MaxFailed {
		t.Fatalf("seed %d: %d members began although %d have failed, want none", seed, began, p.failed)
	}
	if began > 0 && !s.begins {
		t.Fatalf("seed %d: %d members began, want none before the agents have reported", seed, began)
	}
}

func TestNoMemberBeginsInAWaveWithoutApproval(t *testing.T) {
	now := time.Now()
	gated := rollout.Pace{MaxConcurrent: 3, Waves: []rollout.Wave{
		canaryFirst.Waves[0], {Name: "prod", NeedsApproval: true},
	}}
	gated.Waves[0].Soak = 0
	approval := func(wave, revision string) []v1.Approval {
		return []v1.Approval{{Wave: wave, Revision: revision, ApprovedBy: "alice"}}
	}
	for name, tt := range map[string]struct {
		members          []observed
		approvals        []v1.Approval
		turns            map[string]bool
		complete, reason string
		current          []string
	}{
		"the canary needs none": {fleetOf("old", "old", "old", protocol.SetApplied), nil, nil, "old",
			v1.ReasonApplying, []string{"c"}},
		"the canary is complete": {fleetOf("old", "old", "new", protocol.SetApplied), nil, nil, "old",
			v1.ReasonAwaitingApproval, []string{"c"}},
		"another revision is approved": {fleetOf("old", "old", "new", protocol.SetApplied), approval("prod", "other"), nil,
			"old", v1.ReasonAwaitingApproval, []string{"c"}},
		"another wave is approved": {fleetOf("old", "old", "new", protocol.SetApplied), approval("canary", "digest"), nil,
			"old", v1.ReasonAwaitingApproval, []string{"c"}},
		"the wave is approved": {fleetOf("old", "old", "new", protocol.SetApplied), approval("prod", "digest"), nil, "old",
			v1.ReasonApplying, []string{"a", "b", "c"}},
		"an approved wave waits for its canary": {fleetOf("old", "old", "old", protocol.SetApplied),
			approval("prod", "digest"), nil, "old", v1.ReasonApplying, []string{"c"}},
		"an approval that expires takes nothing from members that have begun": {
			fleetOf("new", "old", "new", protocol.SetApplied), nil, map[string]bool{"b": true}, "old",
			v1.ReasonAwaitingApproval, []string{"a", "b", "c"}},
		"a first revision": {fleetOf("", "", "new", protocol.SetApplied), nil, nil, "", v1.ReasonAwaitingApproval,
			[]string{"c"}},
	} {
		s := stage{current: "new", complete: tt.complete, pace: gated, begins: true, turns: tt.turns, name: "cni",
			toApprove: "digest", approvals: tt.approvals}
		p := decided(t, tt.members, s, now)
		if got := given(p, giveCurrent); !slices.Equal(got, tt.current) || p.wait.Reason != tt.reason {
			t.Errorf("%s: %v get the revision, and the reason is %s (%s), want %v and %s", name, got, p.wait.Reason,
				p.wait.Message, tt.current, tt.reason)
		}
	}
}
