// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// newQueue returns a queue of sets that are due for a pass.
func newQueue(now func() time.Time) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: timeOfDay{now: now}},
	)
}

// timeOfDay is a clock that follows changes to the system time. The queue checks the clock every ten seconds. If the
// system time is set forward past a set's expiry time, the set therefore becomes due soon afterward.
type timeOfDay struct {
	clock.RealClock
	now func() time.Time
}

// Now returns the time without a monotonic reading, because a monotonic reading ignores changes to the system time.
func (c timeOfDay) Now() time.Time { return c.now().Round(0) }
