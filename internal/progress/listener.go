// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress hears from members how far they are with the plans that the hub gave them.
//
// A Listener runs on the leading manager. It has one stream open to each member that somebody follows and that is connected, and dials nobody
// else. What a member said last is kept while it is away; a new leader knows nothing until it has heard.
package progress

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// Members is what a listener needs of the connected members.
type Members interface {
	State(types.NamespacedName) members.State
	// Leading leads to the agent that runs plans.
	Leading(types.NamespacedName) (http.RoundTripper, error)
	// TooFast turns a member away for a while whose agent says more of something than it may.
	TooFast(name types.NamespacedName, what string)
}

// Options of a Listener.
type Options struct {
	Members Members
	// Pause is how long is waited after a first failure; it doubles up to maxPause. Zero means firstPause.
	Pause time.Duration
	Log   logr.Logger
}

// State is what is known of a plan in a member.
type State struct {
	// Connected is whether the member is.
	Connected bool
	// Refuses is why its agent runs no plans, ReasonAgentTooOld or ReasonAgentReadOnly; empty if it does, or if it is not connected.
	Refuses string
	// Heard is whether its agent has told all, on a stream that is open. What follows may otherwise be old, or nothing.
	Heard bool
	// Silent is since when its agent has been asked and has not told all; zero if it has, or is not asked.
	Silent time.Time
	// Followed is whether the plan follows the member.
	Followed bool
	// Hold says why the member takes no part at present; empty if it does.
	Hold string
	// Status is that of the Plan in the member, nil for one that is not there. It is shared and must not be changed.
	Status *v1.PlanStatus
}

// Listener keeps what members say of plans. New makes it; Start has it listen. All methods may be called concurrently.
type Listener struct {
	Options
	ctx   context.Context // of all streams; stop ends it
	stop  context.CancelFunc
	tasks sync.WaitGroup

	mu       sync.Mutex // guards what follows and all members; never held during I/O
	running  bool
	closed   bool
	members  map[types.NamespacedName]*member
	followed map[types.NamespacedName]map[types.NamespacedName]struct{} // by plan, its members
	links    map[types.NamespacedName]string                            // why connected members refuse plans, for all that are
	changed  []func(plan types.NamespacedName)
	linked   []func(member types.NamespacedName)
}

// member is one Cluster that somebody follows.
type member struct {
	name    types.NamespacedName
	plans   map[string]struct{} // that follow it
	refuses string
	hold    string
	states  map[string]*v1.PlanStatus
	stream  *stream   // nil if there is none
	silent  time.Time // since when the stream has not told all
}

// stream is what an agent tells, as long as it does.
type stream struct {
	cancel context.CancelFunc
	wake   chan struct{} // has a value when it is worth asking again: the agent may lead by now
	peers  []string      // tunnels that there were when it was opened
	synced bool
	hold   string
	offer  map[string]*v1.PlanStatus // before all has been told
	pace   *members.Pace             // of events that are read
}

// New makes a listener that listens to nobody before Start.
func New(o Options) *Listener {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Listener{Options: o, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{},
		followed: map[types.NamespacedName]map[types.NamespacedName]struct{}{}, links: map[types.NamespacedName]string{}}
}

