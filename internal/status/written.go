// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The wait between two writes of a status. The reports of a member can change a status as often as they come.
const (
	firstRest = time.Second
	maxRest   = 10 * time.Second
)

// Written remembers what a controller wrote of the objects of one kind: each object until the cache has it, and when
// its status was written. What is decided from an older state would be written, and reported as an event, again. The
// zero value is ready.
type Written[T client.Object] struct {
	mu      sync.Mutex // guards what follows
	objects map[types.NamespacedName]T
	paces   map[types.NamespacedName]pace
}

// pace is when the status of an object was written, and how long the next write waits from then on.
type pace struct {
	at         time.Time
	rest       time.Duration
	generation int64
	told       map[string]time.Time // when a rare event had each reason, of this generation
}

// Output is where a status is written to.
type Output struct {
	Client   client.Client
	Recorder events.EventRecorder
	Now      func() time.Time
}

// Change is what a reconcile decided about the status of an object.
type Change struct {
	// Delay is how long the status is not written, because it is about to change; 0 for none.
	Delay time.Duration
	// Until is how long it takes until time alone changes the status; 0 for never.
	Until time.Duration
	// Rest is the wait between two writes. With 0 it grows: each write waits longer for the one before, from a second to
	// ten, until there is none for a while.
	Rest time.Duration
	// Fill changes the object, and reports whether that is urgent: it does not wait, nor, where the wait grows, does the
	// write that follows it.
	Fill func(*Update) (urgent bool)
}

// Write writes a status as soon as it may be written, and returns when to reconcile the object again.
func (w *Written[T]) Write(ctx context.Context, out Output, object T, c Change) (reconcile.Result, error) {
	if c.Delay > 0 {
		return reconcile.Result{RequeueAfter: sooner(c.Until, c.Delay)}, nil
	}
	update := Begin(object)
	urgent := c.Fill(update)
	if !update.changed() {
		return reconcile.Result{RequeueAfter: c.Until}, nil
	}
	name := client.ObjectKeyFromObject(object)
	if wait := w.wait(name, urgent, out.Now()); wait > 0 {
		return reconcile.Result{RequeueAfter: sooner(c.Until, wait)}, nil
	}
	told := update.rare()
	err := w.Commit(ctx, out, update)
	if object.GetResourceVersion() != update.before.GetResourceVersion() {
		w.slow(object, c.Rest, told, out.Now())
	}
	return reconcile.Result{RequeueAfter: c.Until}, err
}

// Commit commits an update, and remembers what was written.
func (w *Written[T]) Commit(ctx context.Context, out Output, u *Update) error {
	err := u.Commit(ctx, out.Client, out.Recorder)
	if object, ok := u.object.(T); ok && u.object.GetResourceVersion() != u.before.GetResourceVersion() {
		w.Note(object)
	}
	return err
}

// Note records an object as the API server returned it for a write.
func (w *Written[T]) Note(object T) {
	name := client.ObjectKeyFromObject(object)
	object.SetManagedFields(nil)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects == nil {
		w.objects = map[types.NamespacedName]T{}
	}
	if known, ok := w.objects[name]; !ok || newer(object, known) {
		w.objects[name] = object
	}
}

// Newest returns an object as it was written, or as the cache has it if that is not older. The caller may change what
// was written, and not what it passed, if that is shared.
func (w *Written[T]) Newest(cached T) T {
	name := client.ObjectKeyFromObject(cached)
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.objects[name]
	if !ok {
		return cached
	}
	if known.GetUID() == cached.GetUID() && newer(known, cached) {
		return known.DeepCopyObject().(T)
	}
	delete(w.objects, name)
	return cached
}

// Forget drops what is known of an object that is gone.
func (w *Written[T]) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, name)
	delete(w.paces, name)
}

// Told returns when a rare event with a reason was last recorded about this generation of an object; zero if none was.
func (w *Written[T]) Told(object T, reason string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paces[client.ObjectKeyFromObject(object)]
	if p.generation != object.GetGeneration() {
		return time.Time{}
	}
	return p.told[reason]
}

// wait returns how long a status is not written yet, 0 if it may be.
func (w *Written[T]) wait(name types.NamespacedName, urgent bool, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, known := w.paces[name]
	if urgent && known {
		p.at, p.rest = time.Time{}, 0
		w.paces[name] = p
	}
	return max(0, p.at.Add(p.rest).Sub(now))
}

// slow records a write and its rare events. The next write rests for that time, or for one that grows.
func (w *Written[T]) slow(object T, rest time.Duration, told []string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := client.ObjectKeyFromObject(object)
	p := w.paces[name]
	switch {
	case rest > 0:
		p.rest = rest
	case p.at.IsZero():
		p.rest = 0
	case now.Sub(p.at) > 2*maxRest:
		p.rest = firstRest
	default:
		p.rest = min(max(2*p.rest, firstRest), maxRest)
	}
	p.at = now
	if p.generation != object.GetGeneration() {
		p.generation, p.told = object.GetGeneration(), nil
	}
	for _, reason := range told {
		if p.told == nil {
			p.told = map[string]time.Time{}
		}
		p.told[reason] = now
	}
	if w.paces == nil {
		w.paces = map[types.NamespacedName]pace{}
	}
	w.paces[name] = p
}

// sooner returns the shorter of two times to wait; 0 means none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// newer reports whether a is newer than b; false if they cannot be compared.
func newer(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
