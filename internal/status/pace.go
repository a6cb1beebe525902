// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// How long a status rests between two writes. A member that cannot make up its mind may have a status changed as fast as it talks.
const (
	firstRest = time.Second
	maxRest   = 10 * time.Second
)

// pace is when a status was written last and how long it rests from then on.
type pace struct {
	at   time.Time
	rest time.Duration
}

// Wait is for how long a status should not be written yet, 0 if it may be. What is urgent need not wait, nor does what follows it first; of
// the rest, each write waits longer for the one before, from a second to ten, until there is none for a while.
func (w *Written) Wait(object client.Object, urgent bool, now time.Time) time.Duration {
	name := client.ObjectKeyFromObject(object)
	w.mu.Lock()
	defer w.mu.Unlock()
	if urgent {
		delete(w.paces, name)
	}
	p := w.paces[name]
	return max(0, p.at.Add(p.rest).Sub(now))
}

// Commit commits an update and remembers what was written.
func (w *Written) Commit(ctx context.Context, u *Update, c client.Client, recorder events.EventRecorder, now time.Time) error {
	err := u.Commit(ctx, c, recorder)
	if u.object.GetResourceVersion() != u.before.GetResourceVersion() {
		w.Note(u.object)
		w.slow(client.ObjectKeyFromObject(u.object), now)
	}
	return err
}

// slow notes a write.
func (w *Written) slow(name types.NamespacedName, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.paces == nil {
		w.paces = map[types.NamespacedName]pace{}
	}
	switch before, known := w.paces[name]; {
	case !known:
		w.paces[name] = pace{at: now}
	case now.Sub(before.at) > 2*maxRest:
		w.paces[name] = pace{at: now, rest: firstRest}
	default:
		w.paces[name] = pace{at: now, rest: min(max(2*before.rest, firstRest), maxRest)}
	}
}
