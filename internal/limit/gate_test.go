// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/limit"
)

func asker(user, member string) limit.Requester { return limit.Requester{User: user, Member: member} }

// enter fails the test if there is no seat.
func enter(t *testing.T, g *limit.Gate, user, member string) *limit.Seat {
	t.Helper()
	seat, err := g.Enter(t.Context(), asker(user, member))
	if err != nil {
		t.Fatalf("%s in %s: %v", user, member, err)
	}
	return seat
}

func wantFull(t *testing.T, err error, scope limit.Scope, waited time.Duration) {
	t.Helper()
	var full *limit.FullError
	if !errors.As(err, &full) || full.Scope != scope || full.Waited != waited {
		t.Errorf("error %v, want that %s is full after %s", err, scope, waited)
	}
}

func TestGateBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds limit.Bounds
		taken  []limit.Requester
		next   limit.Requester
		want   limit.Scope
	}{
		"a user has a share and no more": {limit.Bounds{User: 2}, []limit.Requester{asker("a", "m"), asker("a", "n")},
			asker("a", "o"), limit.ScopeUser},
		"another user has their own": {limit.Bounds{User: 2}, []limit.Requester{asker("a", "m"), asker("a", "n")},
			asker("b", "m"), ""},
		"a member has its share, whoever asks": {limit.Bounds{Member: 2}, []limit.Requester{asker("a", "m"), asker("b", "m")},
			asker("c", "m"), limit.ScopeMember},
		"another member has its own": {limit.Bounds{Member: 2}, []limit.Requester{asker("a", "m"), asker("b", "m")},
			asker("c", "n"), ""},
		"all together have theirs": {limit.Bounds{All: 2}, []limit.Requester{asker("a", "m"), asker("b", "n")},
			asker("c", "o"), limit.ScopeAll},
		"what has no member is bound by no share": {limit.Bounds{Member: 1},
			[]limit.Requester{asker("a", ""), asker("b", "")}, asker("c", ""), ""},
		"zero is no bound": {limit.Bounds{}, []limit.Requester{asker("a", "m"), asker("a", "m")}, asker("a", "m"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			g := limit.NewGate(tt.bounds, limit.Observer{})
			var seats []*limit.Seat
			for _, who := range tt.taken {
				seats = append(seats, enter(t, g, who.User, who.Member))
			}
			seat, err := g.Enter(t.Context(), tt.next)
			if tt.want != "" {
				wantFull(t, err, tt.want, 0)
				seats[0].Release()
				if seat, err = g.Enter(t.Context(), tt.next); err != nil {
					t.Errorf("after a release: %v", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			for _, s := range append(seats, seat, seat) { // twice is once
				s.Release()
			}
			if taken, waiting := g.Load(); taken != 0 || waiting != 0 {
				t.Errorf("%d seats are taken and %d requests wait after all have left", taken, waiting)
			}
		})
	}
}

// queue starts a request that waits, and notes its name in order when it gets its seat, which it gives back when told.
type queue struct {
	*limit.Gate
	mu   sync.Mutex // guards what follows
	got  []string
	errs map[string]error
	all  sync.WaitGroup
}

func (q *queue) join(ctx context.Context, user, member, name string) {
	q.all.Go(func() {
		seat, err := q.Enter(ctx, asker(user, member))
		q.mu.Lock()
		q.got = append(q.got, name)
		q.errs[name] = err
		q.mu.Unlock()
		<-time.After(time.Millisecond) // of a clock that is not the real one: how long the request takes
		seat.Release()
	})
	synctest.Wait()
}

func (q *queue) finish(t *testing.T, want ...string) {
	t.Helper()
	q.all.Wait()
	if !slices.Equal(q.got, want) {
		t.Errorf("the order is %q, want %q", q.got, want)
	}
	if taken, waiting := q.Load(); taken != 0 || waiting != 0 {
		t.Errorf("%d seats are taken and %d requests wait after all have left", taken, waiting)
	}
}

func newQueue(bounds limit.Bounds) *queue {
	return &queue{Gate: limit.NewGate(bounds, limit.Observer{}), errs: map[string]error{}}
}

func TestGateQueue(t *testing.T) {
	bounds := limit.Bounds{User: 1, All: 1, Queue: 10, QueueUser: 5, Wait: time.Second}
	t.Run("one user is first come first served, and users take turns", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(bounds)
			seat := enter(t, q.Gate, "x", "m")
			for _, name := range []string{"a1", "a2", "a3", "b1", "c1", "b2"} {
				q.join(t.Context(), name[:1], "m", name)
			}
			seat.Release()
			q.finish(t, "a1", "b1", "c1", "a2", "b2", "a3")
		})
	})
	t.Run("a user who waits for a full member may enter another", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(limit.Bounds{Member: 1, All: 2, Queue: 10, QueueUser: 10, Wait: time.Second})
			hung, other := enter(t, q.Gate, "x", "hung"), enter(t, q.Gate, "x", "m")
			q.join(t.Context(), "a", "hung", "a to hung")
			q.join(t.Context(), "a", "m", "a to m")
			q.join(t.Context(), "b", "m", "b to m")
			other.Release()
			synctest.Wait()
			time.Sleep(10 * time.Millisecond)
			hung.Release()
			q.finish(t, "a to m", "b to m", "a to hung")
		})
	})
	t.Run("no request waits for longer than allowed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(bounds)
			defer enter(t, q.Gate, "x", "m").Release()
			_, err := q.Enter(t.Context(), asker("a", "m"))
			wantFull(t, err, limit.ScopeAll, time.Second)
		})
	})
	t.Run("a request that is cancelled leaves the queue", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(bounds)
			seat := enter(t, q.Gate, "x", "m")
			ctx, leave := context.WithCancel(t.Context())
			q.join(ctx, "a", "m", "a1")
			q.join(t.Context(), "a", "m", "a2")
			leave()
			synctest.Wait()
			if !errors.Is(q.errs["a1"], context.Canceled) {
				t.Errorf("error %v, want that of the context", q.errs["a1"])
			}
			seat.Release()
			q.finish(t, "a1", "a2")
		})
	})
	t.Run("the queue of a user is bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(bounds)
			seat := enter(t, q.Gate, "a", "m")
			for n := range 5 {
				q.join(t.Context(), "a", "m", fmt.Sprint(n))
			}
			_, err := q.Enter(t.Context(), asker("a", "m"))
			wantFull(t, err, limit.ScopeUser, 0)
			seat.Release()
			q.finish(t, "0", "1", "2", "3", "4")
		})
	})
	t.Run("a full queue drops the newest of the user with most in it, not the first of another", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(limit.Bounds{All: 1, Queue: 4, QueueUser: 4, Wait: time.Second})
			seat := enter(t, q.Gate, "x", "m")
			for _, name := range []string{"a1", "a2", "a3", "a4", "b1"} {
				q.join(t.Context(), name[:1], "m", name)
			}
			var full *limit.FullError
			if !errors.As(q.errs["a4"], &full) || full.Scope != limit.ScopeUser {
				t.Errorf("the newest of the longest queue got %v", q.errs["a4"])
			}
			seat.Release()
			q.finish(t, "a4", "a1", "b1", "a2", "a3")
		})
	})
	t.Run("one release may let two in: one by its user, one by its member", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(limit.Bounds{User: 1, Member: 1, Queue: 4, QueueUser: 4, Wait: time.Second})
			seat := enter(t, q.Gate, "a", "m")
			q.join(t.Context(), "a", "n", "a to n")
			q.join(t.Context(), "b", "m", "b to m")
			seat.Release()
			synctest.Wait()
			slices.Sort(q.got) // they run at once
			q.finish(t, "a to n", "b to m")
		})
	})
}

