// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// memberSets are the sets of one Cluster: what it should have and what it has. Store.mu guards it.
type memberSets struct {
	name      types.NamespacedName
	connected bool // through a replica of its agent; while it is gone, node agents count as well
	// refuses is why the agent takes no sets, ReasonAgentTooOld or ReasonAgentReadOnly, or why the hub sends none,
	// ReasonIdentityMismatch; empty if neither.
	refuses string
	// withheld reports whether the spec of the Cluster says ReadOnly: nothing is sent, and what is there is removed.
	withheld bool
	synced   bool // the agent has reported all its sets, and reports each change
	gone     bool // Forget was called
	reported bool // the agent has reported all its sets to this store at least once
	// leaderless reports whether no replica of the agent has led for members.LeaderPatience.
	leaderless bool
	confirmation

	wants  map[string]*wanted            // pointers, since a map has room for eight values and most members have one
	has    map[string]*protocol.SetState // as the agent last reported; kept while the member is away
	failed map[string]*failure
	flow
}

// flow is what is being sent to a member, and how much the member has taken of late.
type flow struct {
	sends map[string]*sending // in progress
	held  map[string]struct{} // IDs that are sent when there is room for them in progress
	// taken counts the sends that succeeded in the period of slowSend since begun, and in the one before.
	taken [2]int
	begun time.Time
}

// tookLocked counts a send that succeeded.
func (f *flow) tookLocked(now time.Time) {
	switch since := now.Sub(f.begun); {
	case since >= 2*slowSend:
		f.taken, f.begun = [2]int{}, now
	case since >= slowSend:
		f.taken, f.begun = [2]int{0, f.taken[0]}, now
	}
	f.taken[0]++
}

// maxSendsLocked returns how many sends to the member may be in progress. While one of them is slow, these are as many as the member has taken of late:
// one that has much to do goes on at its pace, and one that does not respond occupies few workers.
func (f *flow) maxSendsLocked(now time.Time) int {
	for _, s := range f.sends {
		if !s.slow {
			continue
		}
		if now.Sub(f.begun) >= 2*slowSend {
			return maxSlowSends
		}
		return min(max(maxSlowSends, f.taken[0]+f.taken[1]), maxMemberSends)
	}
	return maxMemberSends
}

// wanted is a set that an owner wants in a member. One without owner is absent: until the store is complete, it stands for a set that was withdrawn.
type wanted struct {
	key Key
	content
	since time.Time // when its content last changed
}

// failure is why a set was not delivered.
type failure struct {
	count   int
	refused bool // the agent rejected it, so that a retry is unlikely to help
	lost    bool // the agent had it, and reports that it does not have it any more
	message string
	retryAt time.Time
}

func newMemberSets(name types.NamespacedName) *memberSets {
	return &memberSets{name: name, wants: map[string]*wanted{}, has: map[string]*protocol.SetState{},
		failed: map[string]*failure{}, flow: flow{sends: map[string]*sending{}, held: map[string]struct{}{}}}
}

// roomLocked reports whether one more set may be sent to the member now.
func (m *memberSets) roomLocked(want *set.Set) bool {
	bytes := 0
	for _, s := range m.sends {
		bytes += size(s.due)
	}
	return len(m.sends) < m.maxSendsLocked(time.Now()) && (bytes == 0 || bytes+size(want) <= maxMemberBytes)
}

// takesLocked reports whether a member is connected, takes sets, and has reported those that it has.
func (m *memberSets) takesLocked() bool {
	return m.connected && m.refuses == "" && !m.gone && m.synced
}

// entryLocked returns what is wanted of an ID, nothing if no owner wants a set of it.
func (m *memberSets) entryLocked(id string) wanted {
	if w := m.wants[id]; w != nil {
		return *w
	}
	return wanted{}
}

// wantedLocked returns the set that a member should have of this ID, nil for none.
func (m *memberSets) wantedLocked(id string) *set.Set {
	want := m.entryLocked(id).set
	if m.withheld || IsAbsent(want) {
		return nil
	}
	return want
}

// hasLocked reports whether a member has the set that it should have of this ID, applied or not.
func (m *memberSets) hasLocked(id string) bool {
	want, has := m.wantedLocked(id), m.has[id]
	return m.refuses == "" && want != nil && has != nil && has.Digest == want.Digest
}

// lacksLocked reports whether a member is known to have no set of an ID: its agent reported so last, connected now or not.
func (m *memberSets) lacksLocked(id string) bool {
	return m.reported && m.refuses == "" && m.has[id] == nil && m.sends[id] == nil && (!m.connected || m.takesLocked())
}

// withholdLocked reads the profile from the spec of a member's Cluster, and reports whether it changed. If it cannot be read, nothing changes.
func (d *Store) withholdLocked(m *memberSets) bool {
	if d.ReadOnly == nil {
		return false
	}
	withheld, err := d.ReadOnly(d.ctx, m.name)
	if err != nil || withheld == m.withheld {
		return false
	}
	m.withheld = withheld
	d.clearFailuresLocked(m)
	return true
}

// lookLocked reads a member's connection. If that changed, it returns the owners of the sets that the member lacks.
func (d *Store) lookLocked(m *memberSets) []Key {
	if d.queue == nil {
		return nil
	}
	state := d.State(m.name)
	if m.gone {
		m.connected = state.Connected() // for when to drop it
		return nil
	}
	connected, refuses := state.Agents() > 0, m.refuses // a node agent takes no sets
	if report := state.Report; connected && report != nil {
		refuses = refusal(report)
	}
	if state.Clones != nil {
		refuses = v1.ReasonIdentityMismatch
	}
	examined := d.examineLocked(m)
	leaderless := !state.NoLeader.IsZero()
	changed := d.withholdLocked(m) || examined || connected != m.connected || refuses != m.refuses ||
		leaderless != m.leaderless
	m.leaderless = leaderless
	if m.connected = connected; refuses != m.refuses {
		m.refuseLocked(refuses)
	}
	if !changed {
		return nil
	}
	d.enqueueAllLocked(m)
	return m.lackingLocked()
}

// refuseLocked notes why the agent takes no sets, empty if it does, and returns the owners of the sets that the member lacks. If it takes none,
// what it had may still be there, but is no longer maintained and does not count.
func (m *memberSets) refuseLocked(reason string) []Key {
	m.refuses = reason
	return m.lackingLocked()
}

// lackingLocked returns the owners of the sets that the member lacks.
func (m *memberSets) lackingLocked() []Key {
	var keys []Key
	for id, want := range m.wants {
		if IsAbsent(want.set) && m.lacksLocked(id) {
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
