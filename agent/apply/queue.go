// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"
)

// queue holds the ids of sets that are due for a pass, and when.
type queue struct {
	wake chan struct{} // buffered: 1

	mu  sync.Mutex // guards due
	due map[string]time.Time
}

func newQueue() *queue {
	return &queue{wake: make(chan struct{}, 1), due: map[string]time.Time{}}
}

// addAt queues a set for a time, unless it is due earlier.
func (a *queue) addAt(id string, when time.Time) {
	a.mu.Lock()
	before, known := a.due[id]
	if !known || when.Before(before) {
		a.due[id] = when
	}
	a.mu.Unlock()
	if known && !when.Before(before) {
		return
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// take removes and returns what is due now, and how long to wait for the next; 0 if there is none.
func (a *queue) take(now time.Time) (ids []string, wait time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, when := range a.due {
		if left := when.Sub(now); left <= 0 {
			ids = append(ids, id)
			delete(a.due, id)
		} else if wait == 0 || left < wait {
			wait = left
		}
	}
	return ids, wait
}

// longWait is the longest wait. The clock may be set meanwhile.
const longWait = time.Minute

// run calls do with each set that is due, until ctx ends. do must not block for long.
func (a *queue) run(ctx context.Context, now func() time.Time, do func(id string)) {
	timer := time.NewTimer(longWait)
	defer timer.Stop()
	for {
		ids, wait := a.take(now())
		for _, id := range ids {
			do(id)
		}
		if wait == 0 || wait > longWait {
			wait = longWait
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
	}
}
