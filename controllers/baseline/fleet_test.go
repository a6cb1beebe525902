// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
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
	s := stage{current: "new", complete: "old", pace: canaryFirst, begins: true}
	members := fleetOf("old", "", "", protocol.SetApplied)
	members[1].known, members[2].known = false, false // connected, but not reported yet
	p := decided(t, members, s, now)
	wantGiven(t, p, giveCurrent)
	wantGiven(t, p, giveComplete)
	if p.complete {
		t.Error("it is complete, want that the hub waits for the reports")
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

// In random histories, no more members than allowed are in progress, and no wave begins before the previous one is
// complete.
func TestRandomRolloutsKeepTheirLimits(t *testing.T) {
	for seed := range uint64(1000) {
		random := rand.New(rand.NewPCG(seed, 0))
		s := stage{current: "1", pace: rollout.Pace{
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
				s.current, s.turns, s.waves = s.current+"x", nil, nil
			}
			before := maps.Clone(s.turns)
			p := decided(t, members, s, now)
			checkLimits(t, seed, members, s, before, p)
			s.turns, s.waves = p.turns, p.waves
			if p.complete {
				s.complete = s.current
			}
			now = now.Add(time.Duration(random.IntN(40)) * time.Minute)
			for i := range members {
				advance(random, &members[i], p.give[members[i].name], s)
			}
		}
	}
}

// advance changes what a member reports, as its agent could.
func advance(random *rand.Rand, m *observed, got give, s stage) {
	switch {
	case random.IntN(10) == 0:
		m.available = !m.available
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

func checkLimits(t *testing.T, seed uint64, members []observed, s stage, before map[string]bool, p *progress) {
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
		if m.revision != s.current || m.phase == protocol.SetPending || m.phase == protocol.SetProgressing {
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
	if began > 0 && !s.begins {
		t.Fatalf("seed %d: %d members began, want none before the agents have reported", seed, began)
	}
}
