// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

// confirmation is the state of a member after a restore of the hub's etcd.
type confirmation struct {
	checkpoint  string // that the agent reported, empty for none
	lost        string // the checkpoint that the hub does not remember, empty for none
	unconfirmed bool   // there is such a checkpoint, and no administrator has confirmed what would change
	compared    bool   // compareLocked will be called: its target is in the queue
	difference  *Difference
	// withdrawn are the IDs of sets whose owners this store knew and that it wants no more. To remove them is no consequence of the restore: it needs no confirmation.
	withdrawn map[string]struct{}
}

// unusedID is an ID that no set has. To remove it brings an agent the present checkpoint, and nothing else.
const unusedID = "checkpoint"

// Difference is what a hub that was restored would change in a member, by IDs of sets, sorted.
type Difference struct {
	// Checkpoint that the agent has, or had, and the hub does not remember.
	Checkpoint string
	// Add, Change and Remove are what the member lacks, has otherwise, and has although no object of the hub wants it.
	Add, Change, Remove []string
}

func (d Difference) empty() bool { return len(d.Add)+len(d.Change)+len(d.Remove) == 0 }

// Unconfirmed returns what is not sent to a member until an administrator confirms it, nil if there is nothing. It is not known before all owners have
// said what they want, and the agent what it has.
func (d *Store) Unconfirmed(name types.NamespacedName) (difference *Difference, known bool) {
	d.mu.Lock()
	m := d.members[name]
	if m == nil {
		d.mu.Unlock()
		return nil, false
	}
	var changed []Key
	if d.examineLocked(m) {
		d.enqueueAllLocked(m)
		changed = append(changed, guardsOf(m)) // plans wait for it, too
	}
	difference, known = m.waitingLocked()
	d.mu.Unlock()
	d.notify(changed...)
	return difference, known
}

// waitingLocked returns what is not sent to a member before it is confirmed, and whether that is known.
func (m *memberSets) waitingLocked() (difference *Difference, known bool) {
	switch {
	case m.refuses != "":
		return nil, true
	case !m.reported:
		return nil, false
	case !m.unconfirmed:
		return nil, true
	case m.difference == nil, m.synced && m.difference.empty(): // what is empty is confirmed without an administrator
		return nil, false
	}
	return m.difference, true
}

// examineLocked decides whether a member waits for a confirmation, and reports whether that changed.
func (d *Store) examineLocked(m *memberSets) (changed bool) {
	was := m.unconfirmed
	m.lost = ""
	if d.Restored != nil {
		m.lost = d.Restored(d.ctx, m.name, m.checkpoint)
	}
	if m.unconfirmed = m.lost != ""; !m.unconfirmed {
		m.difference = nil
		if m.synced {
			m.withdrawn = nil
		}
	}
	d.differsLocked(m)
	return was != m.unconfirmed
}

// differsLocked has a member that waits for a confirmation compared with what it should have, a moment later: an agent may report any number of changes.
func (d *Store) differsLocked(m *memberSets) {
	if m.unconfirmed && !m.compared && d.queue != nil {
		m.compared = true
		d.queue.AddAfter(target{m.name, unusedID}, d.Pause)
	}
}

// compareLocked finds the difference for which a member waits, and returns the owner of its guards if it is another than before.
func (d *Store) compareLocked(m *memberSets) []Key {
	was := m.difference
	m.compared, m.difference = false, nil
	if !m.unconfirmed || !d.complete || !m.reported {
		return nil
	}
	now := m.differenceLocked()
	if m.difference = &now; was != nil && reflect.DeepEqual(*was, now) {
		return nil
	}
	return []Key{guardsOf(m)}
}

// withdrewLocked notes that an owner that the store knew wants a set no more. What the rollout of a Plan withdraws is no wish of a user, and counts not.
func (d *Store) withdrewLocked(m *memberSets, id string, key Key) {
	if !d.complete || d.Restored == nil || m.synced && !m.unconfirmed || key.Kind == set.Plan {
		return
	}
	if m.withdrawn == nil {
		m.withdrawn = map[string]struct{}{}
	}
	m.withdrawn[id] = struct{}{}
}

// heldLocked reports whether a set is neither sent nor removed before a confirmation.
func (m *memberSets) heldLocked(id string) bool {
	_, withdrawn := m.withdrawn[id]
	return m.unconfirmed && (!withdrawn || m.entryLocked(id).set != nil)
}

// outdatedLocked reports whether a member that waits for a confirmation has its users' tokens verified by something else than the hub wants. That is taken away
// at once, and given again by the confirmation: it may have keys and sessions that were ended after the restore.
func (d *Store) outdatedLocked(m *memberSets, id string) bool {
	if id != set.Direct || !m.unconfirmed || !d.complete || m.has[id] == nil {
		return false
	}
	want := m.wantedLocked(id)
	return want == nil || !unchanged(want) && m.has[id].Digest != want.Digest
}

// nextLocked returns the set that is to be sent to a member next, nil for a removal.
func (d *Store) nextLocked(m *memberSets, id string) *set.Set {
	if d.outdatedLocked(m, id) {
		return nil
	}
	return m.wantedLocked(id)
}

// agreesLocked reports whether a member that waits has all that it should have and nothing else: then there is nothing to confirm. The hold ends when
// the agent has the present checkpoint, since a later leader would hold the member again for the one that it has. An owner that does not know yet what
// it wants may want a change.
func (m *memberSets) agreesLocked() bool {
	if m.difference == nil || !m.difference.empty() {
		return false
	}
	for id := range m.wants {
		if unchanged(m.wantedLocked(id)) {
			return false
		}
	}
	return true
}

// agreedLocked ends the hold of a member whose agent got the present checkpoint, and returns the owners that may find something new.
func (d *Store) agreedLocked(m *memberSets) []Key {
	m.confirmation = confirmation{compared: m.compared, checkpoint: d.Checkpoint()} // it is about to be reported
	d.enqueueAllLocked(m)
	return append(m.lackingLocked(), guardsOf(m))
}

// differenceLocked compares what a member has with what it should have.
func (m *memberSets) differenceLocked() Difference {
	d := Difference{Checkpoint: m.lost}
	for id := range m.wants {
		want, has := m.wantedLocked(id), m.has[id]
		switch {
		case want == nil || unchanged(want) && !excess(want) || has != nil && has.Digest == want.Digest:
		case has == nil:
			d.Add = append(d.Add, id)
		default:
			d.Change = append(d.Change, id)
		}
	}
	for id := range m.has {
		if m.wantedLocked(id) == nil {
			d.Remove = append(d.Remove, id)
		}
	}
	slices.Sort(d.Add)
	slices.Sort(d.Change)
	slices.Sort(d.Remove)
	return d
}

// guardsOf is the owner of a member's guards: who waits for its outcome looks at the member.
func guardsOf(m *memberSets) Key {
	return Key{Kind: set.Guards, Namespace: m.name.Namespace, Name: m.name.Name}
}

func unconfirmedOutcome() Outcome {
	return Outcome{Stage: Refused, Reason: v1.ReasonHubRestored, Failures: []v1.Failure{{Object: wholeSet, Message: "The hub's etcd was restored from a backup that is " +
		"older than what the member has: nothing is changed there before an administrator has run \"kubectl drover restored\""}}}
}
