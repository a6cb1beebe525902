// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// leftPrefix is the prefix of substitute IDs. A set that an earlier agent left behind gets a substitute ID if its label
// contains a hash, because the real ID cannot be derived from a hash.
const leftPrefix = "left/"

// labelOf returns the label of the set with the given ID.
func labelOf(id string) string {
	if label, left := strings.CutPrefix(id, leftPrefix); left {
		return label
	}
	return set.Label(id)
}

// leftID returns the ID of the set that a label refers to, or a substitute ID if the label is a hash.
func leftID(label string) string {
	if id := strings.Replace(label, ".", "/", 1); set.ValidID(id) && set.Label(id) == label {
		return id
	}
	return leftPrefix + label
}

// offerLeft publishes sets that are not stored, but whose labels are on objects in the member. Such sets remain if the
// Secrets of an earlier agent were lost. The hub sends the sets that are still required again, and the agent takes over
// their objects. The hub deletes the other sets.
func (l *leadership) offerLeft() {
	_, labels := l.cache.ours()
	for _, label := range labels {
		id := leftID(label)
		l.state.mu.Lock()
		_, known := l.state.ids[label]
		if !known {
			l.state.unseen[id] = true
		}
		l.state.mu.Unlock()
		if known || !set.ValidID(id) {
			continue
		}
		l.options.Log.Info("found objects of an earlier agent", "set", label)
		l.publisher.publish(protocol.SetState{ID: id, Phase: protocol.SetPending, Message: "an earlier agent left it"})
	}
}

// taken reports whether the hub has sent the real set, with the same label, for a set with a substitute ID. If so, the
// objects belong to the real set.
func (l *leadership) taken(s *localSet) bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.ids[s.label] != s.id
}
