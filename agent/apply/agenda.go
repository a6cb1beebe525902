// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"
	"time"
)

// agenda says which sets are to be looked at, and when.
type agenda struct {
	wake chan struct{} // has room for one

	mu  sync.Mutex // guards due
	due map[string]time.Time
}

func newAgenda() *agenda {
	return &agenda{wake: make(chan struct{}, 1), due: map[string]time.Time{}}
}

// at has a set looked at by then.
func (a *agenda) at(id string, when time.Time) {
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

// take returns what is due now, and how long to wait for the next; 0 if there is none.
func (a *agenda) take(now time.Time) (ids []string, wait time.Duration) {
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

// longWait is for when nothing is due: a clock that was set may change that.
const longWait = time.Minute

// run calls do with each set that is due, until ctx ends. do must not block for long.
func (a *agenda) run(ctx context.Context, now func() time.Time, do func(id string)) {
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
