// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet knows which members are connected here, yields a transport to each and wakes those who wait for a change.
package fleet

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNotConnected says that a member has no open tunnel here.
var ErrNotConnected = errors.New("not connected")

// Reasons for the hub to end a tunnel.
var (
	// ErrRevoked ends tunnels of an agent that is no longer the Cluster's.
	ErrRevoked = errors.New("the agent is no longer the cluster's agent")
	// ErrTooManyTunnels ends the oldest tunnel of a member that has more than maxSessions.
	ErrTooManyTunnels = errors.New("too many tunnels of one member")
	// ErrReportEnded ends a tunnel whose agent stopped reporting, as an agent does that is about to stop.
	ErrReportEnded = errors.New("the agent ended its report")
	// ErrReportMalformed ends a tunnel whose agent reported what cannot be read.
	ErrReportMalformed = errors.New("the agent's report cannot be read")
)

// maxSessions bounds the tunnels of one member: two agent replicas, each of which may be opening a new one before it closes the old.
const maxSessions = 4

// drainTimeout is how long the requests of an agent that takes its leave may go on. It is beyond the time that agents give them.
const drainTimeout = 40 * time.Second

// RefusalMemory is how long a refusal is shown after it last happened. Refused agents come back within five minutes.
const RefusalMemory = 10 * time.Minute

// Session is one open tunnel. tunnel.Session is one.
type Session interface {
	http.RoundTripper
	// Done is closed when the tunnel has ended.
	Done() <-chan struct{}
	// Err is why it ended.
	Err() error
	// Drain takes no more requests, and ends the tunnel when those under way are done or ctx ends.
	Drain(ctx context.Context) error
	// Close ends it.
	Close() error
}

// Peer says whose tunnel a session is.
type Peer struct {
	// Cluster that the agent proved to be the agent of.
	Cluster protocol.ClusterRef
	// Key that it proved it with, as registration.KeyID has it.
	Key string
}

// Name of the Cluster on the hub.
func (p Peer) Name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Cluster.Namespace, Name: p.Cluster.Name}
}

// Refusal is why somebody who claimed to be a member was turned away.
type Refusal struct {
	// Reason is one of the Reason constants of api/v1.
	Reason  string
	Message string
	At      time.Time
}

// State is what the fleet knows of a member.
type State struct {
	// Peers of the open tunnels.
	Peers []Peer
	// Report is the newest report of a connected member, nil before the first.
	Report *protocol.Report
	// ReportErr is why a connected member's report cannot be had.
	ReportErr error
	// LastSeen is when the last tunnel ended, zero if none ended since this process started.
	LastSeen time.Time
	// LostBecause is why the last tunnel ended.
	LostBecause error
	// Refusal is the last one of the past minutes, nil if there was none.
	Refusal *Refusal
}

// Connected is whether a tunnel is open.
func (s State) Connected() bool { return len(s.Peers) > 0 }

// Registry holds the tunnels that end in this process. New makes it. All methods may be called concurrently.
type Registry struct {
	log logr.Logger
	now func() time.Time

	sessions sync.WaitGroup // one for each session's watch goroutine

	mu        sync.Mutex // guards what follows; never held during I/O
	closed    bool
	members   map[types.NamespacedName]*member
	listeners []func(types.NamespacedName)
}

// member is what is known of one Cluster. Registry.mu guards it.
type member struct {
	sessions    []*session // the newest last
	draining    []*session // those that carry nothing new and are no connection any more
	lastSeen    time.Time
	lostBecause error
	refusal     *Refusal
	errand      *errand // the latest, nil if there is none
	forgotten   bool    // whether to drop this with the last tunnel
}

// session is one tunnel in the registry. Registry.mu guards report, reportErr and cause.
type session struct {
	Session
	peer      Peer
	report    *protocol.Report
	reportErr error
	cause     error // why we ended it, nil if we did not
}

// New makes an empty registry.
func New(log logr.Logger, now func() time.Time) *Registry {
	return &Registry{log: log, now: now, members: map[types.NamespacedName]*member{}}
}

// OnChange has f called after each change of a member: connected, lost, reported, refused. f must not block.
func (r *Registry) OnChange(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners = append(r.listeners, f)
}

// Add takes over an open tunnel until it ends. The newest tunnel of a member carries its requests. A closed registry closes it.
func (r *Registry) Add(peer Peer, tunnel Session) {
	s := &session{Session: tunnel, peer: peer}
	name := peer.Name()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		tunnel.Close()
		return
	}
	m := r.memberLocked(name)
	m.sessions, m.forgotten, m.errand = append(m.sessions, s), false, nil
	surplus := m.surplusLocked()
	r.sessions.Add(1)
	r.mu.Unlock()

	go r.watch(s)
	if surplus != nil {
		surplus.Close()
	}
	r.log.Info("tunnel opened", "cluster", name)
	r.notify(name)
}

// Transport carries requests to a connected member's agent. It returns ErrNotConnected for any other.
func (r *Registry) Transport(name types.NamespacedName) (http.RoundTripper, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[name]; m != nil && len(m.sessions) > 0 {
		return m.sessions[len(m.sessions)-1], nil
	}
	return nil, ErrNotConnected
}

