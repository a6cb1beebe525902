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

// How long to wait before another attempt. All waits are random, so that agents that lost the hub together don't return
// together.
const (
	firstWait   = 500 * time.Millisecond // the upper end for the first two failures; then it doubles
	longestWait = protocol.LongestWait
	healthy     = time.Minute // a tunnel that was open for so long makes the next failure the first again

	refusedFrom, refusedTo = time.Minute, 5 * time.Minute // a refusal needs a person, or a new token, which ends the wait

	// A hub turns away those that would wait for longer than 6 s for their handshake. An attempt within the usual half a
	// second would mostly be in vain, too: so 9,000 agents that lost their tunnels at the same time are back after 23 s,
	// as fast as two cores admit them, and 9,000 attempts in vain. Without this it is 40 s, and 30,000. The waits grow
	// less than after other failures, since the hub is there: else those that failed often while it started would come
	// last by far.
	turnedAwayFrom, turnedAwayTo, turnedAwayLongest = 4 * time.Second, 10 * time.Second, 16 * time.Second
)

// Rejection is an error that does not go away by trying again soon.
type Rejection interface {
	error
	// Refused is how long to wait at least, 0 for the usual time.
	Refused() time.Duration
}

// backoff says how long to wait. Not safe for concurrent use.
type backoff struct {
	jitter func(n time.Duration) time.Duration
	first  time.Duration // the upper end of the first waits
	// limit is the upper end of the next wait. Jitter of its own would only add to a wait, so that no agent would return
	// early.
	limit wait.Backoff
}

func newBackoff(jitter func(n time.Duration) time.Duration, first time.Duration) backoff {
	return backoff{jitter, first, firstLimit(first)}
}

// firstLimit starts below first, so that there are two waits of it. A hub that restarts is away for less than a second:
// of many agents some try twice in vain, and a longer wait before the third attempt decides when the last one is back.
func firstLimit(first time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first / 2, Factor: 2, Cap: longestWait, Steps: math.MaxInt}
}

// next returns how long to wait after an attempt that ended with err. opened is how long its tunnel was open, 0 if it
// never was.
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
		// a patient link stays behind the others
		return turnedAwayFrom +
			b.jitter(min(max(limit, turnedAwayTo-turnedAwayFrom), max(b.first, turnedAwayLongest-turnedAwayFrom)))
	}
	next := b.jitter(limit)
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) && hs.RetryAfter > 0 {
		return hs.RetryAfter + b.jitter(min(hs.RetryAfter, longestWait))
	}
	return next
}

// rejection reports whether err is a Rejection, and how long it asks to wait.
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

// IsRejection reports whether the hub refused, or the agent has nothing to present to it.
func IsRejection(err error) bool {
	_, ok := rejection(err)
	return ok
}