// OnChange has f called after something became known of a plan in a member that it follows. f must not block.
func (l *Listener) OnChange(f func(plan types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// OnLink has f called after a member was connected or lost, or its agent became one that runs plans or runs none. f must not block.
func (l *Listener) OnLink(f func(member types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.linked = append(l.linked, f)
}

// Follow says of which members a plan wants to hear, in place of those it named before.
func (l *Listener) Follow(plan types.NamespacedName, members []types.NamespacedName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	was, is := l.followed[plan], make(map[types.NamespacedName]struct{}, len(members))
	for _, name := range members {
		is[name] = struct{}{}
		if _, known := was[name]; known {
			continue
		}
		m := l.members[name]
		if m == nil {
			m = &member{name: name, plans: map[string]struct{}{}, states: map[string]*v1.PlanStatus{}}
			l.members[name] = m
		}
		m.plans[plan.Name] = struct{}{}
		l.lookLocked(m)
	}
	for name := range was {
		if _, still := is[name]; !still {
			l.leaveLocked(l.members[name], plan.Name)
		}
	}
	if l.followed[plan] = is; len(is) == 0 {
		delete(l.followed, plan)
	}
}

func (l *Listener) leaveLocked(m *member, plan string) {
	delete(m.plans, plan)
	if len(m.plans) == 0 {
		m.hangUpLocked()
		delete(l.members, m.name)
	}
}

// State is what is known of a plan in a member that it follows; of others only the connection.
func (l *Listener) State(plan string, name types.NamespacedName) State {
	state := State{}
	connection := l.Members.State(name)
	state.Connected = connection.Connected()
	if state.Connected && connection.Report != nil {
		state.Refuses = refusal(connection.Report)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.members[name]
	if m == nil {
		return state
	}
	if state.Connected && state.Refuses == "" {
		state.Refuses = m.refuses
	}
	_, state.Followed = m.plans[plan]
	if m.stream != nil {
		if state.Heard = m.stream.synced; !state.Heard {
			state.Silent = m.silent
		}
	}
	state.Hold, state.Status = m.hold, m.states[plan]
	return state
}

// Changed looks at a member's connection. It is for members.Registry.OnChange.
func (l *Listener) Changed(name types.NamespacedName) {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	var listeners []func(types.NamespacedName)
	if l.linkLocked(name) {
		listeners = slices.Clone(l.linked)
	}
	if m := l.members[name]; m != nil {
		l.lookLocked(m)
	}
	l.mu.Unlock()
	for _, f := range listeners {
		f(name)
	}
}

// linkLocked takes over whether a member is connected and runs plans, and is whether that is news.
func (l *Listener) linkLocked(name types.NamespacedName) bool {
	was, known := l.links[name]
	state := l.Members.State(name)
	if !state.Connected() || state.Report == nil {
		delete(l.links, name)
		return known
	}
	is := refusal(state.Report)
	l.links[name] = is
	return !known || was != is
}

// Start listens until ctx ends, and returns when no stream is open any more.
func (l *Listener) Start(ctx context.Context) error {
	l.mu.Lock()
	l.running = true
	for _, m := range l.members {
		l.lookLocked(m)
	}
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.running, l.closed = false, true
	l.mu.Unlock()
	l.stop()
	l.tasks.Wait()
	return nil
}

// Streams is how many members are listened to.
func (l *Listener) Streams() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	open := 0
	for _, m := range l.members {
		if m.stream != nil {
			open++
		}
	}
	return open
}

// lookLocked takes over what the fleet knows of a member's connection.
func (l *Listener) lookLocked(m *member) {
	if !l.running {
		return
	}
	state := l.Members.State(m.name)
	if m.stream != nil && (!state.Connected() || !m.stream.current(state.Peers)) {
		m.hangUpLocked()
	}
	if !state.Connected() || state.Report == nil {
		return
	}
	m.refuses = refusal(state.Report)
	switch {
	case m.refuses != "":
		m.hangUpLocked()
	case m.stream == nil:
		l.openLocked(m, state.Peers)
	case !m.stream.synced:
		m.stream.wakeUp()
	}
}

func (m *member) hangUpLocked() {
	if m.stream != nil {
		m.stream.cancel()
		m.stream = nil
	}
}

// allLocked are the plans that follow a member.
func (m *member) allLocked() []types.NamespacedName {
	plans := make([]types.NamespacedName, 0, len(m.plans))
	for name := range m.plans {
		plans = append(plans, types.NamespacedName{Namespace: m.name.Namespace, Name: name})
	}
	return plans
}

// notify tells plans that something became known. The caller holds no lock.
func (l *Listener) notify(plans []types.NamespacedName) {
	l.mu.Lock()
	listeners := slices.Clone(l.changed)
	l.mu.Unlock()
	for _, plan := range plans {
		for _, f := range listeners {
			f(plan)
		}
	}
}

// refusal is why an agent runs no plans.
func refusal(r *protocol.Report) string {
	switch {
	case r.Profile == string(v1.ProfileReadOnly):
		return v1.ReasonAgentReadOnly
	case !r.Has(protocol.FeaturePlans):
		return v1.ReasonAgentTooOld
	}
	return ""
}
