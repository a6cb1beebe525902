// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// Pauses between attempts.
const (
	firstPause = 100 * time.Millisecond
	maxPause   = 5 * time.Minute
)

// maxUnowned bounds the sets without owner that are kept of one member, beyond those in the first report: the agent may be malicious.
const maxUnowned = 1024

// Synced applies the report of all sets of a member. It implements members.Follower, as do Event and Stopped.
func (d *Store) Synced(name types.NamespacedName, all []*protocol.SetEvent) {
	d.mu.Lock()
	defer d.unlock()
	if d.closed {
		return
	}
	m := d.known(name)
	m.hold.Reach("") // a checkpoint that the agent does not report any more does not count, unless the member waits for it
	offer := make(map[string]*protocol.SetState, len(all))
	for _, event := range all {
		switch {
		case event.Checkpoint != "":
			m.hold.Reach(event.Checkpoint)
		case event.State != nil:
			offer[event.State.ID] = event.State
		default:
			delete(offer, event.Removed)
		}
	}
	d.affected = append(d.affected, m.lacking()...) // their state was unknown before; those that are there are added below
	for id := range m.has {
		if offer[id] == nil {
			d.update(m, id, nil)
		}
	}
	for id, state := range offer {
		d.update(m, id, state)
	}
	m.synced, m.reported = true, true
	d.examine(m)
	d.enqueueAll(m)
}

// Event applies the change of a set in a member.
func (d *Store) Event(name types.NamespacedName, event *protocol.SetEvent) {
	d.mu.Lock()
	defer d.unlock()
	m := d.members[name]
	if m == nil || d.closed {
		return
	}
	switch {
	case event.Checkpoint != "":
		m.hold.Reach(event.Checkpoint)
		d.examine(m)
	case event.State != nil && m.surplus(event.State.ID):
	case event.State != nil:
		d.update(m, event.State.ID, event.State)
	case event.Removed != "":
		d.update(m, event.Removed, nil)
	}
}

// Stopped notes that the state of a member's sets may change without a report. What was reported is kept.
func (d *Store) Stopped(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.members[name]; m != nil {
		m.synced = false
		d.drop(m)
	}
}

// surplus reports whether a set is new, has no owner, and exceeds maxUnowned.
func (m *member) surplus(id string) bool {
	return m.wants[id] == nil && m.has[id] == nil && len(m.has) >= len(m.wants)+maxUnowned
}

// update applies the state of a set that an agent reported, nil for a set that is not there. The owner of the set is notified if the state changed.
func (d *Store) update(m *member, id string, state *protocol.SetState) {
	want, was, had := m.entry(id), m.has[id], m.hasWanted(id)
	if state == nil {
		delete(m.has, id)
	} else {
		state = want.share(state)
		m.has[id] = state
	}
	if had && !m.hasWanted(id) {
		d.lost(m, id)
	}
	if want.set != nil && was != state && !reflect.DeepEqual(was, state) {
		d.affected = append(d.affected, want.key)
	}
	d.differs(m, id)
}
