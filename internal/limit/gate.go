// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limit shares the hub's capacity fairly among users and members.
//
// A Gate hands out seats. A request that finds none waits. The requests of one user are served in order, and the users
// round-robin: a user with ten thousand requests waits behind their own, and another user behind at most one of them. A
// Backlog bounds what the hub holds in memory for users who do not read.
package limit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Gate. Zero means no bound for seats, and no room to wait for the queue.
type Bounds struct {
	// User, Member and All bound the seats taken at once: by one user, in one member, and in all.
	User, Member, All int
	// Queue and QueueUser bound how many may wait at once: in all, and of one user.
	Queue, QueueUser int
	// Wait is how long one may wait.
	Wait time.Duration
}

// Requester identifies the user and the member of a request for a seat. An empty field is bounded by All only.
type Requester struct {
	// User, or another name that gets a fair share, such as an address.
	User string
	// Member that the seat is used for.
	Member string
}

// Scope is the bound that was reached.
type Scope string

// Scopes.
const (
	ScopeUser   Scope = "user"
	ScopeMember Scope = "member"
	ScopeAll    Scope = "all"
)

// FullError means that there was no seat. Gate.Enter returns no other error, except those of contexts.
type FullError struct {
	// Scope of the bound that was reached.
	Scope Scope
	// Waited is how long the request waited for a seat; 0 if the queue was full, or there is none.
	Waited time.Duration
}

// Error says what is full.
func (e *FullError) Error() string {
	if e.Waited > 0 {
		return fmt.Sprintf("no room for one more (bound of: %s) within %s", e.Scope, e.Waited)
	}
	return fmt.Sprintf("no room for one more (bound of: %s)", e.Scope)
}

// Observer has functions that a Gate calls, for metrics. Each may be nil, is called by several goroutines at once and
// must not block.
type Observer struct {
	// Queued receives how long a request has waited, whether or not it got a seat.
	Queued func(d time.Duration)
	// Refused receives what was full each time a request got no seat.
	Refused func(Scope)
}

// Gate hands out seats. NewGate makes it. All methods may be called concurrently.
type Gate struct {
	bounds   Bounds
	observer Observer

	mu      sync.Mutex // guards what follows, and all shares
	open    int        // seats taken
	waiting int
	users   map[string]*share // those with seats or waiters
	members map[string]*share // those with seats or waiters
	turns   []*share          // users with waiters; the next one is first
}

// share is what one user or one member has of a gate.
type share struct {
	name  string
	open  int       // seats taken
	queue []*waiter // of a user: who waits, oldest first
	uses  int       // seats and waiters; none, and the share is forgotten
}

// waiter is a request that waits for a seat. Whatever makes room gives it to a waiter at once, so that there is never
// room for a waiter.
type waiter struct {
	user, member *share
	begun        time.Time
	called       chan struct{} // closed when it got a seat or must go
	seat         *Seat         // nil if it must go
}

// Seat is the right to use the hub. Release it.
type Seat struct {
	gate         *Gate
	user, member *share
	released     atomic.Bool
}

// NewGate makes a gate with all seats free.
func NewGate(bounds Bounds, observer Observer) *Gate {
	return &Gate{bounds: bounds, observer: observer, users: map[string]*share{}, members: map[string]*share{}}
}

// Enter returns a seat. Without room it waits as the bounds allow, and returns a *FullError then, or the cause of ctx's
// end.
func (g *Gate) Enter(ctx context.Context, who Requester) (*Seat, error) {
	g.mu.Lock()
	user, member := use(g.users, who.User), use(g.members, who.Member)
	if full := g.full(user, member); full != "" {
		w, mayWait := g.enqueue(user, member)
		if !mayWait {
			g.forget(user, member)
			g.mu.Unlock()
			return nil, g.refuse(&FullError{Scope: full})
		}
		g.mu.Unlock()
		return g.wait(ctx, w)
	}
	seat := g.seat(user, member)
	g.mu.Unlock()
	return seat, nil
}

// Load is how many seats are taken, and how many requests wait for one.
func (g *Gate) Load() (taken, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.waiting
}

// use finds the share of a name and counts one more use of it.
func use(shares map[string]*share, name string) *share {
	s := shares[name]
	if s == nil {
		s = &share{name: name}
		shares[name] = s
	}
	s.uses++
	return s
}

// forget removes one use, and the shares that have none left.
func (g *Gate) forget(user, member *share) {
	if user.uses--; user.uses == 0 {
		delete(g.users, user.name)
	}
	if member.uses--; member.uses == 0 {
		delete(g.members, member.name)
	}
}

