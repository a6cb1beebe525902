// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package members knows which members are connected to which replica of the hub, yields a transport to each and wakes those who wait for a change.
package members

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNotConnected says that a member has no open tunnel.
var ErrNotConnected = errors.New("not connected")

// Reasons for the hub to end a tunnel.
var (
	// ErrRevoked ends tunnels of an agent that is no longer the Cluster's.
	ErrRevoked = errors.New("the agent is no longer the cluster's agent")
	// ErrTooManyTunnels ends the oldest tunnel of a member that has more than Bounds allow.
	ErrTooManyTunnels = errors.New("too many tunnels of one member")
	// ErrReportEnded ends a tunnel whose agent stopped reporting, as an agent does that is about to stop.
	ErrReportEnded = errors.New("the agent ended its report")
	// ErrReportMalformed ends a tunnel whose agent reported what cannot be read.
	ErrReportMalformed = errors.New("the agent's report cannot be read")
	// ErrReplayed ends a tunnel that was opened with a connect token that had opened one at another replica before.
	ErrReplayed = errors.New("the connect token was used at another replica of the hub before")
)

// ErrReplicaGone is why a member is lost whose tunnel ended at a replica that is gone.
var ErrReplicaGone = errors.New("the hub's replica that held the tunnel is gone")

// drainTimeout is how long the requests of an agent that disconnects may continue, shells included. The agent itself gives them less time
// when it stops.
const drainTimeout = time.Hour

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

// Peer is the agent at the other end of a session.
type Peer struct {
	// Cluster that the agent proved to be the agent of.
	Cluster protocol.ClusterRef `json:"cluster"`
	// Key that it proved it with, as registration.KeyID has it.
	Key string `json:"key"`
	// Instance names the agent's process among those of its cluster. Empty if it does not say.
	Instance string `json:"instance,omitempty"`
	// NodeAgent reports whether the process is a node agent: its tunnel carries requests while the member has no other.
	NodeAgent bool `json:"nodeAgent,omitempty"`
	// Leads reports whether the process said in its last report that it leads. The replica at which the tunnel ends
	// tells the others.
	Leads bool `json:"leads,omitempty"`
	// TokenID is the ID of the connect token that opened the tunnel, which nothing else may open.
	TokenID string `json:"tokenID,omitempty"`
	// ID of the tunnel. Registry.Add makes it.
	ID string `json:"id"`
	// Epoch orders tunnels: when it was accepted, in nanoseconds of the replica's clock, but later than all that were known of the
	// Cluster there. Registry.Add makes it.
	Epoch int64 `json:"epoch"`
}

// Name of the Cluster on the hub.
func (p Peer) Name() types.NamespacedName {
	return types.NamespacedName{Namespace: p.Cluster.Namespace, Name: p.Cluster.Name}
}

// Rejection is why a client that claimed to be a member was turned away.
type Rejection struct {
	// Reason is one of the Reason constants of api/v1.
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
	// Unproven reports whether any client may have caused it: the client has shown neither a token nor a key of the member.
	Unproven bool `json:"unproven,omitempty"`
}

// Registry holds the tunnels that end in this process, and knows of those that end at other replicas. New makes it. All methods may be
// called concurrently.
type Registry struct {
	log logr.Logger
	now func() time.Time

	sessions sync.WaitGroup  // one for each session's watch goroutine and each call
	ctx      context.Context // of calls; stop ends it
	stop     context.CancelFunc

	mu      sync.Mutex // guards what follows; never held during I/O
	closed  bool
	epoch   int64 // of the newest tunnel
	members map[types.NamespacedName]*member
	// workspaces counts the tunnels that end here, those that carry nothing new included.
	workspaces map[string]int
	bounds     Bounds
	feeds      map[*Feed]struct{}
	losses     losses
	listeners  listeners
	following  following
}

// isHost reports whether a member is a Host, and no Cluster.
func isHost(name types.NamespacedName) bool {
	_, ok := protocol.HostOf(name.Name)
	return ok
}

// member is what is known of one Cluster, or Host. Registry.mu guards it.
type member struct {
	sessions  []*session    // the newest last
	draining  []*session    // those that carry nothing new and are no connection any more
	remote    []remote      // what other replicas know of it, one each
	far       *remoteStream // nil if nothing is read through another replica
	offers    *reportBytes
	loss      loss // of the last tunnel here
	refusal   *Rejection
	lastCall  *agentCall // the latest, nil if there is none
	paused    time.Time  // until when it may open no tunnel
	forgotten bool       // whether to drop this with the last tunnel
	vacancy   *vacancy   // nil while its agent has a leader
	// examination is nil unless its agents are asked whether they are of one cluster.
	examination *examination
	arrival     chan struct{} // closed when there is a new way to it; nil while no request waits for one
}

// loss is when and why a member lost its last tunnel, as one replica sees it.
type loss struct {
	at      time.Time
	because error
}

// session is one tunnel in the registry. Registry.mu guards report, reportErr and cause.
type session struct {
	Session
	peer      Peer
	stream    *stream
	report    *protocol.Report
	reportErr error
	cause     error // why we ended it, nil if we did not
}

// New makes an empty registry.
func New(log logr.Logger, now func() time.Time) *Registry {
	ctx, stop := context.WithCancel(context.Background())
	return &Registry{
		log: log, now: now, ctx: ctx, stop: stop,
		members: map[types.NamespacedName]*member{}, workspaces: map[string]int{}, bounds: DefaultBounds(), feeds: map[*Feed]struct{}{},
	}
}

