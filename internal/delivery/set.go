// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

// Set is a set as it is sent. Members with the same content share one. It is immutable.
type Set struct {
	ID     string
	Digest string
	body   []byte
	// unchanged means that nothing is sent: the member keeps what it has.
	unchanged bool
	// absent means that the set is removed and its owner is notified.
	absent bool
	// applied is the usual final state, kept once for all members.
	applied *protocol.SetState
}

// NewSet returns a set. It fails if the set is too large or the ID is not valid.
func NewSet(id string, expiresAt *time.Time, content expansion.Content) (*Set, error) {
	set, err := protocol.NewSet(id, expiresAt, content)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(set)
	if err != nil {
		return nil, fmt.Errorf("make set %s: %w", id, err)
	}
	return &Set{ID: id, Digest: set.Digest, body: body, applied: &protocol.SetState{ID: id, Digest: set.Digest, Phase: protocol.SetApplied}}, nil
}

// Unchanged returns a set that keeps what a member has of an ID: nothing is sent or removed until Replace is called with another set.
func Unchanged(id string) *Set { return &Set{ID: id, unchanged: true} }

// Absent returns a set that removes what a member has of an ID and notifies its owner as any other set does. Remains counts where it is still
// there.
func Absent(id string) *Set { return &Set{ID: id, absent: true} }

// Body returns the set as it is sent, a protocol.Set as JSON. It must not be changed.
func (s *Set) Body() []byte { return s.body }

// size returns the number of bytes to send; 0 for nil, which is a removal.
func (s *Set) size() int {
	if s == nil {
		return 0
	}
	return len(s.body)
}

// share returns the state to keep for one that a member reported. set may be nil.
func share(state *protocol.SetState, set *Set) *protocol.SetState {
	if set != nil && set.applied != nil && state.Digest == set.Digest && plain(state) {
		return set.applied
	}
	return state
}

// plain reports whether a state says only that a set is applied.
func plain(s *protocol.SetState) bool {
	return s.Phase == protocol.SetApplied && s.Message == "" && len(s.Objects) == 0 && s.Failed == 0 && s.Namespaces == 0 && len(s.Short) == 0
}
