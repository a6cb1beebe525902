// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"time"

	"github.com/drover-dev/drover/agent/watch"
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
