// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/protocol"
)

// This file has all that the store does for a hub whose etcd was restored from a backup. internal/checkpoint decides
// which members wait for a confirmation, and how their sets are treated meanwhile.

// Unconfirmed returns what a restored hub does not change in a member before that is confirmed, nil for nothing, and
// whether that is known.
type Unconfirmed func(member types.NamespacedName) (difference *checkpoint.Difference, known bool)

// unconfirmed is what waits for a confirmation in one member.
type unconfirmed = checkpoint.Hold

// unusedID is an ID that no set has. To remove it brings an agent the present checkpoint, and nothing else.
const unusedID = "checkpoint"

// rule is what decides, beside the member, whether a set is due.
type rule struct {
	revocable bool // whether a set of its kind is revoked at once
	complete  bool // whether all owners have declared their sets
}

func (d *Store) rule(id string) rule {
	return rule{revocable: d.Restore.Rule(id).RevokedAtOnce, complete: d.owners.complete}
}

// path returns the path of a send, with the checkpoint that the agent gets with it.
func (o *Options) path(s *sending) (string, error) {
	reached := o.Restore.Checkpoint()
	if s.bare {
		reached = ""
	}
	if s.id == unusedID && reached == "" {
		return "", errors.New("this manager has no checkpoint yet that the agent could take")
	}
	return protocol.SetPathAt(s.id, reached), nil
}

// reaches notes the checkpoint of a line, and reports whether it has one.
func (m *member) reaches(event *protocol.SetEvent) bool {
	if event.Checkpoint == "" {
		return false
	}
	m.hold.Reach(event.Checkpoint)
	return true
}

// countAsWithdrawn notes that an owner has withdrawn a set, where that may be after a restore: then it is removed
// without a confirmation.
func (m *member) countAsWithdrawn(id string, policy *checkpoint.Policy) {
	if policy.Lost != nil && (!m.synced || m.hold.Waits()) && policy.Rule(id).CountsAsWithdrawn {
		m.hold.Withdraw(id)
	}
}

// Unconfirmed returns the changes that are not sent to a member until an administrator confirms them, nil for none. It
// is not known before all owners have declared their sets and the agent has reported its own.
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

// released looks at all sets of a member that does not wait any more, or has begun to, and notifies the owners that
// this may matter to.
func (d *Store) released(m *member) {
	d.enqueueAll(m)
	d.affected = append(append(d.affected, m.lacking()...), m.ownOwners(&d.Restore)...)
}

// compareLater compares a member that waits for a confirmation with its intended sets, a moment later: an agent may
// report any number of changes.
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
		d.affected = append(d.affected, m.ownOwners(&d.Restore)...)
	}
}

// ownOwners returns the owners of the sets that belong to a member itself.
func (m *member) ownOwners(policy *checkpoint.Policy) (keys []Key) {
	for kind, of := range policy.Rules {
		if of.OfMember {
			keys = append(keys, Key{Kind: kind, Namespace: m.name.Namespace, Name: m.name.Name})
		}
	}
	return keys
}

// endHold ends the wait of a member whose agent has got the present checkpoint.
func (d *Store) endHold(m *member) {
	m.hold.End(d.Restore.Checkpoint())
	d.released(m)
}

// outdated reports whether a member that waits for a confirmation has another set than it should, of a kind that is
// revoked at once. The set is removed, and sent again after the confirmation.
func (m *member) outdated(id string, r rule) bool {
	if !r.revocable || !m.hold.Waits() || !r.complete || m.has[id] == nil {
		return false
	}
	want := m.wanted(id)
	return want == nil || !unchanged(want) && m.has[id].Digest != want.Digest
}

// agrees reports whether a member that waits has all that it should have and nothing else: then there is nothing to
// confirm. The hold ends when the agent has the present checkpoint, since a later leader would hold the member again
// for the one that it has. An owner that has not decided yet may want a change.
func (m *member) agrees() bool {
	if !m.hold.Agrees() {
		return false
	}
	for id := range m.wants {
		if unchanged(m.wanted(id)) {
			return false
		}
	}
	return true
}

// difference compares a member's actual sets with its intended sets.
func (m *member) difference() *checkpoint.Difference {
	d := &checkpoint.Difference{}
	for id := range m.wants {
		want, has := m.wanted(id), m.has[id]
		switch {
		case want == nil || unchanged(want) && !excess(want) || has != nil && has.Digest == want.Digest:
		case has == nil:
			d.Add = append(d.Add, id)
		default:
			d.Change = append(d.Change, id)
		}
	}
	for id := range m.has {
		if m.wanted(id) == nil {
			d.Remove = append(d.Remove, id)
		}
	}
	slices.Sort(d.Add)
	slices.Sort(d.Change)
	slices.Sort(d.Remove)
	return d
}

func unconfirmedOutcome() Outcome {
	const message = "The hub's etcd was restored from a backup that is older than what the member has: nothing is changed " +
		"there before an administrator has run \"kubectl drover restored\""
	return Outcome{
		Stage: Refused, Reason: v1.ReasonHubRestored, Failures: []v1.Failure{{Object: wholeSet, Message: message}},
	}
}

// withheldUnconfirmed says why a set is still in a member that is to have none.
const withheldUnconfirmed = "; what is there is still in force, and is taken back after an administrator has run " +
	"\"kubectl drover restored\", since the hub's etcd was restored from a backup"
