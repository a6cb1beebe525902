// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package limit

import (
	"container/list"
	"sync"
	"time"
)

// BacklogBounds limits the memory that a replica uses for responses that users are not reading.
type BacklogBounds struct {
	// Member limits the bytes of responses from one member. All limits the bytes of responses from all members. Zero means
	// no limit.
	Member, All int64
	// Grace is how long a write to a user may take before it can be aborted because a limit is exceeded. If usage
	// exceeds twice the limit, writes are aborted immediately.
	Grace time.Duration
}

// Backlog counts the bytes of responses that are waiting for users to read them. A response occupies memory only while
// its user is not reading it, and never occupies more than one window. Backlog therefore counts one window for each
// write in progress. As a result, the count is never too low, and idle watches are not counted. Use NewBacklog to
// create a Backlog.
type Backlog struct {
	bounds BacklogBounds
	cut    func(Scope)

	mu         sync.Mutex // guards the fields below, and all flows
	held       int64      // total size of the windows of all writes in progress
	members    map[string]*held
	workspaces map[string]*held
	writes     *list.List // *Flow values with a write in progress, oldest first
	timer      *time.Timer
}

// held counts the responses from one member or one workspace.
type held struct {
	bytes int64
	flows int
}

// Flow is one response to a user. Its methods, except Close, are not safe for concurrent use.
type Flow struct {
	backlog           *Backlog
	from              Origin
	member, workspace *held
	cut               func()
	since             time.Time
	at                *list.Element // element in writes; nil if no write is in progress
	cutFor            Scope         // the limit that caused the cut
	cutting           chan struct{} // closed when cut has returned; nil if the flow was not cut
}

// Origin is the member that a response comes from.
type Origin struct {
	// Workspace is the member's workspace.
	Workspace string
	// Member is the name of the member. It is unique across all workspaces.
	Member string
	// Window is the largest number of bytes that a response occupies while its user is not reading it.
	Window int64
}

// NewBacklog returns an empty backlog. If cut is not nil, it is called each time a response is cut.
func NewBacklog(bounds BacklogBounds, cut func(Scope)) *Backlog {
	b := &Backlog{bounds: bounds, cut: cut, members: map[string]*held{}, workspaces: map[string]*held{},
		writes: list.New()}
	b.timer = time.AfterFunc(time.Hour, b.look)
	b.timer.Stop()
	return b
}

// Flow starts a response. The cut function must end the write in progress. It is called at most once, without any lock
// held, and never after Close has returned. The caller must close the flow.
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

// Close ends the response. If cut has started, Close waits for it. It may be called more than once.
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

// Cut returns the limit that caused the response to be cut, or "" if it was not cut.
func (f *Flow) Cut() Scope {
	f.backlog.mu.Lock()
	defer f.backlog.mu.Unlock()
	return f.cutFor
}

// Held returns an upper bound for the number of bytes that unread responses occupy.
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

// judge returns the flows to cut, and stops counting them. If a write is too recent to be cut, judge sets a timer for
// it.
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

// victim returns the oldest write that must be aborted because of a limit. If a member exceeds its own limit, the
// victim is a write from that member. If all responses combined exceed their limit, the victim is a write from the
// workspace that holds the most bytes, so a user who stalls many responses is affected first. If the write is too
// recent to be cut, victim returns nil, and later is the time until it can be cut.
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
		f := e.Value.(*Flow) // the list contains only flows
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
				// the next writes are more recent, but may come from a member that exceeds its limit by more
				later = b.bounds.Grace - age
			}
			continue
		}
		return f, scope, 0
	}
	return nil, "", later
}

func exceeds(n, bound int64) bool { return bound > 0 && n > bound }

// look cuts the flows that can be cut now. The timer calls it.
func (b *Backlog) look() {
	b.mu.Lock()
	victims := b.judge()
	b.mu.Unlock()
	b.end(victims)
}

// end cuts flows. The caller must not hold the lock, because ending a write may take some time.
func (b *Backlog) end(victims []*Flow) {
	for _, f := range victims {
		if b.cut != nil {
			b.cut(f.cutFor)
		}
		f.cut()
		close(f.cutting)
	}
}
