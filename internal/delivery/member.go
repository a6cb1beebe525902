// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// member is the state of one Cluster: the sets that it should have and the sets that it has. The Store's lock protects
// it.
type member struct {
	name types.NamespacedName
	connection
	synced    bool // set if the agent has reported all its sets and reports each change
	forgotten bool // set if Forget was called
	reported  bool // set if the agent has ever reported all its sets to this store
	// silent is the time when the agent connected or stopped reporting its sets.
	silent time.Time
	// hold records the changes that are waiting for confirmation. comparing is true if unusedID has been queued to
	// compute these changes.
	hold      unconfirmed
	comparing bool

	wants  map[string]*wanted            // pointers, because a map allocates eight values, but most members have one
	has    map[string]*protocol.SetState // as last reported by the agent; kept while the member is disconnected
	failed map[string]*failure
	flow
}

// connection is the part of a member's state that is independent of its sets.
type connection struct {
	connected bool // set if a replica of its agent is connected; after Forget, node agents count too
	// refuses is ReasonAgentTooOld or ReasonAgentReadOnly if the agent accepts no sets, and ReasonIdentityMismatch if the
	// hub sends none. It is empty if sets can be sent. Otherwise, the member might still have sets that were sent earlier,
	// but they are not maintained and do not count.
	refuses string
	// withheld is true if the Cluster's spec has the ReadOnly profile. In this case, nothing is sent, and existing sets
	// are removed.
	withheld bool
	// basic is true if the agent supports only basic sets; see protocol.BasicSet.
	basic bool
	// leaderless is true if no replica of the agent has been the leader for at least members.LeaderPatience.
	leaderless bool
}

// connectionOf returns the connection of a member, given the state of its agents and its previous connection.
func connectionOf(state members.State, was connection) connection {
	now := was
	now.connected, now.leaderless = state.Agents() > 0, !state.NoLeader.IsZero() // a node agent accepts no sets
	report := state.Report
	if now.connected && report != nil {
		now.basic = !report.Has(protocol.FeatureBaselines)
	}
	switch {
	case state.Clones != nil:
		now.refuses = v1.ReasonIdentityMismatch
	case !now.connected || report == nil: // there is no new report, so the previous reason is kept
	case report.Profile == string(v1.ProfileReadOnly):
		now.refuses = v1.ReasonAgentReadOnly
	case !report.Has(protocol.FeatureSets):
		now.refuses = v1.ReasonAgentTooOld
	default:
		now.refuses = ""
	}
	return now
}

// wanted is a set that an owner requires in a member. Members in which the owner declared the set at the same time
// share an entry, so entries must not be changed. An entry without an owner represents a set that has been withdrawn.
// Such entries exist only until the store is complete.
type wanted struct {
	key Key
	content
	since time.Time // when the content last changed
}

func newMember(name types.NamespacedName) *member {
	return &member{name: name, wants: map[string]*wanted{}, has: map[string]*protocol.SetState{},
		failed: map[string]*failure{}, flow: flow{sends: map[string]*sending{}, waiting: map[string]struct{}{}}}
}

// takes reports whether a member is connected, accepts sets, and has reported its sets.
func (m *member) takes() bool {
	return m.connected && m.refuses == "" && !m.forgotten && m.synced
}

// accepts reports whether a member's agent supports the kind of set that an ID belongs to.
func (m *member) accepts(id string) bool {
	return !m.basic || protocol.BasicSet(id)
}

// entry returns the required set with the given ID, or a zero value if no owner requires it.
func (m *member) entry(id string) wanted {
	if w := m.wants[id]; w != nil {
		return *w
	}
	return wanted{}
}

// wanted returns the set with the given ID that a member should have, or nil if it should have none.
func (m *member) wanted(id string) *set.Set {
	want := m.entry(id).set
	if m.withheld || IsAbsent(want) {
		return nil
	}
	return want
}

// hasWanted reports whether a member has the required version of a set. The agent might not have applied it yet.
func (m *member) hasWanted(id string) bool {
	want, has := m.wanted(id), m.has[id]
	return m.refuses == "" && want != nil && has != nil && has.Digest == want.Digest
}

