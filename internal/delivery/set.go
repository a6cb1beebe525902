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

// Set is a set as it is sent. Members that are to have the same share one. It is never changed.
type Set struct {
	ID     string
	Digest string
	body   []byte
	// unchanged is for one that is not sent: the member keeps what it has.
	unchanged bool
	// absent is for one that is removed where it is, and whose owner hears of it.
	absent bool
	// applied is what most members say of it in the end, kept once.
	applied *protocol.SetState
}

// NewSet makes a set. It fails for what cannot be sent: it is too large, or its ID is none.
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

// Unchanged stands for whatever a member has of an ID: nothing is sent, and nothing removed, until another set is handed over.
func Unchanged(id string) *Set { return &Set{ID: id, unchanged: true} }

// Absent stands for nothing of an ID: what a member has of it is removed, and who handed this over hears of it as of any other set. Remains counts
// where it is still there.
func Absent(id string) *Set { return &Set{ID: id, absent: true} }

// Body is the set as members are sent it, a protocol.Set as JSON. It must not be changed.
func (s *Set) Body() []byte { return s.body }

// size is how many bytes are sent of it; 0 of nil, which is a removal.
func (s *Set) size() int {
	if s == nil {
		return 0
	}
	return len(s.body)
}

// share is the state to keep for one that a member told. set may be nil.
func share(state *protocol.SetState, set *Set) *protocol.SetState {
	if set != nil && set.applied != nil && state.Digest == set.Digest && plain(state) {
		return set.applied
	}
	return state
}

// plain is whether a state says nothing but that a set is applied.
func plain(s *protocol.SetState) bool {
	return s.Phase == protocol.SetApplied && s.Message == "" && len(s.Objects) == 0 && s.Failed == 0 && s.Namespaces == 0 && len(s.Short) == 0
}
