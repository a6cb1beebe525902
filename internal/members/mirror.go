// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Mirror holds the most recently reported state of another replica's members. Its owner calls Begin, and then Update
// and Complete as reports arrive. When the replica cannot be reached, the owner calls Detach, and then either Begin
// again or Close. A Mirror is not safe for concurrent use.
type Mirror struct {
	table   *table
	notices *Notices
	replica string // the replica's name in logs

	// The following fields are guarded by table.mu.
	via      func(Peer) http.RoundTripper // nil while the replica is unreachable
	round    int                          // the number of calls to Begin
	rounds   map[types.NamespacedName]int // the round in which each member was last reported
	detached time.Time                    // when the replica became unreachable
}

// remote holds another replica's record of a member. It is guarded by table.mu.
type remote struct {
	mirror *Mirror
	record Record
}

// carrier returns a transport through a tunnel that ends at the other replica, or nil while that replica is
// unreachable.
func (r remote) carrier(p Peer) http.RoundTripper {
	if r.mirror.via == nil {
		return nil
	}
	return r.mirror.via(p)
}

// Mirror returns an empty mirror of another replica. The name of the replica is used in logs.
func (r *Replicas) Mirror(replica string) *Mirror {
	return &Mirror{table: r.table, notices: r.notices, replica: replica, rounds: map[types.NamespacedName]int{}}
}

// Begin records that the replica is starting to report its members. The via function returns transports to the members
// and must not block. Complete then removes the members that the replica has not reported again.
func (m *Mirror) Begin(via func(Peer) http.RoundTripper) {
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	m.via = via
	m.round++
	for name := range m.rounds { // the routes through the other replica can be used again
		if member := m.table.members[name]; member != nil {
			member.wakeLocked()
		}
	}
}

// Update applies records that the replica has reported.
func (m *Mirror) Update(records ...Record) {
	var fresh []Peer
	var replayed []*session
	names := make([]types.NamespacedName, 0, len(records))
	m.table.mu.Lock()
	now := m.table.now()
	for _, record := range records {
		record.notAfter(now)
		opened := m.updateLocked(record)
		fresh = append(fresh, opened...)
		replayed = append(replayed, m.table.replayedLocked(opened)...)
		names = append(names, record.Cluster())
	}
	listeners := m.notices.listeners.tokens
	m.table.mu.Unlock()
	for _, s := range replayed {
		s.Close()
	}
	for _, peer := range fresh {
		for _, f := range listeners {
			f(peer)
		}
	}
	m.notices.notify(names...)
}

// updateLocked applies one record and returns the tunnels that were not known before.
func (m *Mirror) updateLocked(record Record) []Peer {
	name := record.Cluster()
	if record.empty() {
		delete(m.rounds, name)
		m.setLocked(name, nil)
		return nil
	}
	m.rounds[name] = m.round
	before := m.setLocked(name, &record)
	opened := slices.DeleteFunc(slices.Clone(record.Tunnels), func(p Peer) bool {
		return slices.ContainsFunc(before.Tunnels, func(old Peer) bool { return old.ID == p.ID })
	})
	if len(opened) > 0 {
		member := m.table.members[name]
		member.forgotten = false
		member.arrivedLocked()
		m.notices.notifyFeedsLocked(name)
	}
	return opened
}

// setLocked replaces the state that the replica reported for a member, and returns the previous state. A state is nil
// if the replica has no record of the member.
func (m *Mirror) setLocked(name types.NamespacedName, record *Record) (before Record) {
	member := m.table.memberLocked(name)
	connected, lost := member.connected(), member.lost()
	i := slices.IndexFunc(member.remote, func(r remote) bool { return r.mirror == m })
	if i >= 0 {
		before = member.remote[i].record
	}
	switch {
	case record != nil && i >= 0:
		member.remote[i].record = *record
	case record != nil:
		member.remote = append(member.remote, remote{mirror: m, record: *record})
	case i >= 0:
		member.remote = slices.Delete(member.remote, i, i+1)
	}
	switch now := member.connected(); {
	case member.forgotten: // the Cluster has been deleted
	case connected && !now:
		m.table.losses.lost(m.table.now())
	case !now && !lost && record != nil && record.recent(m.table.now()):
		// the member was lost before this replica knew about it
		m.table.losses.lost(m.table.now())
	case !connected && now && lost:
		m.table.losses.returned()
	}
	m.table.dropLocked(name, member)
	return before
}

// recent reports whether the member was lost so recently that it may still reconnect.
func (r *Record) recent(now time.Time) bool {
	return r.Loss != nil && now.Sub(r.Loss.At) < ReturnTime
}

// replayedLocked returns the tunnels to this replica that were opened with a token that had already been used with
// another replica.
func (t *table) replayedLocked(opened []Peer) []*session {
	var replayed []*session
	for _, p := range opened {
		member := t.members[p.Name()]
		if member == nil || p.TokenID == "" {
			continue
		}
		for _, s := range member.sessions {
			if s.peer.TokenID == p.TokenID && s.peer.Key == p.Key && s.peer.Epoch > p.Epoch && s.cause == nil {
				s.cause = ErrReplayed
				replayed = append(replayed, s)
			}
		}
	}
	return replayed
}

// Complete records that the replica has reported all of its members.
func (m *Mirror) Complete() {
	var gone []types.NamespacedName
	m.table.mu.Lock()
	for name, round := range m.rounds {
		if round != m.round {
			delete(m.rounds, name)
			m.setLocked(name, nil)
			gone = append(gone, name)
		}
	}
	m.table.mu.Unlock()
	m.notices.notify(gone...)
}

// Detach records that the replica is unreachable. Members that are connected to that replica still count as connected,
// because their agents may be moving to another replica, or the replica may become reachable again.
func (m *Mirror) Detach() {
	m.table.mu.Lock()
	defer m.table.mu.Unlock()
	m.via = nil
	m.detached = m.table.now()
}

// Close records that the mirrored replica is gone. Its members are lost unless they have another tunnel.
func (m *Mirror) Close() {
	var names []types.NamespacedName
	m.table.mu.Lock()
	m.via = nil
	for name := range m.rounds {
		names = append(names, name)
		m.closeLocked(name)
	}
	clear(m.rounds)
	m.table.mu.Unlock()
	if len(names) > 0 {
		m.table.log.Info("replica gone", "replica", m.replica, "members", len(names))
	}
	m.notices.notify(names...)
}

func (m *Mirror) closeLocked(name types.NamespacedName) {
	member := m.table.memberLocked(name)
	i := slices.IndexFunc(member.remote, func(r remote) bool { return r.mirror == m })
	if i < 0 {
		return
	}
	lost := loss{at: m.detached, because: ErrReplicaGone}
	record := member.remote[i].record
	// the member was already lost; this replica now keeps the record of the loss
	if len(record.Tunnels) == 0 && record.Loss != nil {
		lost.at, lost.because = record.Loss.At, record.Loss
	}
	if lost.at.After(member.loss.at) && (len(record.Tunnels) > 0 || record.Loss != nil) {
		member.loss = lost
	}
	m.setLocked(name, nil)
}

// Error returns the cause of the loss as reported by the other replica.
func (l *Loss) Error() string { return l.Because }

// Is reports whether target is ErrReportEnded and the agent disconnected on its own initiative. It is used by
// errors.Is.
func (l *Loss) Is(target error) bool { return l.Left && target == ErrReportEnded }
