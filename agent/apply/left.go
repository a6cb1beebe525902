// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

// leftPrefix begins the id of a set that an earlier agent left and whose own id its label does not tell.
const leftPrefix = "left/"

// labelOf is the label of the set of an id.
func labelOf(id string) string {
	if label, left := strings.CutPrefix(id, leftPrefix); left {
		return label
	}
	return expansion.SetLabel(id)
}

// leftID is the id of the set that a label names, or one that stands for it where the label holds a hash.
func leftID(label string) string {
	if id := strings.Replace(label, ".", "/", 1); protocol.ValidSetID(id) && expansion.SetLabel(id) == label {
		return id
	}
	return leftPrefix + label
}

// offerLeft offers the hub the sets that objects in the member belong to and that are not stored: an earlier agent made them, which is
// gone with its store. The hub sends those that it wants, which takes the objects over, and has the others removed, as it does with every
// set that it does not know, once it knows itself what it wants.
func (t *term) offerLeft() {
	for _, label := range t.world.labels() {
		id := leftID(label)
		t.book.mu.Lock()
		_, known := t.book.ids[label]
		if !known {
			t.book.unseen[id] = true
		}
		t.book.mu.Unlock()
		if known || !protocol.ValidSetID(id) {
			continue
		}
		t.log().Info("found what an earlier agent left", "set", label)
		t.board.show(protocol.SetState{ID: id, Phase: protocol.SetPending, Message: "an earlier agent left it"})
	}
}

// taken is whether a set that stands for a label must leave its objects alone: the hub has sent the one that the label is of.
func (t *term) taken(s *set) bool {
	t.book.mu.Lock()
	defer t.book.mu.Unlock()
	return t.book.ids[s.label] != s.id
}
