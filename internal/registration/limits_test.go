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
	t.Run("an ID is taken once as long as its token is valid", func(t *testing.T) {
		var g replayGuard
		if err := g.use("agent", "id", noon, end); err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Time{noon, noon.Add(protocol.ConnectTokenTTL), end} {
			var refusal *RefusalError
			if err := g.use("agent", "id", at, end); !errors.As(err, &refusal) {
				t.Errorf("used again at %s: %v", at, err)
			}
		}
	})
	t.Run("an ID of another agent's is nothing to this one", func(t *testing.T) {
		var g replayGuard
		for _, agent := range []string{"agent", "other"} {
			if err := g.use(agent, "id", noon, end); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("what has ended is forgotten, with agents that have nothing left", func(t *testing.T) {
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
			t.Errorf("remembers %d agents", len(g.used))
		}
	})
	t.Run("an agent that connects without end fills no more than its own room", func(t *testing.T) {
		var g replayGuard
		for i := range maxConnects {
			if err := g.use("agent", fmt.Sprint(i), noon, end); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.use("agent", "one more", noon, end); !errors.Is(err, errBusy) {
			t.Errorf("one more: %v", err)
		}
		if err := g.use("other", "id", noon, end); err != nil {
			t.Errorf("another agent: %v", err)
		}
	})
}

func TestLimits(t *testing.T) {
	t.Run("lookups are bounded for all together and come back with time", func(t *testing.T) {
		var l limits
		for i := range lookupBurst {
			if !l.lookup(noon) {
				t.Fatalf("refused after %d", i)
			}
		}
		if l.lookup(noon) {
			t.Error("not bounded")
		}
		if !l.lookup(noon.Add(time.Second)) {
			t.Error("does not come back")
		}
	})
	t.Run("joins are bounded for each Cluster by itself", func(t *testing.T) {
		var l limits
		a, b := types.NamespacedName{Namespace: "team", Name: "a"}, types.NamespacedName{Namespace: "team", Name: "b"}
		for range joinBurst {
			l.join(a, noon)
		}
		if l.join(a, noon) {
			t.Error("not bounded")
		}
		if !l.join(b, noon) {
			t.Error("another Cluster pays for it")
		}
		if !l.join(a, noon.Add(time.Second)) {
			t.Error("does not come back")
		}
	})
	t.Run("Clusters without a recent join are forgotten", func(t *testing.T) {
		var l limits
		for i := range 3 * maxIdleLimits {
			l.join(types.NamespacedName{Name: fmt.Sprint(i)}, noon.Add(time.Duration(i)*time.Minute))
		}
		if len(l.joins) > maxIdleLimits {
			t.Errorf("remembers %d", len(l.joins))
		}
	})
}

func TestWhoNamesManyClustersIsToldOfOnFew(t *testing.T) {
	t.Parallel()
	var l limits
	told := 0
	for i := range 6000 { // a hundred a second
		if l.show(noon.Add(time.Duration(i) * 10 * time.Millisecond)) {
			told++
		}
	}
	if told > 80 {
		t.Errorf("told of %d in a minute: each is a write of a status", told)
	}
}
