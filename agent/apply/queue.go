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

// timeOfDay is a clock that shows the time of day. If the system clock is moved past a set's expiry time, the set still
// becomes due, because the queue checks the clock every ten seconds.
type timeOfDay struct {
	clock.RealClock
	now func() time.Time
}

// Now returns the time without the monotonic reading, which would ignore changes to the clock.
func (c timeOfDay) Now() time.Time { return c.now().Round(0) }