// full is the bound that prevents one more seat, empty if none does.
func (g *Gate) full(user, member *share) Scope {
	switch {
	case user.name != "" && reached(user.open, g.bounds.User):
		return ScopeUser
	case member.name != "" && reached(member.open, g.bounds.Member):
		return ScopeMember
	case reached(g.open, g.bounds.All):
		return ScopeAll
	}
	return ""
}

func reached(n, bound int) bool { return bound > 0 && n >= bound }

func (g *Gate) seat(user, member *share) *Seat {
	g.open++
	user.open++
	member.open++
	return &Seat{gate: g, user: user, member: member}
}

// Release gives the seat back, to the next waiter if there is one. It may be called again.
func (s *Seat) Release() {
	if s == nil || s.released.Swap(true) {
		return
	}
	g := s.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	s.user.open--
	s.member.open--
	g.forget(s.user, s.member)
	if g.waiting > 0 {
		g.callNext()
	}
}

// callNext gives seats to waiters, round-robin by user, until none fits.
func (g *Gate) callNext() {
	for asked := 0; asked < len(g.turns) && !reached(g.open, g.bounds.All); asked++ {
		user := g.turns[asked]
		n := slices.IndexFunc(user.queue, func(w *waiter) bool { return g.full(w.user, w.member) == "" })
		if n < 0 {
			continue
		}
		w := user.queue[n]
		g.dequeue(w, n)
		if len(user.queue) > 0 { // a user that was served is last now
			at := slices.Index(g.turns, user)
			g.turns = append(slices.Delete(g.turns, at, at+1), user)
		}
		w.seat = g.seat(w.user, w.member)
		close(w.called)
		asked-- // the next one has moved up
	}
}

// enqueue adds a waiter if there is room for it. A full queue drops the newest waiter of the user with the most of them
// rather than the first one of another user.
func (g *Gate) enqueue(user, member *share) (*waiter, bool) {
	if g.bounds.Queue <= 0 || g.bounds.Wait <= 0 || reached(len(user.queue), g.bounds.QueueUser) {
		return nil, false
	}
	if g.waiting >= g.bounds.Queue {
		most := slices.MaxFunc(g.turns, func(a, b *share) int { return len(a.queue) - len(b.queue) })
		if len(most.queue) <= len(user.queue)+1 {
			return nil, false
		}
		last := len(most.queue) - 1
		out := most.queue[last]
		g.dequeue(out, last)
		g.forget(out.user, out.member)
		close(out.called)
	}
	w := &waiter{user: user, member: member, begun: time.Now(), called: make(chan struct{})}
	if len(user.queue) == 0 {
		g.turns = append(g.turns, user)
	}
	user.queue = append(user.queue, w)
	g.waiting++
	return w, true
}

// dequeue takes the nth waiter of its user out. Its uses are now its seat's, or to be forgotten.
func (g *Gate) dequeue(w *waiter, n int) {
	w.user.queue = slices.Delete(w.user.queue, n, n+1)
	g.waiting--
	if len(w.user.queue) == 0 {
		w.user.queue = nil
		at := slices.Index(g.turns, w.user)
		g.turns = slices.Delete(g.turns, at, at+1)
	}
}

// wait waits for a seat.
func (g *Gate) wait(ctx context.Context, w *waiter) (*Seat, error) {
	timer := time.NewTimer(g.bounds.Wait)
	defer timer.Stop()
	var gone error
	select {
	case <-w.called:
	case <-timer.C:
	case <-ctx.Done():
		gone = fmt.Errorf("wait for room: %w", context.Cause(ctx))
	}
	seat, full := g.leave(w)
	waited := time.Since(w.begun)
	if g.observer.Queued != nil {
		g.observer.Queued(waited)
	}
	switch {
	case gone != nil:
		seat.Release()
		return nil, gone
	case seat == nil:
		return nil, g.refuse(&FullError{Scope: full, Waited: waited})
	}
	return seat, nil
}

// leave takes the waiter out of the queue if it is still there. It returns its seat, or what is full.
func (g *Gate) leave(w *waiter) (*Seat, Scope) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.called:
		return w.seat, ScopeUser // without a seat: it was dropped for a user with fewer waiters
	default:
	}
	full := g.full(w.user, w.member)
	g.dequeue(w, slices.Index(w.user.queue, w))
	g.forget(w.user, w.member)
	return nil, full
}

func (g *Gate) refuse(err *FullError) error {
	if g.observer.Refused != nil {
		g.observer.Refused(err.Scope)
	}
	return err
}
