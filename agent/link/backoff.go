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

// Times to wait before another attempt. All of them are randomized, so agents that lost the hub at the same time do not
// return at the same time.
const (
	firstWait   = 500 * time.Millisecond // the upper bound after each of the first two failures; then it doubles
	longestWait = protocol.LongestWait
	healthy     = time.Minute // after a tunnel that was open for this time, the next failure counts as the first

	refusedFrom, refusedTo = time.Minute, 5 * time.Minute // after a refusal, a user must act, or a new token ends the wait

	// A hub turns away agents that would wait longer than 6 s for their handshake. An attempt within the usual half a
	// second would usually fail too. With these waits, 9,000 agents that lost their tunnels at the same time reconnect
	// within 23 s and 9,000 failed attempts. This is as fast as two cores can admit them. Without these waits,
	// reconnecting takes 40 s and 30,000 failed attempts. The waits grow less than after other failures, because the
	// hub is reachable. Otherwise agents that failed often while the hub was starting would reconnect much later than
	// the others.
	turnedAwayFrom, turnedAwayTo, turnedAwayLongest = 4 * time.Second, 10 * time.Second, 16 * time.Second
)

// Rejection is an error that cannot be solved by retrying soon.
type Rejection interface {
	error
	// Refused returns the minimum time to wait, or 0 for the usual time.
	Refused() time.Duration
}

// backoff decides how long to wait. It is not safe for concurrent use.
type backoff struct {
	jitter func(n time.Duration) time.Duration
	first  time.Duration // the upper bound of the first waits
	// limit is the upper bound of the next wait. It does not use the jitter of wait.Backoff. That jitter would only
	// lengthen waits, so that no agent would return early.
	limit wait.Backoff
}

func newBackoff(jitter func(n time.Duration) time.Duration, first time.Duration) backoff {
	return backoff{jitter, first, firstLimit(first)}
}

// firstLimit returns a limit that starts below "first", so that two waits have the upper bound "first". A hub that
// restarts is unreachable for less than a second. Among many agents, some fail twice, and a longer wait before the
// third attempt would determine when the last of them is back.
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
		// A patient link lets other links go first.
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

// IsRejection reports whether the hub refused the agent, or the agent has no token to join with.
func IsRejection(err error) bool {
	_, ok := rejection(err)
	return ok
}
