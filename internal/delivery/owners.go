// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"reflect"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// owners holds the hub objects that own sets. It also holds the owners that are expected to declare sets. The Store's
// lock protects it.
type owners struct {
	all map[Key]*owner
	// expected contains the owners for which Replace has not been called yet. It is nil until Expect is called.
	expected map[Key]struct{}
	// early contains the owners for which Replace was called before Expect. It is nil after the call to Expect.
	early map[Key]struct{}
	// complete is true once every expected owner has declared its sets.
	complete bool
}

// owner is an object on the hub that owns sets.
type owner struct {
	id      string               // the ID of the owner's sets
	members map[*member]struct{} // the members that should have a set of the owner
	sets    map[string]content   // the owner's sets by digest, so that members share them
	large   int                  // total size of the owner's large sets, in bytes
}

// expect replaces the list of owners that exist. It reports whether the store has become complete.
func (o *owners) expect(keys []Key) (completed bool) {
	before := o.expected
	o.expected = make(map[Key]struct{}, len(keys))
	for _, key := range keys {
		_, done := o.early[key]
		if _, still := before[key]; still || before == nil && !done {
			o.expected[key] = struct{}{}
		}
	}
	o.early = nil
	return o.finish()
}

func (o *owners) finish() (completed bool) {
	completed = !o.complete && len(o.expected) == 0
	o.complete = o.complete || completed
	return completed
}

// get returns an owner. It creates the owner if necessary.
func (o *owners) get(key Key) *owner {
	found := o.all[key]
	if found == nil {
		found = &owner{members: map[*member]struct{}{}, sets: map[string]content{}}
		o.all[key] = found
	}
	return found
}

// content returns the content of a set. All members to which the owner's set is delivered share this content. shared
// contains the sets that the current call to Replace has already seen, by digest.
func (o *owner) content(s *set.Set, shared map[string]content) content {
	for _, known := range []map[string]content{shared, o.sets} {
		if c, is := known[s.Digest]; is && c.set.ID == s.ID {
			shared[s.Digest] = c
			return c
		}
	}
	c := content{set: s, applied: protocol.Applied(s)}
	shared[s.Digest] = c
	return c
}

// replaced records the current sets of an owner. It returns the owners whose sets may now fit within the limit, and
// reports whether the store has become complete.
func (o *owners) replaced(key Key, of *owner, sets map[string]content) (room []Key, completed bool) {
	before := of.large
	of.sets, of.large = sets, 0
	for _, c := range sets {
		if n := size(c.set); n > largeSet {
			of.large += n
		}
	}
	if len(of.members) == 0 {
		delete(o.all, key)
	}
	if of.large < before {
		room = o.excessive(key.Namespace)
	}
	if o.early != nil {
		o.early[key] = struct{}{}
		return room, false
	}
	delete(o.expected, key)
	return room, o.finish()
}

// forget records that no owner has a set in the given member any longer.
func (o *owners) forget(m *member) {
	for _, w := range m.wants {
		if owner := o.all[w.key]; owner != nil {
			delete(owner.members, m)
		}
	}
}

// Limits on the memory that a workspace's sets use. They are necessary because large sets contain copies of Secrets,
// and any number of plans may refer to the same Secrets.
const (
	largeSet = 64 << 10  // bytes above which a set counts as large
	maxLarge = 128 << 20 // bytes of all large sets of a workspace
)

// bound returns the sets of an owner. If the workspace would exceed maxLarge, the owner's large sets are returned
// without content, and the members keep their current sets.
func (o *owners) bound(key Key, sets map[types.NamespacedName]*set.Set) map[types.NamespacedName]*set.Set {
	room, seen := maxLarge, map[string]bool{}
	for _, s := range sets {
		if n := size(s); n > largeSet && !seen[s.Digest] {
			seen[s.Digest] = true
			room -= n
		}
	}
	if len(seen) == 0 {
		return sets
	}
	for other, owner := range o.all {
		if other.Namespace == key.Namespace && other != key {
			room -= owner.large
		}
	}
	if room >= 0 {
		return sets
	}
	bounded := make(map[types.NamespacedName]*set.Set, len(sets))
	for name, s := range sets {
		if size(s) > largeSet {
			s = &set.Set{ID: s.ID, Digest: excessDigest}
		}
		bounded[name] = s
	}
	return bounded
}

// excessive returns the owners in a workspace that have sets whose content the store does not keep.
func (o *owners) excessive(workspace string) (keys []Key) {
	for key, owner := range o.all {
		if _, is := owner.sets[excessDigest]; is && key.Namespace == workspace {
			keys = append(keys, key)
		}
	}
	return keys
}

// size returns the size of a set's JSON, in bytes. It returns 0 for nil, which represents a removal.
func size(s *set.Set) int {
	if s == nil {
		return 0
	}
	return len(s.JSON())
}

// content is a set that an owner requires. It includes the state of a member that has applied the set successfully. All
// members share the same content.
type content struct {
	set     *set.Set
	applied *protocol.SetState
}

// share returns the state to store for a state that an agent reported. To save memory, it returns the shared state if
// the agent reports only that the set has been applied.
func (c content) share(s *protocol.SetState) *protocol.SetState {
	if c.set != nil && s.Digest == c.set.Digest && reflect.DeepEqual(s, c.applied) {
		return c.applied
	}
	return s
}
