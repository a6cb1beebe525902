// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decision

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestCache(t *testing.T) {
	t.Run("a result is reused for the time that it gives, and no longer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, asked := New[int](), 0
			ask := func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: asked, For: time.Second}, nil
			}
			for _, want := range []int{1, 1} {
				if got, err := c.Get(t.Context(), Key{1}, "a", ask); got != want || err != nil {
					t.Errorf("got %d, %v, want %d", got, err, want)
				}
			}
			time.Sleep(1100 * time.Millisecond) // synctest's clock
			if got, err := c.Get(t.Context(), Key{1}, "a", ask); got != 2 || err != nil {
				t.Errorf("got %d, %v, want 2", got, err)
			}
		})
	})
	t.Run("errors and results whose For is zero are not remembered", func(t *testing.T) {
		c, asked := New[int](), 0
		failed := errors.New("down")
		for range 2 {
			if _, err := c.Get(t.Context(), Key{1}, "a", func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: 1, For: time.Hour}, failed
			}); !errors.Is(err, failed) {
				t.Errorf("got %v, want %v", err, failed)
			}
			if _, err := c.Get(t.Context(), Key{1}, "a", func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: 1}, nil
			}); err != nil {
				t.Errorf("got %v, want no error", err)
			}
		}
		if asked != 4 {
			t.Errorf("asked %d times, want 4", asked)
		}
	})
	t.Run("the number of remembered results is bounded", func(t *testing.T) {
		c := New[int]()
		for n := range capacity + 100 {
			if _, err := c.Get(t.Context(), Key{byte(n), byte(n >> 8), byte(n >> 16)}, "a",
				func(context.Context) (Result[int], error) {
					return Result[int]{Value: n, For: time.Hour}, nil
				}); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(c.no.Keys()); got != capacity {
			t.Errorf("%d results are remembered, want %d", got, capacity)
		}
	})
	t.Run("the answer no does not evict the answer yes", func(t *testing.T) {
		c := New[bool]()
		yes := func(context.Context) (Result[bool], error) {
			return Result[bool]{Value: true, For: time.Hour, Yes: true}, nil
		}
		no := func(context.Context) (Result[bool], error) { return Result[bool]{For: time.Hour}, nil }
		if _, err := c.Get(t.Context(), Key{}, "a", yes); err != nil {
			t.Fatal(err)
		}
		for n := range capacity + 1 {
			if _, err := c.Get(t.Context(), Key{1, byte(n), byte(n >> 8)}, "b", no); err != nil {
				t.Fatal(err)
			}
		}
		got, err := c.Get(t.Context(), Key{}, "a", func(context.Context) (Result[bool], error) {
			return Result[bool]{}, errors.New("asked again")
		})
		if !got || err != nil {
			t.Errorf("got %v, %v, want true from memory", got, err)
		}
	})
	t.Run("hanging questions of one asker leave room for another", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, start := New[int](), time.Now()
			for n := range 1000 {
				go func() {
					_, _ = c.Get(t.Context(), Key{1, byte(n), byte(n >> 8)}, "hung", func(ctx context.Context) (Result[int], error) {
						<-ctx.Done()
						return Result[int]{}, ctx.Err()
					})
				}()
			}
			synctest.Wait()
			got, err := c.Get(t.Context(), Key{}, "other",
				func(context.Context) (Result[int], error) { return Result[int]{Value: 1}, nil })
			if got != 1 || err != nil || time.Since(start) > 0 {
				t.Errorf("got %d, %v after %s, want 1 at once", got, err, time.Since(start))
			}
			time.Sleep(time.Minute) // synctest's clock: until all hanging questions have ended
		})
	})
}
