// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"container/list"
	"sync"
	"time"
)

// BacklogBounds bound the memory of a replica for responses that users do not read.
type BacklogBounds struct {
	// Member bounds the bytes of responses of one member, All those of all members. Zero means no bound.
	Member, All int64
	// Grace is how long a write to a user may take before it may be ended because of a bound. Beyond twice a bound it is
	// ended at once.
	Grace time.Duration
}

// Backlog counts the bytes of responses that wait for their users. A response that waits for the member has nothing in
// memory. One that waits for its user has at most a window. So a window is counted only while a write is in progress:
// the count is never too low, and watches without events, however many, do not count. NewBacklog makes it.
type Backlog struct {
	bounds BacklogBounds
	cut    func(Scope)

	mu         sync.Mutex // guards what follows, and all flows
	held       int64      // windows of all writes under way
	members    map[string]*held
	workspaces map[string]*held
	writes     *list.List // of *Flow with a write under way, the oldest first
	timer      *time.Timer
}

// held counts the responses of one member, or of one workspace.
type held struct {
	bytes int64
	flows int
}

// Flow is one response to a user. Its methods, except Close, must not be called concurrently.
type Flow struct {
	backlog           *Backlog
	from              Origin
	member, workspace *held
	cut               func()
	since             time.Time
	at                *list.Element // in writes, nil without a write under way
	cutFor            Scope         // why it was cut
	cutting           chan struct{} // closed when cut has returned, nil if it was not cut
}

// Origin is the member that a response comes from.
type Origin struct {
	// Workspace holds the member: the clusters in it belong together.
	Workspace string
	// Member is unique among all workspaces.
	Member string
	// Window is the most bytes that a response occupies while its user does not read.
	Window int64
}

// NewBacklog makes an empty backlog. cut, if not nil, is called each time a response is cut.
func NewBacklog(bounds BacklogBounds, cut func(Scope)) *Backlog {
	b := &Backlog{bounds: bounds, cut: cut, members: map[string]*held{}, workspaces: map[string]*held{},
		writes: list.New()}
	b.timer = time.AfterFunc(time.Hour, b.look)
	b.timer.Stop()
	return b
}

// Flow begins a response. cut must end the write under way; it is called at most once, without any lock held, and never
// after Close has returned. Close the flow.
func (b *Backlog) Flow(from Origin, cut func()) *Flow {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &Flow{backlog: b, from: from, cut: cut, member: join(b.members, from.Member),
		workspace: join(b.workspaces, from.Workspace)}
}

func join(all map[string]*held, name string) *held {
	h := all[name]
	if h == nil {
		h = &held{}
		all[name] = h
	}
	h.flows++
	return h
}

// Begin must be called before each write to the user.
func (f *Flow) Begin() {
	b := f.backlog
	b.mu.Lock()
	var victims []*Flow
	if f.at == nil && f.cutFor == "" && f.member != nil {
		f.since = time.Now()
		f.at = b.writes.PushBack(f)
		b.add(f, f.from.Window)
		if exceeds(b.held, b.bounds.All) || exceeds(f.member.bytes, b.bounds.Member) {
			victims = b.judge()
		}
	}
	b.mu.Unlock()
	b.end(victims)
}

// End must be called after each write.
func (f *Flow) End() {
	f.backlog.mu.Lock()
	defer f.backlog.mu.Unlock()
	f.backlog.remove(f)
}

// Close ends the response, and waits for cut if it has begun. It may be called again.
func (f *Flow) Close() {
	if cutting := f.leave(); cutting != nil {
		<-cutting
	}
}

func (f *Flow) leave() (cutting chan struct{}) {
	b := f.backlog
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(f)
	if f.member == nil {
		return f.cutting
	}
	if f.member.flows--; f.member.flows == 0 {
		delete(b.members, f.from.Member)
	}
	if f.workspace.flows--; f.workspace.flows == 0 {
		delete(b.workspaces, f.from.Workspace)
	}
	f.member = nil
	return f.cutting
}

// Cut returns the bound because of which the response was cut, empty if it was not.
func (f *Flow) Cut() Scope {
	f.backlog.mu.Lock()
	defer f.backlog.mu.Unlock()
	return f.cutFor
}

// Held returns an upper bound of the bytes held.
func (b *Backlog) Held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

func (b *Backlog) add(f *Flow, bytes int64) {
	b.held += bytes
	f.member.bytes += bytes
	f.workspace.bytes += bytes
}

func (b *Backlog) remove(f *Flow) {
	if f.at != nil {
		b.writes.Remove(f.at)
		f.at = nil
		b.add(f, -f.from.Window)
	}
}

// judge returns the flows to cut, which no longer count, and sets the timer for when a write that is too recent may be
// cut.
func (b *Backlog) judge() []*Flow {
	var victims []*Flow
	for {
		victim, scope, later := b.victim(time.Now())
		if victim == nil {
			if later > 0 {
				b.timer.Reset(later)
			}
			return victims
		}
		b.remove(victim)
		victim.cutFor, victim.cutting = scope, make(chan struct{})
		victims = append(victims, victim)
	}
}

// victim returns the oldest write beyond a bound: of a member that exceeds its own bound; otherwise, if all together
// exceed theirs, of the workspace that holds most, so that a user who stalls many responses loses them first. If it is
// too recent to be cut, later is how long it still is.
func (b *Backlog) victim(now time.Time) (victim *Flow, scope Scope, later time.Duration) {
	var fullest *held
	if exceeds(b.held, b.bounds.All) {
		for _, w := range b.workspaces {
			if fullest == nil || w.bytes > fullest.bytes {
				fullest = w
			}
		}
	}
	for e := b.writes.Front(); e != nil; e = e.Next() {
		f := e.Value.(*Flow) // only flows are in the list
		member := exceeds(f.member.bytes, b.bounds.Member)
		if !member && f.workspace != fullest {
			continue
		}
		scope = ScopeAll
		if member {
			scope = ScopeMember
		}
		if age := now.Sub(f.since); age < b.bounds.Grace && !exceeds(f.member.bytes, 2*b.bounds.Member) &&
			!exceeds(b.held, 2*b.bounds.All) {
			if later == 0 {
				later = b.bounds.Grace - age // those behind are younger, but may be of a member that is worse
			}
			continue
		}
		return f, scope, 0
	}
	return nil, "", later
}

func exceeds(n, bound int64) bool { return bound > 0 && n > bound }

// look cuts what may be cut now. The timer calls it.
func (b *Backlog) look() {
	b.mu.Lock()
	victims := b.judge()
	b.mu.Unlock()
	b.end(victims)
}

// end cuts. The lock is not held: a write's end may take a moment.
func (b *Backlog) end(victims []*Flow) {
	for _, f := range victims {
		if b.cut != nil {
			b.cut(f.cutFor)
		}
		f.cut()
		close(f.cutting)
	}
}