// One user with ten thousand goroutines, and one with one request at a time. The clock is not the real one, so what is
// measured is the discipline of the queue and nothing else.
func TestOneUserDoesNotSlowAnother(t *testing.T) {
	const takes = 10 * time.Millisecond
	for name, bounds := range map[string]limit.Bounds{
		"with the default bounds": limit.Defaults().Short,
		"even where one user may take all seats, as their requests then wait in order": {All: 50, Queue: 2000,
			QueueUser: 2000, Wait: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := limit.NewGate(bounds, limit.Observer{})
				ctx, stop := context.WithCancel(t.Context())
				var all sync.WaitGroup
				for range 10_000 {
					all.Go(func() {
						for ctx.Err() == nil {
							seat, err := g.Enter(ctx, asker("greedy", "m"))
							if err != nil {
								time.Sleep(time.Second) // as clients do on 429
								continue
							}
							time.Sleep(takes)
							seat.Release()
						}
					})
				}
				synctest.Wait()
				var worst time.Duration
				for range 50 {
					begun := time.Now()
					seat, err := g.Enter(ctx, asker("modest", "m"))
					if err != nil {
						t.Error(err)
						break
					}
					time.Sleep(takes)
					seat.Release()
					worst = max(worst, time.Since(begun))
				}
				stop()
				all.Wait()
				if worst > 2*takes {
					t.Errorf("a request of %s took %s beside a greedy user, want at most twice as long", takes, worst)
				}
			})
		})
	}
}

