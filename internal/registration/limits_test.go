// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func TestReplayGuard(t *testing.T) {
	end := noon.Add(protocol.ConnectTokenTTL + protocol.ClockSkew)
	t.Run("an ID is accepted only once while its token is valid", func(t *testing.T) {
		var g replayGuard
		if err := g.use("agent", "id", noon, end); err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{noon, noon.Add(protocol.ConnectTokenTTL), end} {
			var refusal *RefusalError
			if err := g.use("agent", "id", at, end); !errors.As(err, &refusal) {
				t.Errorf("the second use at %s returned %v, want a refusal", at, err)
			}
		}
	})
	t.Run("two agents may use the same ID", func(t *testing.T) {
		var g replayGuard
		for _, agent := range []string{"agent", "other"} {
			if err := g.use(agent, "id", noon, end); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("expired tokens are forgotten, and so are agents without tokens", func(t *testing.T) {
		var g replayGuard
		for i := range 100 {
			if err := g.use("agent", fmt.Sprint(i), noon, end); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.use("other", "id", end.Add(time.Second), end.Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if len(g.used) != 1 {
			t.Errorf("%d agents are remembered, want 1", len(g.used))
		}
	})
	t.Run("an agent that connects endlessly exhausts only its own limit", func(t *testing.T) {
		var g replayGuard
		for i := range maxConnects {
			if err := g.use("agent", fmt.Sprint(i), noon, end); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.use("agent", "one more", noon, end); !errors.Is(err, errBusy) {
			t.Errorf("the next token returned %v, want errBusy", err)
		}
		if err := g.use("other", "id", noon, end); err != nil {
			t.Errorf("another agent was refused: %v", err)
		}
	})
}

func TestLimits(t *testing.T) {
	stranger := types.NamespacedName{Namespace: "team", Name: "stranger"}
	t.Run("lookups are limited for all Clusters together, and are allowed again later", func(t *testing.T) {
		var l limits
		for i := range lookupBurst {
			if !l.lookup(stranger, noon) {
				t.Fatalf("refused after %d lookups, want %d", i, lookupBurst)
			}
		}
		if l.lookup(stranger, noon) {
			t.Error("got another lookup, want it refused")
		}
		if !l.lookup(stranger, noon.Add(time.Second)) {
			t.Error("got no lookup a second later, want one")
		}
	})
	t.Run("the first lookup after a join does not count", func(t *testing.T) {
		var l limits
		for l.lookup(stranger, noon) {
		}
		for i := range 3 * maxIdleLimits {
			l.hasJoined(types.NamespacedName{Name: fmt.Sprint(i)}, noon)
		}
		for i := range 3 * maxIdleLimits {
			name := types.NamespacedName{Name: fmt.Sprint(i)}
			if !l.lookup(name, noon) {
				t.Fatalf("the lookup of the agent of Cluster %d, which has joined, was refused, want it allowed", i)
			}
			if l.lookup(name, noon) {
				t.Fatalf("the second lookup of the agent of Cluster %d did not count, want it to count", i)
			}
		}
	})
	t.Run("an old join is forgotten", func(t *testing.T) {
		var l limits
		for i := range 3 * maxIdleLimits {
			l.hasJoined(types.NamespacedName{Name: fmt.Sprint(i)}, noon.Add(time.Duration(i)*time.Second))
		}
		if len(l.joined) > maxIdleLimits {
			t.Errorf("%d joins are remembered, want at most %d", len(l.joined), maxIdleLimits)
		}
		late := noon.Add(time.Hour * 2)
		for l.lookup(stranger, late) {
		}
		if l.lookup(types.NamespacedName{Name: fmt.Sprint(3*maxIdleLimits - 1)}, late) {
			t.Error("the first lookup an hour after the join did not count, want it to count")
		}
	})
	t.Run("joins are limited per Cluster", func(t *testing.T) {
		var l limits
		a, b := types.NamespacedName{Namespace: "team", Name: "a"}, types.NamespacedName{Namespace: "team", Name: "b"}
		for range joinBurst {
			l.join(a, noon)
		}
		if l.join(a, noon) {
			t.Error("got another join, want it refused")
		}
		if !l.join(b, noon) {
			t.Error("the join of another Cluster was refused, want it allowed")
		}
		if !l.join(a, noon.Add(time.Second)) {
			t.Error("the join after a pause was refused, want it allowed")
		}
	})
	t.Run("Clusters without a recent join are forgotten", func(t *testing.T) {
		var l limits
		for i := range 3 * maxIdleLimits {
			l.join(types.NamespacedName{Name: fmt.Sprint(i)}, noon.Add(time.Duration(i)*time.Minute))
		}
		if len(l.joins) > maxIdleLimits {
			t.Errorf("%d Clusters are remembered, want at most %d", len(l.joins), maxIdleLimits)
		}
	})
}

func TestFewClustersShowAClientThatNamesMany(t *testing.T) {
	t.Parallel()
	var l limits
	told := 0
	for i := range 6000 { // a hundred per second
		if l.show(noon.Add(time.Duration(i) * 10 * time.Millisecond)) {
			told++
		}
	}
	if told > 80 {
		t.Errorf("%d Clusters were reported in a minute, want few: each report writes a status", told)
	}
}
