// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package limit shares the hub's capacity fairly among users and members.
//
// A Gate hands out seats to requests. A request waits if no seat is free. The requests of one user are served in order,
// and users take turns: even if one user sends ten thousand requests, any other user waits for at most one of them. A
// Backlog limits the memory that the hub uses for unread responses.
package limit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds are the limits of a Gate. For seats, zero means no limit. For the queue, zero means that no request can wait.
type Bounds struct {
	// User, Member and All limit how many seats may be taken at the same time: by one user, for one member, and in
	// total.
	User, Member, All int
	// Queue and QueueUser limit how many requests may wait at the same time, in total and from one user.
	Queue, QueueUser int
	// Wait is how long a request may wait.
	Wait time.Duration
}

// Requester identifies the user and the member of a request for a seat. The limit for users does not apply to requests
// without a user, and the limit for members does not apply to requests without a member.
type Requester struct {
	// User is the name of a user, or another name that gets a fair share, such as an address.
	User string
	// Member is the member that the seat is used for.
	Member string
}

// Scope is the limit that was reached.
type Scope string

// Limits that can be reached.
const (
	ScopeUser   Scope = "user"
	ScopeMember Scope = "member"
	ScopeAll    Scope = "all"
)

// FullError is returned if no seat becomes free in time. It is the only error of Gate.Enter, apart from context errors.
type FullError struct {
	// Scope is the limit that was reached.
	Scope Scope
	// Waited is how long the request waited for a seat. It is 0 if the queue was full or if there is no queue.
	Waited time.Duration
}

// Error returns a message that names the limit.
func (e *FullError) Error() string {
	if e.Waited > 0 {
		return fmt.Sprintf("no room for one more (bound of: %s) within %s", e.Scope, e.Waited)
	}
	return fmt.Sprintf("no room for one more (bound of: %s)", e.Scope)
}

// Observer holds functions that a Gate calls for metrics. Each of them may be nil. They are called from several
// goroutines concurrently and must not block.
type Observer struct {
	// Queued is called with the time that a request waited, whether or not it got a seat.
	Queued func(d time.Duration)
	// Refused is called when a request does not get a seat. Its argument is the limit that was reached.
	Refused func(Scope)
}

// Gate hands out seats. Use NewGate to create a Gate. All methods are safe for concurrent use.
type Gate struct {
	bounds   Bounds
	observer Observer

	mu      sync.Mutex // guards the fields below, and all shares
	open    int        // number of seats taken
	waiting int
	users   map[string]*share // users with seats or waiters, by name
	members map[string]*share // members with seats or waiters, by name
	turns   []*share          // users with waiters; the next user is first
}

// share holds the seats and waiters of one user or one member.
type share struct {
	name  string
	open  int       // number of seats taken
	queue []*waiter // for a user: the waiters, oldest first
	uses  int       // number of seats and waiters; at 0, the share is removed
}

// waiter is a request that waits for a seat. A released seat is immediately assigned to a waiter, so no seat is free
// while a request is waiting.
type waiter struct {
	user, member *share
	begun        time.Time
	called       chan struct{} // closed when the waiter has received a seat or has been dropped
	seat         *Seat         // nil if the waiter has been dropped
}

// Seat is the right to use the hub for one request. It must be released.
type Seat struct {
	gate         *Gate
	user, member *share
	released     atomic.Bool
}

// NewGate returns a Gate in which all seats are free.
func NewGate(bounds Bounds, observer Observer) *Gate {
	return &Gate{bounds: bounds, observer: observer, users: map[string]*share{}, members: map[string]*share{}}
}

// Enter returns a seat. If there is no free seat, it waits as long as the limits allow, and then returns a *FullError.
// If ctx is done first, it returns the cause.
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

// Load returns how many seats are taken, and how many requests are waiting for one.
func (g *Gate) Load() (taken, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.waiting
}

// use returns the share with the given name, and increments its use count.
func use(shares map[string]*share, name string) *share {
	s := shares[name]
	if s == nil {
		s = &share{name: name}
		shares[name] = s
	}
	s.uses++
	return s
}

// forget decrements the use count of both shares, and drops a share whose use count is zero.
func (g *Gate) forget(user, member *share) {
	if user.uses--; user.uses == 0 {
		delete(g.users, user.name)
	}
	if member.uses--; member.uses == 0 {
		delete(g.members, member.name)
	}
}

// full returns the limit that has been reached, or "" if another seat can be taken.
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

// Release returns the seat to the gate. If a request is waiting for a seat, it may get this one. Release may be called
// more than once.
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

// callNext gives seats to waiters, taking turns among users, until no more seats can be given.
func (g *Gate) callNext() {
	for asked := 0; asked < len(g.turns) && !reached(g.open, g.bounds.All); asked++ {
		user := g.turns[asked]
		n := slices.IndexFunc(user.queue, func(w *waiter) bool { return g.full(w.user, w.member) == "" })
		if n < 0 {
			continue
		}
		w := user.queue[n]
		g.dequeue(w, n)
		if len(user.queue) > 0 { // the user has been served and is now last
			at := slices.Index(g.turns, user)
			g.turns = append(slices.Delete(g.turns, at, at+1), user)
		}
		w.seat = g.seat(w.user, w.member)
		close(w.called)
		asked-- // the next user has moved up
	}
}

// enqueue adds a waiter if there is room for it. If the queue is full, it drops the newest waiter of the user with the
// most waiters, rather than the first waiter of another user.
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

// dequeue removes the nth waiter of a user. The caller must then give the waiter a seat, or call forget for the
// waiter's shares.
func (g *Gate) dequeue(w *waiter, n int) {
	w.user.queue = slices.Delete(w.user.queue, n, n+1)
	g.waiting--
	if len(w.user.queue) == 0 {
		w.user.queue = nil
		at := slices.Index(g.turns, w.user)
		g.turns = slices.Delete(g.turns, at, at+1)
	}
}

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

// leave removes the waiter from the queue if it is still there. It returns the waiter's seat, or the limit that was
// reached.
func (g *Gate) leave(w *waiter) (*Seat, Scope) {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.called:
		return w.seat, ScopeUser // the seat is nil if the waiter was dropped in favor of a user with fewer waiters
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
