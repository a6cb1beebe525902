// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// table holds the state of all members. The parts of a Registry share it. Methods whose names end in Locked must be
// called with mu held.
//
// There is only one lock, because each change to a member must be atomic across all parts. For example, a new tunnel
// affects the losses, the waiting requests, the feeds and the tunnel count of the workspace.
type table struct {
	log logr.Logger
	now func() time.Time

	work sync.WaitGroup  // counts the goroutines that watch sessions or send requests to agents
	ctx  context.Context // the context of requests to agents; stop cancels it
	stop context.CancelFunc

	mu      sync.Mutex // guards the following fields; never held during I/O
	closed  bool
	epoch   int64 // the epoch of the newest tunnel
	members map[types.NamespacedName]*member
	losses  losses
}

// isHost reports whether a member is a Host rather than a Cluster.
func isHost(name types.NamespacedName) bool {
	_, ok := protocol.HostOf(name.Name)
	return ok
}

// member holds the state of one Cluster or Host. It is guarded by table.mu.
type member struct {
	sessions  []*session    // sorted, newest last
	draining  []*session    // sessions that accept no new requests and no longer count as a connection
	remote    []remote      // other replicas' records of the member, one element per replica
	far       *remoteStream // nil if no stream is read through another replica
	offers    *reportBytes
	loss      loss // the loss of the last tunnel to this replica
	refusal   *Rejection
	lastCall  *agentCall // the latest call, or nil if there is none
	paused    time.Time  // the member cannot open a tunnel until this time
	forgotten bool       // set if the member is dropped when its last tunnel ends
	vacancy   *vacancy   // nil while one of its agents is the leader
	// examination is nil unless the hub is querying the agents to determine whether all of them belong to the same
	// cluster.
	examination *examination
	arrival     chan struct{} // closed when the member has a new route; nil while no request is waiting for one
}

// loss records when and why a member lost its last tunnel to one replica.
type loss struct {
	at      time.Time
	because error
}

// memberLocked returns a member, adding it to the table if necessary.
func (t *table) memberLocked(name types.NamespacedName) *member {
	m := t.members[name]
	if m == nil {
		m = &member{offers: newOffers()}
		t.members[name] = m
	}
	return m
}

// dropLocked removes a member that has no tunnels from the table if its Cluster is gone or the table has no other
// information about the member.
func (t *table) dropLocked(name types.NamespacedName, m *member) {
	if m.connected() || len(m.draining) > 0 {
		return
	}
	unknown := len(m.remote) == 0 && m.loss.at.IsZero() && m.refusal == nil && m.arrival == nil && m.paused.IsZero()
	if m.forgotten || unknown {
		m.occupied()
		delete(t.members, name)
		if m.far != nil {
			m.far.stop()
		}
	}
}

// connected reports whether the member has a tunnel to any replica.
func (m *member) connected() bool {
	return len(m.sessions) > 0 || slices.ContainsFunc(m.remote, func(r remote) bool { return len(r.record.Tunnels) > 0 })
}

// arrivedLocked must be called for each new tunnel to any replica. It discards the latest call and the loss of the
// previous tunnel, so that LastSeen never refers to the previous tunnel if the new one is lost.
func (m *member) arrivedLocked() {
	m.lastCall, m.loss = nil, loss{}
	m.wakeLocked()
}

// lost reports whether the member has lost a tunnel to any replica, according to the replicas' records.
func (m *member) lost() bool {
	return !m.loss.at.IsZero() || slices.ContainsFunc(m.remote, func(r remote) bool { return r.record.Loss != nil })
}

// wakeLocked wakes the requests that are waiting for a route to a member.
func (m *member) wakeLocked() {
	if m.arrival != nil {
		close(m.arrival)
		m.arrival = nil
	}
}

// epochLocked returns the epoch for a member's new tunnel. It is greater than all known epochs of the member's tunnels,
// even if the replicas' clocks differ.
func (t *table) epochLocked(m *member) int64 {
	t.epoch = max(t.epoch+1, t.now().UnixNano())
	epoch := t.epoch
	for _, known := range m.routes() {
		epoch = max(epoch, known.epoch+1)
	}
	return epoch
}

// lostLocked records when and why a member lost its last tunnel to this replica.
func (t *table) lostLocked(m *member, cause error) {
	if len(m.sessions) > 0 {
		return
	}
	m.loss = loss{at: t.now(), because: cause}
	// If the Cluster was deleted or the agent was revoked, the agent does not reconnect.
	if !m.connected() && !errors.Is(cause, ErrRevoked) {
		t.losses.lost(m.loss.at)
	}
}

// servesLocked returns nil if requests can be sent to a member. Otherwise, it returns ErrNotConnected or ErrClones.
func (t *table) servesLocked(name types.NamespacedName) error {
	m := t.members[name]
	switch {
	case m == nil || !m.connected():
		return ErrNotConnected
	case m.clones() != nil:
		return ErrClones
	}
	return nil
}
