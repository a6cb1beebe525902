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
	t.Run("an answer is given again for as long as it says, and not longer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, asked := New[int](), 0
			ask := func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: asked, For: time.Second}, nil
			}
			for _, want := range []int{1, 1} {
				if got, err := c.Get(t.Context(), Key{1}, "a", ask); got != want || err != nil {
					t.Errorf("Get = %d, %v; want %d", got, err, want)
				}
			}
			time.Sleep(1100 * time.Millisecond) // the clock of synctest, not a wait
			if got, err := c.Get(t.Context(), Key{1}, "a", ask); got != 2 || err != nil {
				t.Errorf("Get = %d, %v; want 2", got, err)
			}
		})
	})
	t.Run("errors and answers for no time are not remembered", func(t *testing.T) {
		c, asked := New[int](), 0
		failed := errors.New("down")
		for range 2 {
			if _, err := c.Get(t.Context(), Key{1}, "a", func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: 1, For: time.Hour}, failed
			}); !errors.Is(err, failed) {
				t.Errorf("Get = %v", err)
			}
			if _, err := c.Get(t.Context(), Key{1}, "a", func(context.Context) (Result[int], error) {
				asked++
				return Result[int]{Value: 1}, nil
			}); err != nil {
				t.Errorf("Get = %v", err)
			}
		}
		if asked != 4 {
			t.Errorf("asked %d times, want 4", asked)
		}
	})
	t.Run("no more answers are remembered than there is room for", func(t *testing.T) {
		c := New[int]()
		for n := range capacity + 100 {
			if _, err := c.Get(t.Context(), Key{byte(n), byte(n >> 8), byte(n >> 16)}, "a", func(context.Context) (Result[int], error) {
				return Result[int]{Value: n, For: time.Hour}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(c.no.Keys()); got != capacity {
			t.Errorf("%d answers are remembered, want %d", got, capacity)
		}
	})
	t.Run("answers with no make none with yes forgotten", func(t *testing.T) {
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
			t.Errorf("Get = %v, %v", got, err)
		}
	})
	t.Run("one asker's questions that hang leave room for another's", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, begun := New[int](), time.Now()
			for n := range 1000 {
				go func() {
					_, _ = c.Get(t.Context(), Key{1, byte(n), byte(n >> 8)}, "hung", func(ctx context.Context) (Result[int], error) {
						<-ctx.Done()
						return Result[int]{}, ctx.Err()
					})
				}()
			}
			synctest.Wait()
			got, err := c.Get(t.Context(), Key{}, "other", func(context.Context) (Result[int], error) { return Result[int]{Value: 1}, nil })
			if got != 1 || err != nil || time.Since(begun) > 0 {
				t.Errorf("Get = %d, %v after %s", got, err, time.Since(begun))
			}
			time.Sleep(time.Minute) // the clock of synctest: until all who hang have ended
		})
	})
}