// Add takes over an open tunnel until it ends, and gives it ID and epoch. The newest tunnel of a member carries its requests. A closed
// registry closes it, and so does one that has heard of a tunnel with the same token at another replica.
func (r *Registry) Add(peer Peer, tunnel Session) {
	peer.ID = rand.Text()
	name := peer.Name()
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		tunnel.Close()
		return
	}
	m := r.memberLocked(name)
	_, refused := r.admitLocked(name) // again: others may have been admitted since this one was
	if m.opened(peer) {
		refused = ErrReplayed
	}
	if refused != nil {
		r.dropLocked(name, m)
		r.mu.Unlock()
		r.log.Info("tunnel refused", "cluster", name, "cause", refused.Error())
		tunnel.Close()
		return
	}
	r.workspaces[name.Namespace]++
	peer.Epoch = r.epochLocked(m)
	s := &session{Session: newLeaving(tunnel), peer: peer, stream: newStream(r, name, m.offers)}
	if !m.connected() && m.lost() {
		r.losses.returned()
	}
	m.sessions, m.forgotten = append(m.sessions, s), false
	m.arrivedLocked()
	surplus := m.surplusLocked(r.bounds.ClusterTunnels)
	r.sessions.Add(1)
	opened := r.listeners.of(name).opened
	r.mu.Unlock()

	go r.watch(s)
	if surplus != nil {
		surplus.Close()
	}
	r.log.Info("tunnel opened", "cluster", name, "instance", peer.Instance, "nodeAgent", peer.NodeAgent)
	r.changed(name)
	for _, f := range opened {
		f(name)
	}
}

// opened reports whether another replica has a tunnel that the same token opened. The token was not known to be used when this one was
// admitted: a client that opens two at the same time can delay the handshake of one until the other is known.
func (m *member) opened(with Peer) bool {
	return with.TokenID != "" && slices.ContainsFunc(m.remote, func(r remote) bool {
		return slices.ContainsFunc(r.record.Tunnels, func(p Peer) bool { return p.TokenID == with.TokenID && p.Key == with.Key })
	})
}

// epochLocked is that of a tunnel that a member opens now. It is after those that are known, however the clocks of replicas differ.
func (r *Registry) epochLocked(m *member) int64 {
	r.epoch = max(r.epoch+1, r.now().UnixNano())
	epoch := r.epoch
	for _, known := range m.routes() {
		epoch = max(epoch, known.epoch+1)
	}
	return epoch
}

// Refused remembers the rejection of a client that claimed to be a member, and reports whether listeners were notified. Within a minute of another
// rejection they are not.
func (r *Registry) Refused(name types.NamespacedName, reason, message string) (told bool) {
	r.mu.Lock()
	m, now := r.memberLocked(name), r.now()
	if m.refusal != nil && !m.refusal.Unproven && now.Sub(m.refusal.At) < refusalPause {
		r.mu.Unlock()
		return false
	}
	m.refusal = &Rejection{Reason: reason, Message: message, At: now}
	r.mu.Unlock()
	r.log.Info("agent refused", "cluster", name, "reason", reason, "message", message)
	r.changed(name)
	return true
}

// Local are the tunnels of a member that end here, those that carry nothing new included.
func (r *Registry) Local(name types.NamespacedName) []Peer {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m == nil {
		return nil
	}
	var peers []Peer
	for _, s := range slices.Concat(m.sessions, m.draining) {
		peers = append(peers, s.peer)
	}
	return peers
}

// Disconnect ends the tunnels of a member that end here and whose peer does not satisfy keep.
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

// Forget ends all tunnels here of a Cluster that is gone and drops what is known of it.
func (r *Registry) Forget(name types.NamespacedName) {
	r.Disconnect(name, func(Peer) bool { return false })
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.members[name]; m != nil {
		m.forgotten = true
		r.dropLocked(name, m)
		r.notifyFeedsLocked(name)
	}
}

// Close ends all tunnels, takes no more and returns when everything that belonged to them has ended.
func (r *Registry) Close() {
	var all []*session
	r.mu.Lock()
	r.closed = true
	for _, m := range r.members {
		m.occupied()
		all = append(all, m.sessions...)
		all = append(all, m.draining...)
	}
	r.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	r.stop()
	r.sessions.Wait()
}

func (r *Registry) memberLocked(name types.NamespacedName) *member {
	m := r.members[name]
	if m == nil {
		m = &member{offers: newOffers()}
		r.members[name] = m
	}
	return m
}

// dropLocked forgets a member whose Cluster is gone and whose last tunnel has ended, or of which nothing is known.
func (r *Registry) dropLocked(name types.NamespacedName, m *member) {
	if m.connected() || len(m.draining) > 0 {
		return
	}
	if m.forgotten || len(m.remote) == 0 && m.loss.at.IsZero() && m.refusal == nil && m.arrival == nil && m.paused.IsZero() {
		m.occupied()
		delete(r.members, name)
		if m.far != nil {
			m.far.stop()
		}
	}
}

// connected reports whether there is a tunnel, wherever it ends.
func (m *member) connected() bool {
	return len(m.sessions) > 0 || slices.ContainsFunc(m.remote, func(r remote) bool { return len(r.record.Tunnels) > 0 })
}

// arrivedLocked is called on a new tunnel, wherever it ends. It forgets the latest call and the loss of the tunnel before: if this one is lost,
// it is the one that was seen last, even if the replica that held it can no longer report that.
func (m *member) arrivedLocked() {
	m.lastCall, m.loss = nil, loss{}
	m.wakeLocked()
}

// lost reports whether the member has had a tunnel, as far as this or another replica remembers.
func (m *member) lost() bool {
	return !m.loss.at.IsZero() || slices.ContainsFunc(m.remote, func(r remote) bool { return r.record.Loss != nil })
}

// wakeLocked wakes the requests that wait for a way to a member.
func (m *member) wakeLocked() {
	if m.arrival != nil {
		close(m.arrival)
		m.arrival = nil
	}
}
