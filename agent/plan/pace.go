// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// statusInterval is how far apart two writes of a Plan's status are at least while only its counts move, and on the average always.
	statusInterval = time.Second
	// statusBurst is how many writes may come together when the Plan's conditions turn: that it is complete is told at once.
	statusBurst = 3
	// retryAfter is how long to wait after a request that failed for reasons that may pass, and retryLate the most after many.
	retryAfter = time.Second
	retryLate  = time.Minute
)

// pace holds the writes of one status to their rate. The zero value is that of one never written.
type pace struct {
	last  time.Time // write
	spent time.Time // when the writes until now will have been paid for, at one an interval
}

// due is when the next write may come. urgent ones need not wait for the interval while the burst lasts.
func (p pace) due(urgent bool) time.Time {
	if urgent {
		return p.spent.Add(-(statusBurst - 1) * statusInterval)
	}
	return p.last.Add(statusInterval)
}

// wrote is the pace after a write.
func (p pace) wrote(now time.Time) pace {
	if p.spent.Before(now) {
		p.spent = now
	}
	return pace{last: now, spent: p.spent.Add(statusInterval)}
}

// turned says whether conditions say something else, and not only the same with other counts.
func turned(before, after []metav1.Condition) bool {
	return !slices.EqualFunc(before, after, func(x, y metav1.Condition) bool {
		return x.Type == y.Type && x.Status == y.Status && x.Reason == y.Reason && x.ObservedGeneration == y.ObservedGeneration
	})
}

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
