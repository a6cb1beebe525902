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

// member is one Cluster: what it is to have and what it has. Store.mu guards it.
type member struct {
	name      types.NamespacedName
	connected bool
	// refuses is why the agent takes no sets, ReasonAgentTooOld or ReasonAgentReadOnly; empty if it does.
	refuses string
	// withheld is whether the spec of the Cluster says ReadOnly: nothing is sent, and what is there is taken back.
	withheld bool
	stream   *stream // on which the agent tells what is there; nil if there is none
	queued   bool    // whether it is in Store.waiting
	gone     bool    // whether it was forgotten
	heard    bool    // whether its agent has ever told this store what it has

	wants   map[string]wanted
	has     map[string]*protocol.SetState // as the agent told last; kept while it is away
	touched map[string]bool               // what to look at; true for what may be removed even if the store is not complete
	sends   map[string]*sending           // what is on its way
	bytes   int                           // how much that is
	failed  map[string]*failure
}

// wanted is a set that an object wants in a member.
type wanted struct {
	key   Key
	set   *Set
	since time.Time // when it was handed over as it is
}

// sending is one set on its way.
type sending struct {
	bytes int
	slow  bool // whether it no longer counts among maxSends
}

// failure is why a set did not arrive.
type failure struct {
	count   int
	refused bool // whether trying again is of little use
	message string
	retry   *time.Timer // nil when it is over
}

// stream is what an agent tells of its sets, as long as it does.
type stream struct {
	cancel context.CancelFunc
	wake   chan struct{} // has a value when it is worth asking again: the agent may lead by now
	peers  []string      // tunnels that there were when it was opened
	synced bool          // whether all that is there has been told
	offer  map[string]*protocol.SetState
	pace   *members.Pace // of events that are read
}

func newMember(name types.NamespacedName) *member {
	return &member{name: name, wants: map[string]wanted{}, has: map[string]*protocol.SetState{}, touched: map[string]bool{},
		sends: map[string]*sending{}, failed: map[string]*failure{}}
}

// touchLocked has a set looked at by the next pump.
func (m *member) touchLocked(id string, removable bool) {
	m.touched[id] = m.touched[id] || removable
}

// calmLocked forgets that a set did not arrive.
func (m *member) calmLocked(id string) {
	if f := m.failed[id]; f != nil {
		if f.retry != nil {
			f.retry.Stop()
		}
		delete(m.failed, id)
	}
}

// hangUpLocked ends the stream.
func (m *member) hangUpLocked() {
	if m.stream != nil {
		m.stream.cancel()
		m.stream = nil
	}
}

// readyLocked is whether sets can be sent: it is known what is there.
func (m *member) readyLocked() bool {
	return m.connected && m.refuses == "" && !m.gone && m.stream != nil && m.stream.synced
}

// dueLocked is the set that a member is to have of this ID, nil for none.
func (m *member) dueLocked(id string) *Set {
	set := m.wants[id].set
	if m.withheld || set != nil && set.absent {
		return nil
	}
	return set
}

// hasLocked is whether a member has the set that it is to have of this ID, whatever came of it.
func (m *member) hasLocked(id string) bool {
	due, has := m.dueLocked(id), m.has[id]
	return due != nil && has != nil && has.Digest == due.Digest
}

// ridLocked reports whether a member is known to have nothing of an ID: its agent said so last, whether it is here now or not.
func (m *member) ridLocked(id string) bool {
	return m.heard && m.has[id] == nil && m.sends[id] == nil && (!m.connected || m.readyLocked())
}

// withholdLocked takes over what the spec of a member's Cluster says, and reports whether that is news. While it cannot be read, it is as it was.
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
		m.calmLocked(id)
		m.touchLocked(id, withheld)
	}
	for id := range m.has {
		m.calmLocked(id)
		m.touchLocked(id, withheld)
	}
	return true
}

// lookLocked takes over what the fleet knows of a member, and returns the owners of what it lacks if its connection changed.
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
		m.hangUpLocked()
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

// refuseLocked notes why the agent takes no sets, empty if it does, and returns the owners of what it lacks. An agent that takes none keeps
// none: what it had may be there, and nobody looks after it.
func (m *member) refuseLocked(reason string) []Key {
	m.refuses = reason
	if reason != "" {
		m.heard = false
		clear(m.has)
	}
	return m.lackingLocked()
}

// lackingLocked are the owners of sets that are not there as they should be.
func (m *member) lackingLocked() []Key {
	var keys []Key
	for id, want := range m.wants {
		if want.set.absent && m.ridLocked(id) {
			continue
		}
		if !m.hasLocked(id) {
			keys = append(keys, want.key)
		}
	}
	return keys
}

// refusal is why an agent takes no sets.
func refusal(r *protocol.Report) string {
	switch {
	case r.Profile == string(v1.ProfileReadOnly):
		return v1.ReasonAgentReadOnly
	case !r.Has(protocol.FeatureSets):
		return v1.ReasonAgentTooOld
	}
	return ""
}

// current is whether the tunnels are still there that there were when the stream was opened. One of them leads to the agent; if it is given
// up, the stream must move with the agent.
func (s *stream) current(peers []members.Peer) bool {
	return !slices.ContainsFunc(s.peers, func(id string) bool {
		return !slices.ContainsFunc(peers, func(p members.Peer) bool { return p.ID == id })
	})
}
