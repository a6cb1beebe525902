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

// This file handles a hub whose etcd was restored from a backup. Package checkpoint determines which members wait for
// confirmation, and how their sets are treated in the meantime.

// Unconfirmed returns the changes in a member that a restored hub makes only after an administrator has confirmed them.
// It returns nil if there are none. known is false while the changes have not been computed.
type Unconfirmed func(member types.NamespacedName) (difference *checkpoint.Difference, known bool)

// unconfirmed records the changes to one member that are waiting for confirmation.
type unconfirmed = checkpoint.Hold

// unusedID is an ID that no set has. Removing unusedID sends the current checkpoint to an agent and has no other
// effect.
const unusedID = "checkpoint"

// rule contains the inputs, other than the member's state, that determine whether a set is due.
type rule struct {
	revocable bool // set if sets of this kind are revoked immediately
	complete  bool // set if all owners have declared their sets
}

func (g *guarded) rule(id string) rule {
	return rule{revocable: g.options.Restore.Rule(id).RevokedAtOnce, complete: g.owners.complete}
}

// path returns the URL path to send s to, including the checkpoint for the agent.
func (o *Options) path(s *sending) (string, error) {
	reached := o.Restore.Checkpoint()
	if s.bare {
		reached = ""
	}
	if s.id == unusedID && reached == "" {
		return "", errors.New("this manager has no checkpoint for the agent yet")
	}
	return protocol.SetPathAt(s.id, reached), nil
}

// reaches records the checkpoint in an event, and reports whether the event contains one.
func (m *member) reaches(event *protocol.SetEvent) bool {
	if event.Checkpoint == "" {
		return false
	}
	m.hold.Reach(event.Checkpoint)
	return true
}

// countAsWithdrawn records that an owner has withdrawn a set, if this may have happened after a restore. In this case,
// the set is removed without confirmation.
func (m *member) countAsWithdrawn(id string, policy *checkpoint.Policy) {
	if policy.Lost != nil && (!m.synced || m.hold.Waits()) && policy.Rule(id).CountsAsWithdrawn {
		m.hold.Withdraw(id)
	}
}

// Unconfirmed returns the changes that are not sent to a member until an administrator confirms them. It returns nil if
// there are none. The changes are not known until all owners have declared their sets and the agent has reported its
// sets.
func (d *Store) Unconfirmed(name types.NamespacedName) (difference *checkpoint.Difference, known bool) {
	g := d.lock()
	defer d.unlock()
	m := g.members[name]
	if m == nil {
		return nil, false
	}
	g.examine(m)
	switch {
	case m.refuses != "":
		return nil, true
	case !m.reported:
		return nil, false
	}
	return m.hold.Difference(m.synced)
}

// examine determines whether a member is waiting for confirmation. If this has changed, it checks all sets of the
// member again.
func (g *guarded) examine(m *member) {
	changed := g.options.Restore.Examine(g.ctx, m.name, &m.hold, m.synced)
	g.compareLater(m)
	if changed {
		g.holdChanged(m)
	}
}

// holdChanged checks all sets of a member that has started or stopped waiting for confirmation, and notifies the owners
// that may be affected.
func (g *guarded) holdChanged(m *member) {
	g.enqueueAll(m)
	g.affected = append(append(g.affected, m.lacking()...), m.ownOwners(&g.options.Restore)...)
}

// compareLater schedules compare for a member that is waiting for confirmation. It delays the comparison a little,
// because an agent may report many changes at the same time.
func (g *guarded) compareLater(m *member) {
	if m.hold.Waits() && !m.comparing && g.queue != nil {
		m.comparing = true
		g.queue.AddAfter(target{m.name, unusedID}, g.options.Pause)
	}
}

// compare computes the changes that are waiting for confirmation in a member. If the changes differ from the previous
// result, it notifies the owners of sets that belong to the member itself.
func (g *guarded) compare(m *member) {
	m.comparing = false
	var now *checkpoint.Difference
	if m.hold.Waits() && g.owners.complete && m.reported {
		now = m.difference()
	}
	if m.hold.Compared(now) {
		g.affected = append(g.affected, m.ownOwners(&g.options.Restore)...)
	}
}

// ownOwners returns the owners of sets that belong to the member itself.
func (m *member) ownOwners(policy *checkpoint.Policy) (keys []Key) {
	for kind, of := range policy.Rules {
		if of.OfMember {
			keys = append(keys, Key{Kind: kind, Namespace: m.name.Namespace, Name: m.name.Name})
		}
	}
	return keys
}

// endHold records that a member no longer waits because its agent has received the current checkpoint.
func (g *guarded) endHold(m *member) {
	m.hold.End(g.options.Restore.Checkpoint())
	g.holdChanged(m)
}

// outdated reports whether a member that is waiting for confirmation has an outdated set of a kind that is revoked
// immediately. Such a set is removed immediately and sent again after the confirmation.
func (m *member) outdated(id string, r rule) bool {
	if !r.revocable || !m.hold.Waits() || !r.complete || m.has[id] == nil {
		return false
	}
	want := m.wanted(id)
	return want == nil || !unchanged(want) && m.has[id].Digest != want.Digest
}

// agrees reports whether a waiting member has exactly the sets that it should have, so that there is nothing to
// confirm. It returns false while a required set is Unchanged, because the owner of that set may still require a
// change. The hold ends only when the agent has the current checkpoint. Otherwise, a later leader would hold the member
// again because of its old checkpoint.
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
	const message = "The hub's etcd was restored from a backup that is older than the state of the member; the hub " +
		"changes nothing there until an administrator runs \"kubectl drover restored\""
	return Outcome{
		Stage: Refused, Reason: v1.ReasonHubRestored, Failures: []v1.Failure{{Object: wholeSet, Message: message}},
	}
}

// withheldUnconfirmed explains why a member still has a set that it should not have.
const withheldUnconfirmed = "; the hub's etcd was restored from a backup, so the existing objects stay in force " +
	"until an administrator runs \"kubectl drover restored\", and are removed then"
