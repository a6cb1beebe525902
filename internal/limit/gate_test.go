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

// enter returns a seat, and fails the test if there is none.
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
		t.Errorf("error %v, want a FullError for %s after %s", err, scope, waited)
	}
}

func TestGateBounds(t *testing.T) {
	for name, tt := range map[string]struct {
		bounds limit.Bounds
		taken  []limit.Requester
		next   limit.Requester
		want   limit.Scope
	}{
		"a user gets no more than the share of a user": {limit.Bounds{User: 2},
			[]limit.Requester{asker("a", "m"), asker("a", "n")},
			asker("a", "o"), limit.ScopeUser},
		"another user gets another share": {limit.Bounds{User: 2}, []limit.Requester{asker("a", "m"), asker("a", "n")},
			asker("b", "m"), ""},
		"all users of a member share its limit": {limit.Bounds{Member: 2},
			[]limit.Requester{asker("a", "m"), asker("b", "m")},
			asker("c", "m"), limit.ScopeMember},
		"another member has another limit": {limit.Bounds{Member: 2}, []limit.Requester{asker("a", "m"), asker("b", "m")},
			asker("c", "n"), ""},
		"all requests together have a limit": {limit.Bounds{All: 2}, []limit.Requester{asker("a", "m"), asker("b", "n")},
			asker("c", "o"), limit.ScopeAll},
		"the limit of members does not apply to requests without a member": {limit.Bounds{Member: 1},
			[]limit.Requester{asker("a", ""), asker("b", "")}, asker("c", ""), ""},
		"zero means no limit": {limit.Bounds{}, []limit.Requester{asker("a", "m"), asker("a", "m")}, asker("a", "m"), ""},
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
					t.Errorf("after a release: %v, want a seat", err)
				}
			} else if err != nil {
				t.Error(err)
			}
			for _, s := range append(seats, seat, seat) { // releasing twice has no effect
				s.Release()
			}
			if taken, waiting := g.Load(); taken != 0 || waiting != 0 {
				t.Errorf("%d seats are taken and %d requests wait after all requests have ended, want none", taken, waiting)
			}
		})
	}
}

// queue starts requests that wait. It records their names in the order in which they get their seats. Each request
// returns its seat when it is told to.
type queue struct {
	*limit.Gate
	mu   sync.Mutex // guards the fields below
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
		<-time.After(time.Millisecond) // on a fake clock: the time that the request takes
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
		t.Errorf("%d seats are taken and %d requests wait after all requests have ended, want none", taken, waiting)
	}
}

func newQueue(bounds limit.Bounds) *queue {
	return &queue{Gate: limit.NewGate(bounds, limit.Observer{}), errs: map[string]error{}}
}

func TestGateQueue(t *testing.T) {
	bounds := limit.Bounds{User: 1, All: 1, Queue: 10, QueueUser: 5, Wait: time.Second}
	t.Run("the requests of one user are served in order, and users take turns", func(t *testing.T) {
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
				t.Errorf("error %v, want the error of the context", q.errs["a1"])
			}
			seat.Release()
			q.finish(t, "a1", "a2")
		})
	})
	t.Run("the queue of a user is limited", func(t *testing.T) {
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
	t.Run("a full queue drops the newest request of the user with the most requests, not the first of another user",
		func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newQueue(limit.Bounds{All: 1, Queue: 4, QueueUser: 4, Wait: time.Second})
				seat := enter(t, q.Gate, "x", "m")
				for _, name := range []string{"a1", "a2", "a3", "a4", "b1"} {
					q.join(t.Context(), name[:1], "m", name)
				}
				var full *limit.FullError
				if !errors.As(q.errs["a4"], &full) || full.Scope != limit.ScopeUser {
					t.Errorf("the newest request of the user with the most requests got %v, want it refused", q.errs["a4"])
				}
				seat.Release()
				q.finish(t, "a4", "a1", "b1", "a2", "a3")
			})
		})
	t.Run("one release may admit two requests: one of the same user, and one for the same member", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			q := newQueue(limit.Bounds{User: 1, Member: 1, Queue: 4, QueueUser: 4, Wait: time.Second})
			seat := enter(t, q.Gate, "a", "m")
			q.join(t.Context(), "a", "n", "a to n")
			q.join(t.Context(), "b", "m", "b to m")
			seat.Release()
			synctest.Wait()
			slices.Sort(q.got) // they run concurrently
			q.finish(t, "a to n", "b to m")
		})
	})
}

// One user has ten thousand goroutines, and another sends one request at a time. The clock is fake, so the test
// measures only the order of the queue.
func TestOneUserDoesNotSlowAnother(t *testing.T) {
	const takes = 10 * time.Millisecond
	for name, bounds := range map[string]limit.Bounds{
		"with the default bounds": limit.Defaults().Short,
		"even if one user may take all seats, because their requests then wait in order": {All: 50, Queue: 2000,
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
								time.Sleep(time.Second) // as clients do after a 429
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
					t.Errorf("a request of %s took %s next to a greedy user, want at most twice as long", takes, worst)
				}
			})
		})
	}
}

// Whatever happens concurrently, no limit is exceeded, and in the end no seat is taken.
func TestGateKeepsItsLimitsUnderLoad(t *testing.T) {
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
				t.Errorf("%d seats of %s were taken at once, want at most %d", open[name], name, bound)
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
		t.Errorf("%d seats are taken and %d requests wait after all requests have ended, want none", taken, waiting)
	}
}

// BenchmarkGateWithRoom reports the cost of a seat if one is free. The goal is less than 1 µs. Compare with: go test
// -bench Gate -count 10 ./internal/limit | benchstat -
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

// BenchmarkModestUserBesideGreedyOne reports, in real time, how long a modest user waits next to a user with ten
// thousand goroutines. The request itself takes 1 ms.
func BenchmarkModestUserBesideGreedyOne(b *testing.B) {
	for _, greedy := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("greedy=%d", greedy), func(b *testing.B) {
			g := limit.NewGate(limit.Defaults().Short, limit.Observer{})
			ctx, stop := context.WithCancel(b.Context())
			request := func(user string) {
				seat, err := g.Enter(ctx, asker(user, "m"))
				if err != nil {
					<-time.After(time.Second) // as clients do after a 429
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
