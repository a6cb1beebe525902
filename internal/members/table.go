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

// table holds the state of all members. The parts of a Registry share it. A method whose name ends in Locked is
// called with mu held.
//
// There is one lock because a change of a member is one step for all parts: with a new tunnel, the losses, the waiting
// requests, the feeds and the count of the workspace change together.
type table struct {
	log logr.Logger
	now func() time.Time

	work sync.WaitGroup  // one for each goroutine that watches a session, and for each that asks agents
	ctx  context.Context // of what asks agents; stop ends it
	stop context.CancelFunc

	mu      sync.Mutex // guards what follows; never held during I/O
	closed  bool
	epoch   int64 // of the newest tunnel
	members map[types.NamespacedName]*member
	losses  losses
}

func newTable(log logr.Logger, now func() time.Time) *table {
	ctx, stop := context.WithCancel(context.Background())
	return &table{log: log, now: now, ctx: ctx, stop: stop, members: map[types.NamespacedName]*member{}}
}

// isHost reports whether a member is a Host, and no Cluster.
func isHost(name types.NamespacedName) bool {
	_, ok := protocol.HostOf(name.Name)
	return ok
}

// member holds the state of one Cluster, or Host. table.mu guards it.
type member struct {
	sessions  []*session    // the newest last
	draining  []*session    // sessions that carry nothing new and no longer count as a connection
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

// memberLocked returns a member, and adds it to the table if nothing is known of it.
func (t *table) memberLocked(name types.NamespacedName) *member {
	m := t.members[name]
	if m == nil {
		m = &member{offers: newOffers()}
		t.members[name] = m
	}
	return m
}

// dropLocked forgets a member whose Cluster is gone and whose last tunnel has ended, or of which nothing is known.
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

// connected reports whether there is a tunnel, wherever it ends.
func (m *member) connected() bool {
	return len(m.sessions) > 0 || slices.ContainsFunc(m.remote, func(r remote) bool { return len(r.record.Tunnels) > 0 })
}

// arrivedLocked is called on a new tunnel, wherever it ends. It forgets the latest call and the loss of the tunnel
// before. If the new one is lost, it was seen last, even if the replica that held it can no longer report that.
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

// epochLocked returns the epoch of a tunnel that a member opens now. It is later than all that are known, however the
// clocks of replicas differ.
func (t *table) epochLocked(m *member) int64 {
	t.epoch = max(t.epoch+1, t.now().UnixNano())
	epoch := t.epoch
	for _, known := range m.routes() {
		epoch = max(epoch, known.epoch+1)
	}
	return epoch
}

// lostLocked records when and why a member lost its last tunnel here.
func (t *table) lostLocked(m *member, cause error) {
	if len(m.sessions) > 0 {
		return
	}
	m.loss = loss{at: t.now(), because: cause}
	// A Cluster that is deleted, or an agent that is revoked, does not come back.
	if !m.connected() && !errors.Is(cause, ErrRevoked) {
		t.losses.lost(m.loss.at)
	}
}

// servesLocked returns why nothing is sent to a member: ErrNotConnected or ErrClones.
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
