// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "time"

const (
	// retryAfter is how long to wait after a request that failed for reasons that may pass, and retryLate the most after many.
	retryAfter = time.Second
	retryLate  = time.Minute
)

// backoff is how long to wait after failures in a row: it doubles from retryAfter to retryLate. The zero value is that of none.
type backoff struct {
	wait  time.Duration
	until time.Time
}

// after is the back-off when there was one more failure.
func (b backoff) after(now time.Time) backoff {
	wait := min(max(2*b.wait, retryAfter), retryLate)
	return backoff{wait: wait, until: now.Add(wait)}
}
