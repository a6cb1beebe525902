// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// anyDigest is the digest of a set that matches what a member has, whatever that is. It is no digest of a set with content.
const anyDigest = "*"

// Unchanged returns a set that keeps what a member has of an ID: nothing is sent or removed until Replace is called with another set.
func Unchanged(id string) *set.Set { return &set.Set{ID: id, Digest: anyDigest} }

// Absent returns a set that removes what a member has of an ID and notifies its owner as any other set does. Remains counts where it is still
// there.
func Absent(id string) *set.Set { return &set.Set{ID: id} }

func unchanged(s *set.Set) bool {
	return s != nil && (s.Digest == anyDigest || s.Digest == excessDigest)
}

// IsAbsent reports whether a set is Absent.
func IsAbsent(s *set.Set) bool { return s != nil && s.Digest == "" }

// size returns the number of bytes to send; 0 for nil, which is a removal.
func size(s *set.Set) int {
	if s == nil {
		return 0
	}
	return len(s.JSON())
}

// content is a set that an owner wants, and its usual state in a member: both are kept once for all members.
type content struct {
	set     *set.Set
	applied *protocol.SetState
}

func newContent(s *set.Set) content {
	return content{set: s, applied: &protocol.SetState{ID: s.ID, Digest: s.Digest, Phase: protocol.SetApplied}}
}

// share returns the state to keep for one that a member reported.
func (c content) share(state *protocol.SetState) *protocol.SetState {
	if c.set != nil && state.Digest == c.set.Digest && plain(state) {
		return c.applied
	}
	return state
}

// plain reports whether a state says only that a set is applied.
func plain(s *protocol.SetState) bool {
	return s.Phase == protocol.SetApplied && s.Message == "" && len(s.Objects) == 0 && s.Failed == 0 && s.Namespaces == 0 && len(s.Short) == 0
}
