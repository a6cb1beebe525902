// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"
	"time"

	"github.com/drover-dev/drover/agent/watch"
)

// unclaimedEntry is the queue entry for objects with the label of a set that does not want them. It is not a valid id
// of a set.
const unclaimedEntry = "///"

// unclaimedSettle is how long after such an object appears it is looked for: a backup is restored object by object.
const unclaimedSettle = time.Second

// maxUnclaimed is how many unclaimed are reported at most.
const maxUnclaimed = 16

// mayBeUnclaimed reports whether an object carries the label of a set that is not known, or of any set without being
// applied by this field manager. It must be called under state.mu.
func (l *leadership) mayBeUnclaimed(r ref, now *object) bool {
	if now == nil || now.set == "" || now.deleting {
		return false
	}
	_, wanted := l.state.owners[r]
	_, known := l.state.ids[now.set]
	return !wanted && (!known || now.mark == 0)
}

// reviewUnclaimed offers to the hub the sets whose objects appeared without them, such as by the restore of a backup:
// the hub has those removed that it does not know. Objects that this field manager has not applied are reported and
// stay: anyone who may write an object can give it a label.
func (l *leadership) reviewUnclaimed() {
	select {
	case <-l.ready:
	default:
		return // it is queued again
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
