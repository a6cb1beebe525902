// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// member is one Cluster: what it should have and what it has. Store.mu guards it.
type member struct {
	name      types.NamespacedName
	connected bool
	// refuses is why the agent takes no sets, ReasonAgentTooOld or ReasonAgentReadOnly; empty if it does.
	refuses string
	// withheld reports whether the spec of the Cluster says ReadOnly: nothing is sent, and what is there is removed.
	withheld bool
	stream   *stream // on which the agent reports its sets; nil if none is open
	queued   bool    // in Store.waiting
	gone     bool    // Forget was called
	reported bool    // the agent has reported all its sets to this store at least once

	wants   map[string]wanted
	has     map[string]*protocol.SetState // as the agent last reported; kept while the member is away
	touched map[string]bool               // IDs to compare; true if the set may be removed even if the store is not complete
	sends   map[string]*sending           // in progress
	bytes   int                           // in progress
	failed  map[string]*failure
}

// wanted is a set that an owner wants in a member.
type wanted struct {
	key   Key
	set   *Set
	since time.Time // when its content last changed
}

// sending is one send in progress.
type sending struct {
	bytes int
	slow  bool // no longer counts towards maxSends
}

// failure is why a set was not delivered.
type failure struct {
	count   int
	refused bool // the agent rejected it, so that a retry is unlikely to help
	message string
	retry   *time.Timer // nil when it has fired
}

// stream is an open stream of an agent's reports on its sets.
type stream struct {
	cancel context.CancelFunc
	wake   chan struct{} // has a value when a retry is worthwhile: the agent may lead now
	peers  []string      // the tunnels when it was opened
	synced bool          // the agent has reported all its sets
	offer  map[string]*protocol.SetState
	pace   *members.Pace // of events that are read
}

func newMember(name types.NamespacedName) *member {
	return &member{name: name, wants: map[string]wanted{}, has: map[string]*protocol.SetState{}, touched: map[string]bool{},
		sends: map[string]*sending{}, failed: map[string]*failure{}}
}

// touchLocked marks a set for the next pump.
func (m *member) touchLocked(id string, removable bool) {
	m.touched[id] = m.touched[id] || removable
}

// clearFailureLocked forgets the failure of a set and stops its retry.
func (m *member) clearFailureLocked(id string) {
	if f := m.failed[id]; f != nil {
		if f.retry != nil {
			f.retry.Stop()
		}
		delete(m.failed, id)
	}
}

// closeStreamLocked ends the stream.
func (m *member) closeStreamLocked() {
	if m.stream != nil {
		m.stream.cancel()
		m.stream = nil
	}
}

// readyLocked reports whether sets can be sent: the member is connected and its sets are known.
func (m *member) readyLocked() bool {
	return m.connected && m.refuses == "" && !m.gone && m.stream != nil && m.stream.synced
}

// dueLocked returns the set that a member should have of this ID, nil for none.
func (m *member) dueLocked(id string) *Set {
	set := m.wants[id].set
	if m.withheld || set != nil && set.absent {
		return nil
	}
	return set
}

// hasLocked reports whether a member has the set that it should have of this ID, applied or not.
func (m *member) hasLocked(id string) bool {
	due, has := m.dueLocked(id), m.has[id]
	return due != nil && has != nil && has.Digest == due.Digest
}

// lacksLocked reports whether a member is known to have no set of an ID: its agent reported so last, connected now or not.
func (m *member) lacksLocked(id string) bool {
	return m.reported && m.has[id] == nil && m.sends[id] == nil && (!m.connected || m.readyLocked())
}

// withholdLocked reads the profile from the spec of a member's Cluster, and reports whether it changed. If it cannot be read, nothing changes.
func (d *Store) withholdLocked(m *member) bool {
	if d.ReadOnly == nil {
		return false
	}
	withheld, err := d.ReadOnly(d.ctx, m.name)
	if err != nil || withheld == m.withheld {
		return false
	}
	m.withheld = withheld
	for id := range m.wants {
		m.clearFailureLocked(id)
		m.touchLocked(id, withheld)
	}
	for id := range m.has {
		m.clearFailureLocked(id)
		m.touchLocked(id, withheld)
	}
	return true
}

// lookLocked reads a member's connection. If that changed, it returns the owners of the sets that the member lacks.
func (d *Store) lookLocked(m *member) []Key {
	if !d.running {
		return nil
	}
	state := d.Members.State(m.name)
	if m.gone {
		m.connected = state.Connected() // for when to drop it
		return nil
	}
	connected, refuses := state.Connected(), m.refuses
	if report := state.Report; connected && report != nil {
		refuses = refusal(report)
	}
	changed := d.withholdLocked(m) || connected != m.connected || refuses != m.refuses
	if m.connected = connected; refuses != m.refuses {
		m.refuseLocked(refuses)
	}
	if m.stream != nil && (!connected || refuses != "" || !m.stream.current(state.Peers)) {
		m.closeStreamLocked()
	}
	if m.stream != nil && !m.stream.synced {
		select {
		case m.stream.wake <- struct{}{}:
		default:
		}
	}
	if m.stream == nil && connected && refuses == "" && state.Report != nil {
		d.openLocked(m, state.Peers)
	}
	if changed {
		d.pumpLocked(m)
	}
	if !changed {
		return nil
	}
	return m.lackingLocked()
}

// refuseLocked notes why the agent takes no sets, empty if it does, and returns the owners of the sets that the member lacks. If it takes none,
// what it had may still be there, but is no longer maintained.
func (m *member) refuseLocked(reason string) []Key {
	m.refuses = reason
	if reason != "" {
		m.reported = false
		clear(m.has)
	}
	return m.lackingLocked()
}

// lackingLocked returns the owners of the sets that the member lacks.
func (m *member) lackingLocked() []Key {
	var keys []Key
	for id, want := range m.wants {
		if want.set.absent && m.lacksLocked(id) {
			continue
		}
		if !m.hasLocked(id) {
			keys = append(keys, want.key)
		}
	}
	return keys
}

// refusal returns why an agent takes no sets, empty if it does.
func refusal(r *protocol.Report) string {
	switch {
	case r.Profile == string(v1.ProfileReadOnly):
		return v1.ReasonAgentReadOnly
	case !r.Has(protocol.FeatureSets):
		return v1.ReasonAgentTooOld
	}
	return ""
}

// current reports whether all tunnels from when the stream was opened still exist. One of them leads to the agent; when that is closed, the
// stream must be opened again.
func (s *stream) current(peers []members.Peer) bool {
	return !slices.ContainsFunc(s.peers, func(id string) bool {
		return !slices.ContainsFunc(peers, func(p members.Peer) bool { return p.ID == id })
	})
}
