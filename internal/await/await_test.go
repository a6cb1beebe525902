// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package await

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestWaitEndsWithTheTimeTheWakeUpOrTheContext(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	for name, tt := range map[string]struct {
		wake    <-chan struct{}
		timeout time.Duration
		took    time.Duration
		want    bool
	}{
		"the time":    {timeout: time.Hour, took: time.Minute, want: true},
		"the wake-up": {wake: closed, timeout: time.Hour, want: true},
		"the context": {timeout: time.Second, took: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
				defer cancel()
				start := time.Now()
				if got := Wake(ctx, tt.wake, time.Minute); got != tt.want || time.Since(start) != tt.took {
					t.Errorf("waited %s and returned %t, want %s and %t", time.Since(start), got, tt.took, tt.want)
				}
			})
		})
	}
}

func TestLoopRunsAtOnceOnWakeUpsAndWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		wake, start := make(chan struct{}), time.Now()
		var passes []time.Duration
		next := []time.Duration{time.Minute, 0, time.Hour, 0}
		go Loop(ctx, wake, func(context.Context) time.Duration {
			passes = append(passes, time.Since(start))
			return next[len(passes)-1]
		})
		for _, at := range []time.Duration{10 * time.Minute, 20 * time.Minute} { // the second one comes before the hour ends
			time.Sleep(at - time.Since(start))
			wake <- struct{}{}
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait() // the race detector does not regard a sleep as a synchronization
		want := []time.Duration{0, time.Minute, 10 * time.Minute, 20 * time.Minute}
		if !slices.Equal(passes, want) {
			t.Errorf("passes at %v, want %v", passes, want)
		}
	})
}
