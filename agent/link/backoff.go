// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"math"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Waits before the next attempt. They are randomized to spread the attempts of agents that lost the hub at the same
// time.
const (
	firstWait   = 500 * time.Millisecond // upper bound of the first two waits; doubles after that
	longestWait = protocol.LongestWait
	healthy     = time.Minute // if a tunnel was open for this long, the next failure counts as the first

	refusedFrom, refusedTo = time.Minute, 5 * time.Minute // wait after a refusal; a new token ends the wait

	// A hub refuses agents whose handshake would have to wait longer than 6 s. If these agents retried after the usual
	// half second, most of them would be refused again. With the waits below, 9,000 agents that lost their tunnels at
	// the same time reconnect within 23 s, with a total of 9,000 failed attempts. This is as fast as two cores can
	// admit them. With the usual waits, they need 40 s and 30,000 failed attempts. The waits below do not grow as long
	// as the waits after other failures, because the hub is reachable. Otherwise, agents that failed often while the
	// hub was starting would reconnect much later than the others.
	turnedAwayFrom, turnedAwayTo, turnedAwayLongest = 4 * time.Second, 10 * time.Second, 16 * time.Second
)

// Rejection is an error for which an early retry is pointless.
type Rejection interface {
	error
	// Refused returns the minimum time to wait, or 0 for the usual time.
	Refused() time.Duration
}

// backoff decides how long to wait. It is not safe for concurrent use.
type backoff struct {
	jitter func(n time.Duration) time.Duration
	first  time.Duration // upper bound of the first two waits
	// limit is the upper bound of the next wait. The jitter of wait.Backoff is not used, because it can only increase the
	// wait.
	limit wait.Backoff
}

func newBackoff(jitter func(n time.Duration) time.Duration, first time.Duration) backoff {
	return backoff{jitter, first, firstLimit(first)}
}

// firstLimit returns a limit that starts at first/2, so that first is the upper bound of each of the first two waits. A
// hub that restarts is unreachable for less than a second, but some agents fail twice in this time. If they waited
// longer before their third attempt, they would be the last to reconnect.
func firstLimit(first time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first / 2, Factor: 2, Cap: longestWait, Steps: math.MaxInt}
}

// next returns how long to wait after an attempt that ended with err. opened is how long the tunnel was open, or 0 if
// it never opened.
func (b *backoff) next(opened time.Duration, err error) time.Duration {
	if opened >= healthy {
		b.limit = firstLimit(b.first)
	}
	if opened == 0 {
		if asked, ok := rejection(err); ok {
			return max(asked, refusedFrom) + b.jitter(refusedTo-refusedFrom)
		}
	}
	limit := max(b.first, b.limit.Step())
	if errors.Is(err, tunnel.ErrTurnedAway) {
		// The upper bounds are higher for a patient link, so that other links reconnect first.
		return turnedAwayFrom +
			b.jitter(min(max(limit, turnedAwayTo-turnedAwayFrom), max(b.first, turnedAwayLongest-turnedAwayFrom)))
	}
	next := b.jitter(limit)
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) && hs.RetryAfter > 0 {
		return hs.RetryAfter + b.jitter(min(hs.RetryAfter, longestWait))
	}
	return next
}

// rejection reports whether err is a Rejection, and returns how long to wait.
func rejection(err error) (time.Duration, bool) {
	if r := Rejection(nil); errors.As(err, &r) {
		return r.Refused(), true
	}
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) {
		switch hs.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusGone:
			return hs.RetryAfter, true
		}
	}
	return 0, false
}

// IsRejection reports whether the hub refused the agent, or whether the agent has no token to join with.
func IsRejection(err error) bool {
	_, ok := rejection(err)
	return ok
}
