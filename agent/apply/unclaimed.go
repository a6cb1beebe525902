// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/agent/watch"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// unclaimedEntry is the queue entry for unclaimed objects: objects that have the label of a set but are not in the set.
// It is not a valid set ID.
const unclaimedEntry = "///"

// unclaimedSettle is the delay between the first sign of an unclaimed object and the search for unclaimed objects.
// When a backup is restored, objects appear one by one, so more of them may follow.
const unclaimedSettle = time.Second

// maxUnclaimed is the maximum number of unclaimed objects that are reported.
const maxUnclaimed = 16

// mayBeUnclaimed reports whether an object may be unclaimed. An object that the agent has applied may be unclaimed if
// the set in its label is unknown. Any other object may be unclaimed if it has a set label. The caller must hold
// state.mu.
func (l *leadership) mayBeUnclaimed(r ref, now *object) bool {
	if now == nil || now.set == "" || now.deleting {
		return false
	}
	_, wanted := l.state.owners[r]
	_, known := l.state.ids[now.set]
	return !wanted && (!known || now.mark == 0)
}

// reviewUnclaimed finds objects that appeared without their sets, for example when a backup was restored, and publishes
// the sets. The hub then deletes the sets that are not required. Objects that the agent did not apply are reported but
// never deleted, because any user with write access to an object can set its labels.
func (l *leadership) reviewUnclaimed() {
	select {
	case <-l.ready:
	default:
		return // the entry is queued again
	}
	l.offerLeft()
	var candidates []ref
	for kind, objects := range l.cache {
		objects.Each(func(n watch.Name, o object) {
			if kind != kindNamespace && o.set != "" && o.mark == 0 && !o.deleting {
				candidates = append(candidates, ref{kind: kind, namespace: n.Namespace, name: n.Name})
			}
		})
	}
	var found []string
	l.state.mu.Lock()
	for _, r := range candidates {
		if _, wanted := l.state.owners[r]; !wanted {
			found = append(found, r.String())
		}
	}
	l.state.unclaimed = len(found) > 0
	l.state.mu.Unlock()
	slices.Sort(found)
	l.unclaimed(found[:min(len(found), maxUnclaimed)])
}

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