// lacks reports whether a member is known not to have a set with the given ID, according to its agent's last report.
// The member may be disconnected.
func (m *member) lacks(id string) bool {
	return m.reported && m.refuses == "" && m.has[id] == nil && m.sends[id] == nil && (!m.connected || m.takes())
}

// refuse records why the agent accepts no sets, and returns the owners of the sets that the member lacks.
func (m *member) refuse(reason string) []Key {
	m.refuses = reason
	return m.lacking()
}

// lacking returns the owners of the sets that the member lacks or has not applied yet.
func (m *member) lacking() []Key {
	var keys []Key
	for id, want := range m.wants {
		if IsAbsent(want.set) && m.lacks(id) {
			continue
		}
		if !m.hasWanted(id) || m.has[id].Phase != protocol.SetApplied {
			keys = append(keys, want.key)
		}
	}
	return keys
}

// anyDigest matches any version of a set in a member. It is not the digest of any content.
const anyDigest = "*"

// Unchanged returns a set that leaves the member's current set with the given ID as it is. Nothing is sent or removed
// until Replace is called with another set.
func Unchanged(id string) *set.Set { return &set.Set{ID: id, Digest: anyDigest} }

// Absent returns a set that causes the member's set with the given ID to be removed. The set's owner is notified of
// changes as for any other set. Remains counts the members that still have the set.
func Absent(id string) *set.Set { return &set.Set{ID: id} }

func unchanged(s *set.Set) bool {
	return s != nil && (s.Digest == anyDigest || s.Digest == excessDigest)
}

// IsAbsent reports whether a set was returned by Absent.
func IsAbsent(s *set.Set) bool { return s != nil && s.Digest == "" }

// excessDigest is the digest of every set whose content the store does not keep because the set's workspace has too
// many large sets.
const excessDigest = "*excess"

func excess(s *set.Set) bool { return s != nil && s.Digest == excessDigest }

// due reports whether a set must be sent to a member or removed from it now. If the member cannot take it now, the set
// is queued again when the connection changes, when the agent reports its sets, or when the current send ends.
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
		return !unchanged(want) && !m.hasWanted(id) && m.accepts(id)
	}
	// A set without an owner is removed only after all owners have declared their sets.
	return m.has[id] != nil && (r.complete || m.withheld || IsAbsent(m.entry(id).set))
}

// next returns the version of a set to send to a member, or nil if the set is to be removed.
func (m *member) next(id string, r rule) *set.Set {
	if m.outdated(id, r) {
		return nil
	}
	return m.wanted(id)
}

// failure describes why a set was not delivered.
type failure struct {
	count   int
	refused bool // set if the agent rejected the set; a retry is then unlikely to help
	lost    bool // set if the agent had the set and reports that it no longer has it
	message string
	retryAt time.Time
}

// retries determines when to send a set again. The Store's lock protects it.
type retries struct {
	backoff workqueue.TypedRateLimiter[target]
}

// failed records that a set could not be sent or removed.
func (r retries) failed(m *member, id string, err error) {
	t := target{m.name, id}
	wait := r.backoff.When(t)
	refused := members.IsStatus(err, http.StatusUnprocessableEntity) ||
		members.IsStatus(err, http.StatusRequestEntityTooLarge)
	if refused {
		wait = maxPause
	}
	count, retryAt := r.backoff.NumRequeues(t), time.Now().Add(wait)
	m.failed[id] = &failure{count: count, refused: refused, message: err.Error(), retryAt: retryAt}
}

// lost records that a member no longer has a set that it once had. The pause before the set is sent again grows each
// time the member loses it.
func (r retries) lost(m *member, id string) {
	if f := m.failed[id]; f != nil && time.Since(f.retryAt) > maxPause {
		r.clear(m, id)
	}
	wait := r.backoff.When(target{m.name, id})
	m.failed[id] = &failure{lost: true, message: "the agent has lost the set", retryAt: time.Now().Add(wait)}
}

func (r retries) clear(m *member, id string) {
	if m.failed[id] != nil {
		delete(m.failed, id)
		r.backoff.Forget(target{m.name, id})
	}
}

func (r retries) clearAll(m *member) {
	for id := range m.failed {
		r.clear(m, id)
	}
}
