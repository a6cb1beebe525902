// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"net/http"
	"time"

	"github.com/drover-dev/drover/internal/tunnel"
)

// How long to wait before another attempt. All waits are random, so that agents that lost the hub together don't return together.
const (
	firstWait   = 500 * time.Millisecond // the upper end for the first failure; it doubles
	longestWait = 30 * time.Second
	healthy     = time.Minute // a tunnel that was open for so long makes the next failure the first again

	refusedFrom, refusedTo = time.Minute, 5 * time.Minute // a refusal needs a person, or a new token, which ends the wait
)

// Rejection is an error that does not go away by trying again soon.
type Rejection interface {
	error
	// Refused is how long to wait at least, 0 for the usual time.
	Refused() time.Duration
}

// backoff says how long to wait. Not safe for concurrent use.
type backoff struct {
	jitter   func(n time.Duration) time.Duration
	failures int
}

// next returns how long to wait after an attempt that ended with err. opened is how long its tunnel was open, 0 if it never was.
func (b *backoff) next(opened time.Duration, err error) time.Duration {
	if opened >= healthy {
		b.failures = 0
	}
	if opened == 0 {
		if wait, ok := rejection(err); ok {
			return max(wait, refusedFrom) + b.jitter(refusedTo-refusedFrom)
		}
	}
	limit := min(longestWait, firstWait<<min(b.failures, 16))
	b.failures++
	wait := b.jitter(limit)
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) && hs.RetryAfter > 0 {
		return hs.RetryAfter + b.jitter(min(hs.RetryAfter, longestWait))
	}
	return wait
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
