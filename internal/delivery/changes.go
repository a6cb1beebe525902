// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"time"

	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// want records that an owner requires a set in a member. Several members may share w.
func (g *guarded) want(m *member, w *wanted) {
	id := w.set.ID
	was := m.entry(id)
	m.hold.Settle(id)
	if was.set != nil && was.set.Digest == w.set.Digest {
		m.wants[id] = &wanted{key: w.key, content: w.content, since: was.since}
		return
	}
	m.wants[id] = w
	g.retries.clear(m, id) // failures of the old content do not apply to the new content
	g.enqueue(m, id)
}

// withdraw records that an owner no longer requires a set in a member.
func (g *guarded) withdraw(m *member, id string, key Key) {
	if m.entry(id).key != key {
		return // another owner now requires the set
	}
	delete(m.wants, id)
	if g.owners.complete {
		m.countAsWithdrawn(id, &g.options.Restore)
	}
	g.retries.clear(m, id)
	if !g.owners.complete {
		m.wants[id] = &wanted{content: content{set: Absent(id)}}
	}
	g.enqueue(m, id)
	g.drop(m)
}

// known returns the state of a member. It creates the state if necessary.
func (g *guarded) known(name types.NamespacedName) *member {
	m := g.members[name]
	if m == nil {
		m = newMember(name)
		g.members[name] = m
	}
	return m
}

// wantedIn returns the state of a member in which a set is required. If Forget was called for the member, wantedIn
// replaces the member's state with a new one.
func (g *guarded) wantedIn(name types.NamespacedName) *member {
	was := g.members[name]
	if was != nil && !was.forgotten {
		return was
	}
	m := newMember(name)
	if was != nil { // the member's agent continues to report its sets
		m.has, m.synced, m.reported, m.hold, m.comparing = was.has, was.synced, was.reported, was.hold, was.comparing
		was.has = map[string]*protocol.SetState{}
	}
	g.members[name] = m
	g.look(m)
	return m
}

// drop removes the state of a member if the state is no longer needed.
func (g *guarded) drop(m *member) {
	if g.queue != nil && len(m.wants) == 0 && !m.synced && len(m.sends) == 0 && !m.connected && g.members[m.name] == m {
		delete(g.members, m.name)
		g.retries.clearAll(m)
	}
}

// look reads the state of a member's connection, and the profile in the spec of its Cluster. If either has changed,
// look queues the member's sets and notifies the owners of sets that the member lacks.
func (g *guarded) look(m *member) {
	if g.queue == nil {
		return
	}
	state := g.options.State(m.name)
	if m.forgotten {
		m.connected = state.Connected() // drop reads connected
		return
	}
	g.examine(m)
	was := m.connection
	if m.connection = connectionOf(state, was); g.options.ReadOnly != nil {
		withheld, err := g.options.ReadOnly(g.ctx, m.name)
		if m.withheld = withheld; err != nil { // the profile is unknown, so the previous value is kept
			m.withheld = was.withheld
		}
	}
	if m.withheld != was.withheld {
		g.retries.clearAll(m)
	}
	if m.connected && !was.connected {
		m.silent = time.Now()
	}
	if m.connection != was {
		g.enqueueAll(m)
		g.affected = append(g.affected, m.lacking()...)
	}
}

// maxUnowned is the maximum number of sets without an owner that the store keeps per member, in addition to the sets in
// the first report. The limit is necessary because the agent may be malicious.
const maxUnowned = 1024

// Synced applies an agent's report of all sets in a member. Synced, Event and Stopped implement members.Follower.
func (d *Store) Synced(name types.NamespacedName, all []*protocol.SetEvent) {
	g := d.lock()
	defer d.unlock()
	if g.closed {
		return
	}
	m := g.known(name)
	m.hold.Reach("") // the report contains the agent's checkpoint, if it has one
	offer := make(map[string]*protocol.SetState, len(all))
	for _, event := range all {
		switch {
		case m.reaches(event):
		case event.State != nil:
			offer[event.State.ID] = event.State
		default:
			delete(offer, event.Removed)
		}
	}
	g.affected = append(g.affected, m.lacking()...) // until now, the store did not know that these sets are missing
	for id := range m.has {
		if offer[id] == nil {
			g.update(m, id, nil)
		}
	}
	for id, state := range offer {
		g.update(m, id, state)
	}
	m.synced, m.reported = true, true
	g.examine(m)
	g.enqueueAll(m)
}

// Event applies an agent's report of a change to one set.
func (d *Store) Event(name types.NamespacedName, event *protocol.SetEvent) {
	g := d.lock()
	defer d.unlock()
	m := g.members[name]
	if m == nil || g.closed {
		return
	}
	switch {
	case m.reaches(event):
		g.examine(m)
	case event.State != nil:
		id := event.State.ID
		if known := m.wants[id] != nil || m.has[id] != nil; known || len(m.has) < len(m.wants)+maxUnowned {
			g.update(m, id, event.State)
		}
	case event.Removed != "":
		g.update(m, event.Removed, nil)
	}
}

// Stopped records that changes to a member's sets are no longer reported. The last reported state is kept.
func (d *Store) Stopped(name types.NamespacedName) {
	g := d.lock()
	defer d.unlock()
	if m := g.members[name]; m != nil {
		m.synced, m.silent = false, time.Now()
		g.drop(m)
	}
}

// update records the state of a set that an agent reported. The state is nil if the member does not have the set. If
// the state has changed, update notifies the owner of the set.
func (g *guarded) update(m *member, id string, state *protocol.SetState) {
	want, was, had := m.entry(id), m.has[id], m.hasWanted(id)
	if state == nil {
		delete(m.has, id)
	} else {
		state = want.share(state)
		m.has[id] = state
	}
	if had && !m.hasWanted(id) {
		g.retries.lost(m, id)
	}
	if want.set != nil && was != state && !reflect.DeepEqual(was, state) {
		g.affected = append(g.affected, want.key)
	}
	g.enqueue(m, id)
}
