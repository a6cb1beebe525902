// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// statusInterval is the minimum interval between writes of a Plan's status if only counts change. It is also the
	// minimum average interval between all writes.
	statusInterval = time.Second
	// statusBurst is the number of consecutive writes without delay when conditions change, so that the completion of a
	// Plan is reported immediately.
	statusBurst = 3
	// retryAfter is the wait after a temporary failure, and retryLate is the longest wait after several failures.
	retryAfter = time.Second
	retryLate  = time.Minute
)

// limiter limits the rate of writes of one status. Its zero value is ready to use.
type limiter struct {
	last  time.Time // time of the last write
	spent time.Time // when the whole burst is available again
}

// due returns the time when the next write is allowed. An urgent write may use the burst.
func (p limiter) due(urgent bool) time.Time {
	if urgent {
		return p.spent.Add(-(statusBurst - 1) * statusInterval)
	}
	return p.last.Add(statusInterval)
}

// wrote returns the limiter after a write.
func (p limiter) wrote(now time.Time) limiter {
	if p.spent.Before(now) {
		p.spent = now
	}
	return limiter{last: now, spent: p.spent.Add(statusInterval)}
}

// conditionsChanged reports whether conditions differ in more than their messages.
func conditionsChanged(before, after []metav1.Condition) bool {
	return !slices.EqualFunc(before, after, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason &&
			x.ObservedGeneration == y.ObservedGeneration
	})
}

// backoff is the wait after consecutive failures. It doubles from retryAfter to retryLate. The zero value means no
// wait.
type backoff struct {
	wait  time.Duration
	until time.Time
}

// after returns the backoff after one more failure.
func (b backoff) after(now time.Time) backoff {
	wait := min(max(2*b.wait, retryAfter), retryLate)
	return backoff{wait: wait, until: now.Add(wait)}
}
