// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// hangs returns a write that blocks until release is closed or its context ends.
func hangs(release <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func answers(context.Context) error { return nil }

// refused fails the test unless a write to a place is refused immediately.
func refused(t *testing.T, l *lanes, place, id string) {
	t.Helper()
	began := time.Now()
	err := l.do(t.Context(), place, id,
		func(context.Context) error { t.Errorf("got a write to %s, want it refused", place); return nil })
	if hanging := (*hangingError)(nil); !errors.As(err, &hanging) || time.Since(began) > 0 {
		t.Errorf("writing to %s: got the error %v after %s, want a hangingError at once", place, err,
			time.Since(began))
	}
}

func TestHangingWritesToManyPlacesDelayNoOtherWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(func([]string) {})
		var flying, most atomic.Int64
		var running sync.WaitGroup
		for i := range 150 {
			running.Go(func() {
				_ = l.do(t.Context(), fmt.Sprint("namespace ", i), "", func(ctx context.Context) error {
					most.Store(max(most.Load(), flying.Add(1)))
					defer flying.Add(-1)
					return hangs(nil)(ctx)
				})
			})
		}
		synctest.Wait()
		began := time.Now()
		if err := l.do(t.Context(), "namespace other", "", answers); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("another write took %s and had the error %v, want at most 2 s and no error", time.Since(began), err)
		}
		if most.Load() > quickLane+slowLane {
			t.Errorf("%d writes were in flight, want at most %d", most.Load(), quickLane+slowLane)
		}
		running.Wait()
		if len(l.quick) > 0 || len(l.slow) > 0 || l.probes > 0 {
			t.Errorf("%d, %d and %d writes are still in lanes, want none", len(l.quick), len(l.slow), l.probes)
		}
	})
}

func TestHangingPlaceGetsOneWriteAtATimeUntilItAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var woken []string
		l := newLanes(func(ids []string) { woken = append(woken, ids...) })
		const place = "namespace web"
		if err := l.do(t.Context(), place, "crtb/first", hangs(nil)); err == nil {
			t.Error("a write that hangs has no error, want one after its time")
		}
		refused(t, l, place, "crtb/a") // a write to the place has just timed out
		time.Sleep(writeTimeout)
		release := make(chan struct{})
		var probing sync.WaitGroup
		probing.Go(func() {
			if err := l.do(t.Context(), place, "crtb/probe", hangs(release)); err != nil {
				t.Errorf("the write that finds out whether the place hangs has the error %v, want none", err)
			}
		})
		synctest.Wait()
		refused(t, l, place, "crtb/b")
		close(release)
		probing.Wait()
		if len(woken) != 2 {
			t.Errorf("when the place answers: got sets %v woken, want crtb/a and crtb/b", woken)
		}
		if err := l.do(t.Context(), place, "crtb/a", answers); err != nil || len(l.trouble) > 0 {
			t.Errorf("the next write has the error %v, and trouble is kept of %d places, want none", err, len(l.trouble))
		}
	})
}

func TestWriteToASlowPlaceWaitsAndIsNotRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(func([]string) {})
		began := time.Now()
		var running sync.WaitGroup
		for range 40 {
			running.Go(func() {
				if err := l.do(t.Context(), "namespace web", "", func(context.Context) error {
					time.Sleep(time.Second)
					return nil
				}); err != nil {
					t.Errorf("a write that takes a second has the error %v, want none", err)
				}
			})
		}
		running.Wait()
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("40 writes of a second each took %s, want several at once", took)
		}
	})
}

func TestCanceledWriteDoesNotMarkItsPlaceAsHanging(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLanes(func([]string) {})
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		var running sync.WaitGroup
		running.Go(func() { _ = l.do(ctx, "namespace web", "", hangs(nil)) })
		time.Sleep(2 * overdue)
		if err := l.do(t.Context(), "namespace web", "", answers); err != nil || len(l.trouble) > 0 {
			t.Errorf("after a write was canceled, the next one has the error %v and trouble is kept of %d places, want "+
				"none", err, len(l.trouble))
		}
		running.Wait()
	})
}