// State says what is known of a member.
func (r *Registry) State(name types.NamespacedName) State {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil {
		return State{}
	}
	state := State{LastSeen: m.lastSeen, LostBecause: m.lostBecause}
	for _, s := range m.sessions {
		state.Peers = append(state.Peers, s.peer)
	}
	for _, s := range slices.Backward(m.sessions) {
		if s.report != nil || s.reportErr != nil {
			state.Report, state.ReportErr = s.report, s.reportErr
			break
		}
	}
	if m.refusal != nil && r.now().Sub(m.refusal.At) < RefusalMemory {
		refusal := *m.refusal
		state.Refusal = &refusal
	}
	return state
}

// Refused remembers that somebody who claimed to be a member was turned away.
func (r *Registry) Refused(name types.NamespacedName, reason, message string) {
	r.mu.Lock()
	r.memberLocked(name).refusal = &Refusal{Reason: reason, Message: message, At: r.now()}
	r.mu.Unlock()
	r.log.Info("agent refused", "cluster", name, "reason", reason)
	r.notify(name)
}

// Disconnect ends the tunnels of a member whose peer does not satisfy keep.
func (r *Registry) Disconnect(name types.NamespacedName, keep func(Peer) bool) {
	var ended []*session
	r.mu.Lock()
	if m := r.members[name]; m != nil {
		for _, s := range slices.Concat(m.sessions, m.draining) {
			if !keep(s.peer) {
				s.cause = ErrRevoked
				ended = append(ended, s)
			}
		}
	}
	r.mu.Unlock()
	for _, s := range ended {
		s.Close()
	}
}

// Forget ends all tunnels of a Cluster that is gone and drops what is known of it.
func (r *Registry) Forget(name types.NamespacedName) {
	r.Disconnect(name, func(Peer) bool { return false })
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[name]; m != nil {
		m.forgotten = true
		r.dropLocked(name, m)
	}
}

// Close ends all tunnels, takes no more and returns when everything that belonged to them has ended.
func (r *Registry) Close() {
	var all []*session
	r.mu.Lock()
	r.closed = true
	for _, m := range r.members {
		all = append(all, m.sessions...)
		all = append(all, m.draining...)
	}
	r.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	r.sessions.Wait()
}

// Size is the number of connected members and of their tunnels.
func (r *Registry) Size() (members, tunnels int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		if len(m.sessions) > 0 {
			members++
			tunnels += len(m.sessions)
		}
	}
	return members, tunnels
}

// Streams is the number of requests under way in all tunnels.
func (r *Registry) Streams() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	streams := 0
	for _, m := range r.members {
		for _, s := range m.sessions {
			if counting, ok := s.Session.(interface{ Streams() int }); ok {
				streams += counting.Streams()
			}
		}
	}
	return streams
}

func (r *Registry) memberLocked(name types.NamespacedName) *member {
	m := r.members[name]
	if m == nil {
		m = &member{}
		r.members[name] = m
	}
	return m
}

// surplusLocked returns the tunnel that is one too many, if there is one. Those that are being ended already do not count.
func (m *member) surplusLocked() *session {
	var oldest *session
	open := 0
	for _, s := range slices.Backward(m.sessions) {
		if s.cause == nil {
			oldest = s
			open++
		}
	}
	if open <= maxSessions {
		return nil
	}
	oldest.cause = ErrTooManyTunnels
	return oldest
}

// dropLocked forgets a member whose Cluster is gone and whose last tunnel has ended.
func (r *Registry) dropLocked(name types.NamespacedName, m *member) {
	if m.forgotten && len(m.sessions)+len(m.draining) == 0 {
		delete(r.members, name)
	}
}

// drain gives the requests of an agent that takes its leave a moment to end. For everybody else it has gone already.
func (r *Registry) drain(s *session) {
	name := s.peer.Name()
	r.mu.Lock()
	m := r.memberLocked(name)
	without(&m.sessions, s)
	m.draining = append(m.draining, s)
	if s.cause == nil {
		s.cause = ErrReportEnded
	}
	r.lostLocked(m, s.cause)
	r.mu.Unlock()
	r.notify(name)
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	_ = s.Drain(ctx) // it ends either way
}

// ended takes a session out after its tunnel has ended.
func (r *Registry) ended(s *session) {
	name := s.peer.Name()
	r.mu.Lock()
	m := r.memberLocked(name)
	without(&m.draining, s)
	cause := s.cause
	if cause == nil {
		cause = s.Err()
	}
	wasOpen := without(&m.sessions, s)
	if wasOpen {
		r.lostLocked(m, cause)
	}
	r.dropLocked(name, m)
	r.mu.Unlock()
	r.log.Info("tunnel ended", "cluster", name, "cause", errorText(cause))
	if wasOpen {
		r.notify(name)
	}
}

// lostLocked notes when and why a member lost its last tunnel.
func (r *Registry) lostLocked(m *member, cause error) {
	if len(m.sessions) == 0 {
		m.lastSeen, m.lostBecause = r.now(), cause
	}
}

// without takes s out of a list and reports whether it was there.
func without(list *[]*session, s *session) bool {
	i := slices.Index(*list, s)
	if i < 0 {
		return false
	}
	*list = slices.Delete(*list, i, i+1)
	return true
}

func (r *Registry) notify(name types.NamespacedName) {
	r.mu.Lock()
	listeners := r.listeners
	r.mu.Unlock()
	for _, f := range listeners {
		f(name)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