// Whatever happens at once, no bound is exceeded, and in the end nothing is left.
func TestGateHoldsItsBoundsUnderLoad(t *testing.T) {
	g := limit.NewGate(limit.Bounds{User: 3, Member: 5, All: 8, Queue: 20, QueueUser: 8, Wait: time.Millisecond},
		limit.Observer{})
	var mu sync.Mutex // guards open
	open := map[string]int{}
	add := func(n int, names ...string) {
		mu.Lock()
		defer mu.Unlock()
		for _, name := range names {
			open[name] += n
			if bound := map[byte]int{'u': 3, 'm': 5, '*': 8}[name[0]]; open[name] > bound {
				t.Errorf("%d of %s at once, want at most %d", open[name], name, bound)
			}
		}
	}
	var all sync.WaitGroup
	for n := range 64 {
		user, member := fmt.Sprint("u", n%6), fmt.Sprint("m", n%4)
		all.Go(func() {
			for range 200 {
				seat, err := g.Enter(t.Context(), asker(user, member))
				if err != nil {
					continue
				}
				add(1, user, member, "*")
				add(-1, user, member, "*")
				seat.Release()
			}
		})
	}
	all.Wait()
	if taken, waiting := g.Load(); taken != 0 || waiting != 0 {
		t.Errorf("%d seats are taken and %d requests wait after all have left", taken, waiting)
	}
}

// What a seat costs where there is room: the goal is under 1 µs. go test -bench Gate -count 10 ./internal/limit |
// benchstat -
func BenchmarkGateWithRoom(b *testing.B) {
	l := limit.New(limit.Defaults(), limit.Observers{})
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			seat, err := l.Enter(b.Context(), asker("alice", "team-a/prod"), false)
			if err != nil {
				b.Error(err)
			}
			seat.Release()
		}
	})
}

// What a modest user waits beside one with ten thousand goroutines, in real time: the request itself takes 1 ms.
func BenchmarkModestUserBesideGreedyOne(b *testing.B) {
	for _, greedy := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("greedy=%d", greedy), func(b *testing.B) {
			g := limit.NewGate(limit.Defaults().Short, limit.Observer{})
			ctx, stop := context.WithCancel(b.Context())
			request := func(user string) {
				seat, err := g.Enter(ctx, asker(user, "m"))
				if err != nil {
					<-time.After(time.Second) // as clients do on 429
					return
				}
				<-time.After(time.Millisecond)
				seat.Release()
			}
			var all sync.WaitGroup
			for range greedy {
				all.Go(func() {
					for ctx.Err() == nil {
						request("greedy")
					}
				})
			}
			var took []time.Duration
			for b.Loop() {
				begun := time.Now()
				request("modest")
				took = append(took, time.Since(begun))
			}
			stop()
			all.Wait()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
