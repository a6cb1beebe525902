// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress receives the status of plans from the members that run them.
//
// A Listener runs on the leading manager. It has one stream open to each connected member that a plan follows, and dials no other. The last
// status is kept while a member is away; a new leader knows nothing until the agents have reported.
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

// Members gives a listener access to the connected members.
type Members interface {
	State(types.NamespacedName) members.State
	// Leading returns a transport to the agent that runs plans.
	Leading(types.NamespacedName) (http.RoundTripper, error)
	// TooFast disconnects a member for a while because its agent sends more events than it may.
	TooFast(name types.NamespacedName, what string)
}

// Options of a Listener.
type Options struct {
	Members Members
	// Pause is the wait after a first failure; it doubles up to maxPause. Zero means firstPause.
	Pause time.Duration
	Log   logr.Logger
}

// State is what is known of a plan in a member.
type State struct {
	// Connected reports whether the member is connected.
	Connected bool
	// Refuses is why its agent runs no plans, ReasonAgentTooOld or ReasonAgentReadOnly; empty if it does, or if it is not connected.
	Refuses string
	// Reported reports whether its agent has reported all its plans on a stream that is open. Otherwise Hold and Status may be old or empty.
	Reported bool
	// Silent is since when a stream is open without a report of all plans; zero if there is one, or no stream.
	Silent time.Time
	// Followed reports whether the plan follows the member.
	Followed bool
	// Hold says why the member takes no part at present; empty if it does.
	Hold string
	// Status is that of the Plan in the member, nil if it is not there. It is shared and must not be changed.
	Status *v1.PlanStatus
}

// Listener keeps what members report of plans. It listens after Start. All methods may be called concurrently.
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
	links    map[types.NamespacedName]string                            // why connected members refuse plans, empty if they run them
	changed  []func(plan types.NamespacedName)
	linked   []func(member types.NamespacedName)
}

// member is one Cluster that a plan follows.
type member struct {
	name    types.NamespacedName
	plans   map[string]struct{} // that follow it
	refuses string
	hold    string
	states  map[string]*v1.PlanStatus
	stream  *stream   // nil if there is none
	silent  time.Time // since when the stream is not synced
}

// stream is an open stream of an agent's reports.
type stream struct {
	cancel context.CancelFunc
	wake   chan struct{} // has a value when a retry is worthwhile: the agent may lead now
	peers  []string      // the tunnels when it was opened
	synced bool
	hold   string
	offer  map[string]*v1.PlanStatus // states before synced
	pace   *members.Pace             // of events that are read
}

// New returns a listener. It opens no stream before Start.
func New(o Options) *Listener {
	if o.Pause == 0 {
		o.Pause = firstPause
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Listener{Options: o, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{},
		followed: map[types.NamespacedName]map[types.NamespacedName]struct{}{}, links: map[types.NamespacedName]string{}}
}

// OnChange calls f after the state of a plan changed in a member that it follows. f must not block.
func (l *Listener) OnChange(f func(plan types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, f)
}

// OnLink calls f after a member connected or disconnected, or its agent began or ceased to accept plans. f must not block.
func (l *Listener) OnLink(f func(member types.NamespacedName)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.linked = append(l.linked, f)
}

// Follow sets the members that a plan follows.
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
		m.closeStreamLocked()
		delete(l.members, m.name)
	}
}

// State returns the state of a plan in a member that it follows; for other members only the connection.
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
		if state.Reported = m.stream.synced; !state.Reported {
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

// linkLocked notes whether a member is connected and accepts plans, and reports whether that changed.
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

// Streams returns the number of open streams.
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

// lookLocked reads a member's connection, and opens or closes its stream accordingly.
func (l *Listener) lookLocked(m *member) {
	if !l.running {
		return
	}
	state := l.Members.State(m.name)
	if m.stream != nil && (!state.Connected() || !m.stream.current(state.Peers)) {
		m.closeStreamLocked()
	}
	if !state.Connected() || state.Report == nil {
		return
	}
	m.refuses = refusal(state.Report)
	switch {
	case m.refuses != "":
		m.closeStreamLocked()
	case m.stream == nil:
		l.openLocked(m, state.Peers)
	case !m.stream.synced:
		m.stream.wakeUp()
	}
}

func (m *member) closeStreamLocked() {
	if m.stream != nil {
		m.stream.cancel()
		m.stream = nil
	}
}

// allLocked returns the plans that follow a member.
func (m *member) allLocked() []types.NamespacedName {
	plans := make([]types.NamespacedName, 0, len(m.plans))
	for name := range m.plans {
		plans = append(plans, types.NamespacedName{Namespace: m.name.Namespace, Name: name})
	}
	return plans
}

// notify calls the functions of OnChange for the plans. The caller holds no lock.
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

// refusal returns why an agent runs no plans, empty if it does.
func refusal(r *protocol.Report) string {
	switch {
	case r.Profile == string(v1.ProfileReadOnly):
		return v1.ReasonAgentReadOnly
	case !r.Has(protocol.FeaturePlans):
		return v1.ReasonAgentTooOld
	}
	return ""
}
