// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/tunnel"
)

// TestLastOfManyAgentsReconnectsSoon models a hub that is unreachable for as long as a manager takes to restart.
func TestLastOfManyAgentsReconnectsSoon(t *testing.T) {
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

func TestPatientLinkThatIsTurnedAwayStaysBehindTheOthers(t *testing.T) {
	t.Parallel()
	longest := func(n time.Duration) time.Duration { return n }
	patient, other := New(Options{Patient: true, Jitter: longest}), New(Options{Jitter: longest})
	for range 10 {
		if p, o := patient.backoff.next(0, tunnel.ErrTurnedAway), other.backoff.next(0,
			tunnel.ErrTurnedAway); p != turnedAwayFrom+longestWait || o > turnedAwayLongest {
			t.Errorf("the waits are of up to %s and %s, want %s and at most %s", p, o, turnedAwayFrom+longestWait,
				turnedAwayLongest)
		}
	}
}

// TestPatientLinkWaitsLongFromTheFirstFailure models a node agent, which starts after the replicas have failed for a
// while. It waits as long as they do at that time.
func TestPatientLinkWaitsLongFromTheFirstFailure(t *testing.T) {
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

// TestThousandsOfAgentsReconnectAsFastAsTheHubAdmitsThem models the hub after internal/server/pace.go on two cores.
func TestThousandsOfAgentsReconnectAsFastAsTheHubAdmitsThem(t *testing.T) {
	t.Parallel()
	const agents, perSecond, patience, tick = 9000, 400, 6 * time.Second, 10 * time.Millisecond
	for name, tt := range map[string]struct{ away, want time.Duration }{
		// The rate of handshakes takes 22.5 s of it. It was 40 s.
		"that lost their tunnels at the same time":             {0, 25 * time.Second},
		"whose hub was killed and is back after 9 s":           {9 * time.Second, 40 * time.Second},
		"whose hub was killed and is back after half a second": {time.Second / 2, 25 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, 2))
			backoffs, attempts := make([]backoff, agents), map[time.Duration][]int{} // attempts by time
			wait := func(now time.Duration, agent int, opened time.Duration, err error) {
				at := (now + backoffs[agent].next(opened, err)).Truncate(tick) + tick
				attempts[at] = append(attempts[at], agent)
			}
			for i := range agents {
				backoffs[i] = newBackoff(func(n time.Duration) time.Duration { return time.Duration(random.Int64N(int64(n))) },
					firstWait)
				wait(0, i, healthy, tunnel.ErrPeerClosed)
			}
			turnedAway, admitted := 0, time.Duration(0) // admitted is when the queue of handshakes is empty
			for now := time.Duration(0); len(attempts) > 0; now += tick {
				for _, agent := range attempts[now] {
					switch {
					case now < tt.away:
						wait(now, agent, 0, errors.New("no hub"))
					case admitted-now > patience:
						turnedAway++
						wait(now, agent, 0, fmt.Errorf("dial hub: %w", tunnel.ErrTurnedAway))
					default:
						admitted = max(admitted, now) + time.Second/perSecond
					}
				}
				delete(attempts, now)
			}
			if admitted > tt.want || turnedAway > agents {
				t.Errorf("the last is back after %s and %d attempts in vain, want %s and %d at most", admitted, turnedAway, tt.want,
					agents)
			}
		})
	}
}
