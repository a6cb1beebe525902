// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// The hub is away for as long as a manager that restarts.
func TestTheLastOfManyAgentsIsBackSoon(t *testing.T) {
	t.Parallel()
	const agents, rounds, away = 31, 1000, 400 * time.Millisecond
	random := rand.New(rand.NewPCG(1, 2))
	var lasts []time.Duration
	for range rounds {
		var last time.Duration
		for range agents {
			b := newBackoff(func(n time.Duration) time.Duration { return time.Duration(random.Int64N(int64(n))) }, firstWait)
			at := time.Duration(0)
			for at < away {
				at += b.next(0, errors.New("no hub"))
			}
			last = max(last, at)
		}
		lasts = append(lasts, last)
	}
	slices.Sort(lasts)
	if median := lasts[rounds/2]; median > 1500*time.Millisecond { // it was 2.1 s with one short wait
		t.Errorf("the last is back after %s in half of the rounds, want 1.5 s at most", median)
	}
}

// A node agent begins when the replicas have failed for a while. It waits as they do by then.
func TestAPatientLinkWaitsLongFromTheFirst(t *testing.T) {
	t.Parallel()
	l := New(Options{Patient: true, Jitter: func(n time.Duration) time.Duration { return n }})
	for i := range 4 {
		if got := l.backoff.next(0, errors.New("no hub")); got != longestWait {
			t.Errorf("wait %d is of up to %s, want %s", i, got, longestWait)
		}
	}
	if got := l.backoff.next(healthy, errors.New("no hub")); got != longestWait {
		t.Errorf("the wait after a tunnel is of up to %s, want %s", got, longestWait)
	}
}
