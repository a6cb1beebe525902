// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
)

// unusedID is an ID that no set has. To remove it brings an agent the present checkpoint, and nothing else.
const unusedID = "checkpoint"

// Unconfirmed returns what is not sent to a member until an administrator confirms it, nil if there is nothing. It is not known before all owners
// have said what they want, and the agent what it has.
func (d *Store) Unconfirmed(name types.NamespacedName) (difference *checkpoint.Difference, known bool) {
	d.mu.Lock()
	defer d.unlock()
	m := d.members[name]
	if m == nil {
		return nil, false
	}
	d.examine(m)
	switch {
	case m.refuses != "":
		return nil, true
	case !m.reported:
		return nil, false
	}
	return m.hold.Difference(m.synced)
}

// examine decides whether a member waits for a confirmation. If that changed, all its sets are looked at again.
func (d *Store) examine(m *member) {
	changed := d.Restore.Examine(d.ctx, m.name, &m.hold, m.synced)
	d.compareLater(m)
	if changed {
		d.released(m)
	}
}

// released looks at all sets of a member that waits no more, or has begun to wait, and notifies the owners that this may matter to.
func (d *Store) released(m *member) {
	d.enqueueAll(m)
	d.affected = append(append(d.affected, m.lacking()...), d.ownersOf(m)...)
}

// compareLater compares a member that waits for a confirmation with what it should have, a moment later: an agent may report any number of
// changes.
func (d *Store) compareLater(m *member) {
	if m.hold.Waits() && !m.comparing && d.queue != nil {
		m.comparing = true
		d.queue.AddAfter(target{m.name, unusedID}, d.Pause)
	}
}

// compare finds the difference that waits in a member, and notifies the member's owners if it is another than before.
func (d *Store) compare(m *member) {
	m.comparing = false
	var now *checkpoint.Difference
	if m.hold.Waits() && d.owners.complete && m.reported {
		now = m.difference()
	}
	if m.hold.Compared(now) {
		d.affected = append(d.affected, d.ownersOf(m)...)
	}
}

// agreed ends the hold of a member whose agent got the present checkpoint.
func (d *Store) agreed(m *member) {
	m.hold.End(d.Restore.Checkpoint())
	d.released(m)
}

// ownersOf returns the owners of the sets that belong to a member itself.
func (d *Store) ownersOf(m *member) (keys []Key) {
	for kind, rule := range d.Restore.Rules {
		if rule.OfMember {
			keys = append(keys, Key{Kind: kind, Namespace: m.name.Namespace, Name: m.name.Name})
		}
	}
	return keys
}

func unconfirmedOutcome() Outcome {
	return Outcome{Stage: Refused, Reason: v1.ReasonHubRestored, Failures: []v1.Failure{{Object: wholeSet, Message: "The hub's etcd was restored from a backup that is " +
		"older than what the member has: nothing is changed there before an administrator has run \"kubectl drover restored\""}}}
}
