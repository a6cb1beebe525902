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
	d.notify(d.sync(name, all)...)
}

func (d *Store) sync(name types.NamespacedName, all []*protocol.SetEvent) []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	m := d.members[name]
	if m == nil {
		m = newMemberSets(name)
		d.members[name] = m
	}
	m.checkpoint = "" // one that the agent does not report any more does not count, unless the member waits for it
	offer := make(map[string]*protocol.SetState, len(all))
	for _, event := range all {
		if event.Checkpoint != "" {
			m.checkpoint = event.Checkpoint
			continue
		}
		if event.State == nil {
			delete(offer, event.Removed)
			continue
		}
		offer[event.State.ID] = m.entryLocked(event.State.ID).share(event.State)
	}
	changed := m.lackingLocked() // their state was unknown before; the sets that are there are added below
	for id := range m.has {
		if offer[id] == nil {
			changed = append(changed, d.updateLocked(m, id, nil)...)
		}
	}
	for id, state := range offer {
		changed = append(changed, d.updateLocked(m, id, state)...)
	}
	m.synced, m.reported = true, true
	if d.examineLocked(m) {
		changed = append(changed, guardsOf(m))
	}
	d.enqueueAllLocked(m)
	return changed
}

// Event applies the change of a set in a member.
func (d *Store) Event(name types.NamespacedName, event *protocol.SetEvent) {
	d.notify(d.take(name, event)...)
}

func (d *Store) take(name types.NamespacedName, event *protocol.SetEvent) []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	m := d.members[name]
	if m == nil || d.closed {
		return nil
	}
	var changed []Key
	switch {
	case event.Checkpoint != "":
		if m.checkpoint = event.Checkpoint; d.examineLocked(m) {
			changed = append(m.lackingLocked(), guardsOf(m))
			d.enqueueAllLocked(m)
		}
	case event.State != nil && m.surplusLocked(event.State.ID):
	case event.State != nil:
		changed = d.updateLocked(m, event.State.ID, m.entryLocked(event.State.ID).share(event.State))
		d.enqueueLocked(m, event.State.ID)
	case event.Removed != "":
		changed = d.updateLocked(m, event.Removed, nil)
		d.enqueueLocked(m, event.Removed)
	}
	return changed
}

// Stopped notes that the state of a member's sets may change without a report. What was reported is kept.
func (d *Store) Stopped(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m := d.members[name]; m != nil {
		m.synced = false
		d.dropLocked(m)
	}
}

// surplusLocked reports whether a set is new, has no owner, and exceeds maxUnowned.
func (m *memberSets) surplusLocked(id string) bool {
	wanted := m.wants[id] != nil
	return !wanted && m.has[id] == nil && len(m.has) >= len(m.wants)+maxUnowned
}

// updateLocked applies the state of a set, nil for one that is not there, and returns its owner if that changed.
func (d *Store) updateLocked(m *memberSets, id string, state *protocol.SetState) []Key {
	was, had := m.has[id], m.hasLocked(id)
	if state == nil {
		delete(m.has, id)
	} else {
		m.has[id] = state
	}
	d.differsLocked(m)
	if had && !m.hasLocked(id) {
		d.lostLocked(m, target{m.name, id})
	}
	if want := m.entryLocked(id); want.set != nil && was != state && !reflect.DeepEqual(was, state) {
		return []Key{want.key}
	}
	return nil
}
