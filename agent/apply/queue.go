// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// newQueue makes the queue of sets that are due for a pass.
func newQueue(now func() time.Time) workqueue.TypedRateLimitingInterface[string] {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: timeOfDay{now: now}},
	)
}

// timeOfDay is the time of day. A set that expires at a time is due as soon as the clock was set to it: the queue looks
// every ten seconds.
type timeOfDay struct {
	clock.RealClock
	now func() time.Time
}

// Now returns the time without the part that does not change when the clock is set.
func (c timeOfDay) Now() time.Time { return c.now().Round(0) }
