// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// member is the state of one Cluster: the sets that it should have, and those that it has. Store.mu guards it.
type member struct {
	name types.NamespacedName
	connection
	synced   bool // the agent has reported all its sets, and reports each change
	gone     bool // Forget was called
	reported bool // the agent has reported all its sets to this store at least once
	// hold is what waits for a confirmation, and comparing reports whether unusedID is queued for it.
	hold      unconfirmed
	comparing bool

	wants  map[string]*wanted            // pointers, since a map has room for eight values and most members have one
	has    map[string]*protocol.SetState // as the agent last reported; kept while the member is away
	failed map[string]*failure
	flow
}

// connection is the state of a member that does not come from its sets.
type connection struct {
	connected bool // through a replica of its agent; while it is gone, node agents count as well
	// refuses is why the agent takes no sets, ReasonAgentTooOld or ReasonAgentReadOnly, or why the hub sends none,
	// ReasonIdentityMismatch; empty if neither. What such a member had may still be there, but it is not maintained and
	// does not count.
	refuses string
	// withheld reports whether the spec of the Cluster says ReadOnly: nothing is sent, and what is there is removed.
	withheld bool
	// leaderless reports whether no replica of the agent has led for members.LeaderPatience.
	leaderless bool
}

// connectionOf returns the connection of a member, by the state that its agents are in and the connection before.
func connectionOf(state members.State, was connection) connection {
	now := was
	now.connected, now.leaderless = state.Agents() > 0, !state.NoLeader.IsZero() // a node agent takes no sets
	report := state.Report
	switch {
	case state.Clones != nil:
		now.refuses = v1.ReasonIdentityMismatch
	case !now.connected || report == nil: // it is not known anew
	case report.Profile == string(v1.ProfileReadOnly):
		now.refuses = v1.ReasonAgentReadOnly
	case !report.Has(protocol.FeatureSets):
		now.refuses = v1.ReasonAgentTooOld
	default:
		now.refuses = ""
	}
	return now
}

// wanted is a set that an owner wants in a member. One without owner is absent: until the store is complete, it stands
// for a set that was withdrawn.
type wanted struct {
	key Key
	content
	since time.Time // when its content last changed
}

func newMember(name types.NamespacedName) *member {
	return &member{name: name, wants: map[string]*wanted{}, has: map[string]*protocol.SetState{},
		failed: map[string]*failure{}, flow: flow{sends: map[string]*sending{}, waiting: map[string]struct{}{}}}
}

// takes reports whether a member is connected, takes sets, and has reported those that it has.
func (m *member) takes() bool {
	return m.connected && m.refuses == "" && !m.gone && m.synced
}

// entry returns what is wanted of an ID, nothing if no owner wants a set of it.
func (m *member) entry(id string) wanted {
	if w := m.wants[id]; w != nil {
		return *w
	}
	return wanted{}
}

// wanted returns the set that a member should have of this ID, nil for none.
func (m *member) wanted(id string) *set.Set {
	want := m.entry(id).set
	if m.withheld || IsAbsent(want) {
		return nil
	}
	return want
}

// hasWanted reports whether a member has the set that it should have of this ID, applied or not.
func (m *member) hasWanted(id string) bool {
	want, has := m.wanted(id), m.has[id]
	return m.refuses == "" && want != nil && has != nil && has.Digest == want.Digest
}

// lacks reports whether a member is known to have no set of an ID: its agent reported so last, connected now or not.
func (m *member) lacks(id string) bool {
	return m.reported && m.refuses == "" && m.has[id] == nil && m.sends[id] == nil && (!m.connected || m.takes())
}

// refuse notes why the agent takes no sets, and returns the owners of the sets that the member lacks.
func (m *member) refuse(reason string) []Key {
	m.refuses = reason
	return m.lacking()
}

// lacking returns the owners of the sets that the member lacks.
func (m *member) lacking() []Key {
	var keys []Key
	for id, want := range m.wants {
		if IsAbsent(want.set) && m.lacks(id) {
			continue
		}
		if !m.hasWanted(id) {
			keys = append(keys, want.key)
		}
	}
	return keys
}

// anyDigest is the digest of a set that matches what a member has, whatever that is. It is no digest of a set with
// content.
const anyDigest = "*"

// Unchanged returns a set that keeps what a member has of an ID: nothing is sent or removed until Replace is called
// with another set.
func Unchanged(id string) *set.Set { return &set.Set{ID: id, Digest: anyDigest} }

// Absent returns a set that removes what a member has of an ID and notifies its owner as any other set does. Remains
// counts where it is still there.
func Absent(id string) *set.Set { return &set.Set{ID: id} }

func unchanged(s *set.Set) bool {
	return s != nil && (s.Digest == anyDigest || s.Digest == excessDigest)
}

// IsAbsent reports whether a set is Absent.
func IsAbsent(s *set.Set) bool { return s != nil && s.Digest == "" }

// excessDigest is the digest of a set that is not kept because its workspace has too many large ones.
const excessDigest = "*excess"

func excess(s *set.Set) bool { return s != nil && s.Digest == excessDigest }

// due reports whether a set is to be sent to a member or removed there now. If the member cannot take it, its
// connection or the report of its sets puts it into the queue later, and so does the end of a send.
func (m *member) due(id string, r rule) bool {
	switch {
	case !m.takes() || m.sends[id] != nil:
		return false
	case m.hold.Waits() && id == unusedID:
		return m.agrees()
	case m.outdated(id, r):
		return true
	case m.hold.Holds(id, m.wants[id] != nil):
		return false
	}
	if want := m.wanted(id); want != nil {
		return !unchanged(want) && !m.hasWanted(id)
	}
	// Without an owner a set is removed only if all owners have said what they want.
	return m.has[id] != nil && (r.complete || m.withheld || IsAbsent(m.entry(id).set))
}

// next returns the set that is to be sent to a member next, nil for a removal.
func (m *member) next(id string, r rule) *set.Set {
	if m.outdated(id, r) {
		return nil
	}
	return m.wanted(id)
}
