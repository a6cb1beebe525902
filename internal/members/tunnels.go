// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"crypto/rand"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// Tunnels owns the tunnels that end in this process, from the call to Add until the tunnels are closed.
type Tunnels struct {
	table     *table
	notices   *Notices
	admission *Admission
	followers *Followers
}

// session is one tunnel in the registry. report, reportErr and cause are guarded by table.mu.
type session struct {
	Session
	peer      Peer
	stream    *stream
	report    *protocol.Report
	reportErr error
	cause     error // why the hub closed the tunnel, or nil if it did not
}

// Add takes ownership of an open tunnel, and sets its ID and epoch. Requests to a member use its newest tunnel. Add
// closes the tunnel if the registry is closed, or if another replica has reported a tunnel with the same token.
func (t *Tunnels) Add(peer Peer, tunnel Session) {
	peer.ID = rand.Text()
	name := peer.Name()
	t.table.mu.Lock()
	if t.table.closed {
		t.table.mu.Unlock()
		tunnel.Close()
		return
	}
	m := t.table.memberLocked(name)
	// check again, because other tunnels may have been admitted in the meantime
	_, refused := t.admission.admitLocked(name)
	if m.opened(peer) {
		refused = ErrReplayed
	}
	if refused != nil {
		t.table.dropLocked(name, m)
		t.table.mu.Unlock()
		t.table.log.Info("tunnel refused", "cluster", name, "cause", refused.Error())
		tunnel.Close()
		return
	}
	t.admission.workspaces[name.Namespace]++
	peer.Epoch = t.table.epochLocked(m)
	s := &session{Session: newLeaving(tunnel), peer: peer, stream: newStream(t.followers, name, m.offers)}
	if !m.connected() && m.lost() {
		t.table.losses.returned()
	}
	m.sessions, m.forgotten = append(m.sessions, s), false
	m.arrivedLocked()
	surplus := m.surplusLocked(t.admission.bounds.ClusterTunnels)
	t.table.work.Add(1)
	opened := t.notices.listeners.of(name).opened
	t.table.mu.Unlock()

	go t.watch(s)
	if surplus != nil {
		surplus.Close()
	}
	t.table.log.Info("tunnel opened", "cluster", name, "instance", peer.Instance, "nodeAgent", peer.NodeAgent)
	t.notices.changed(name)
	for _, f := range opened {
		f(name)
	}
}

// opened reports whether another replica has a tunnel that was opened with the same token as the given peer's tunnel.
// The other tunnel might still have been unknown when the peer's tunnel was admitted: a client that opens two tunnels
// at the same time can delay one of the handshakes.
func (m *member) opened(with Peer) bool {
	return with.TokenID != "" && slices.ContainsFunc(m.remote, func(r remote) bool {
		return slices.ContainsFunc(r.record.Tunnels, func(p Peer) bool {
			return p.TokenID == with.TokenID && p.Key == with.Key
		})
	})
}

// Local returns the peers of a member's tunnels to this replica, including draining tunnels.
func (t *Tunnels) Local(name types.NamespacedName) []Peer {
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	m := t.table.members[name]
	if m == nil {
		return nil
	}
	var peers []Peer
	for _, s := range slices.Concat(m.sessions, m.draining) {
		peers = append(peers, s.peer)
	}
	return peers
}

// Disconnect closes a member's tunnels to this replica. It keeps the tunnels for which the function keep returns true.
func (t *Tunnels) Disconnect(name types.NamespacedName, keep func(Peer) bool) {
	var ended []*session
	t.table.mu.Lock()
	if m := t.table.members[name]; m != nil {
		for _, s := range slices.Concat(m.sessions, m.draining) {
			if !keep(s.peer) {
				s.cause = ErrRevoked
				ended = append(ended, s)
			}
		}
	}
	t.table.mu.Unlock()
	for _, s := range ended {
		s.Close()
	}
}

// Forget closes all tunnels of a deleted Cluster at this replica and discards the Cluster's state.
func (t *Tunnels) Forget(name types.NamespacedName) {
	t.Disconnect(name, func(Peer) bool { return false })
	t.table.mu.Lock()
	defer t.table.mu.Unlock()
	if m := t.table.members[name]; m != nil {
		m.forgotten = true
		t.table.dropLocked(name, m)
		t.notices.notifyFeedsLocked(name)
	}
}

// Close closes all tunnels and accepts no new ones. It returns when all goroutines that use the tunnels have ended.
func (t *Tunnels) Close() {
	var all []*session
	t.table.mu.Lock()
	t.table.closed = true
	for _, m := range t.table.members {
		m.occupied()
		all = append(all, m.sessions...)
		all = append(all, m.draining...)
	}
	t.table.mu.Unlock()
	for _, s := range all {
		s.Close()
	}
	t.table.stop()
	t.table.work.Wait()
}
