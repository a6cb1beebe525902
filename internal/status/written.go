// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Limits for the wait between two writes of the same status. Without a wait, every report from a member could cause a
// write.
const (
	firstRest = time.Second
	maxRest   = 10 * time.Second
)

// Written records a controller's writes to the objects of a kind. It keeps each object until the cache contains the
// written version, and keeps the time when the object's status was written. Without Written, a controller that reads an
// outdated object from the cache would repeat a write or an event. The zero value is ready to use.
type Written[T client.Object] struct {
	mu      sync.Mutex // guards the fields below
	objects map[types.NamespacedName]T
	paces   map[types.NamespacedName]pace
}

// pace holds the time when the status of an object was written and how long to wait until the next write.
type pace struct {
	at         time.Time
	rest       time.Duration
	generation int64
	told       map[string]time.Time // the times of rare events by reason, for this generation
}

// Output contains the clients that write a status and record its events.
type Output struct {
	Client   client.Client
	Recorder events.EventRecorder
	Now      func() time.Time
}

// Change describes how a reconcile changes the status of an object.
type Change struct {
	// Delay is how long to wait before writing the status, because it is about to change again. 0 means no delay.
	Delay time.Duration
	// Until is the time after which the status must be updated even if there is no event. 0 means never.
	Until time.Duration
	// Rest is the minimum time between writes. If it is 0, the time grows with each write from one second to ten seconds,
	// until there is a pause.
	Rest time.Duration
	// Fill changes the object, and reports whether the change is urgent. An urgent change does not wait. If Rest is 0,
	// the next change after an urgent one does not wait either.
	Fill func(*Update) (urgent bool)
}

// Write writes a status as soon as the pace allows, and returns the time until the object should be reconciled again.
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

// Commit commits an update, and keeps the written object.
func (w *Written[T]) Commit(ctx context.Context, out Output, u *Update) error {
	err := u.Commit(ctx, out.Client, out.Recorder)
	if object, ok := u.object.(T); ok && u.object.GetResourceVersion() != u.before.GetResourceVersion() {
		w.Note(object)
	}
	return err
}

// Note records an object that the API server returned in response to a write.
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

// Get reads an object and returns its newest known version; see Newest. If the object does not exist, Get forgets it
// and returns false. object is an empty object of the kind.
func (w *Written[T]) Get(
	ctx context.Context, cache client.Reader, name types.NamespacedName, object T,
) (newest T, found bool, err error) {
	if err := cache.Get(ctx, name, object); apierrors.IsNotFound(err) {
		w.Forget(name)
		return object, false, nil
	} else if err != nil {
		return object, false, err
	}
	return w.Newest(object), true, nil
}

// Newest returns the version of an object that was last written, or the cached version if it is not older. The caller
// may change a written version, because it is a copy. It must not change the cached version if the cache shares that
// version with others.
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

// Forget drops the data about an object that has been deleted.
func (w *Written[T]) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.objects, name)
	delete(w.paces, name)
}

// Told returns the last time at which a rare event with the given reason was recorded for the current generation of an
// object. It returns the zero time if there was no such event.
func (w *Written[T]) Told(object T, reason string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.paces[client.ObjectKeyFromObject(object)]
	if p.generation != object.GetGeneration() {
		return time.Time{}
	}
	return p.told[reason]
}

// wait returns the time until the status may be written, or 0 if it may be written now.
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

// slow records a write and its rare events. The next write waits for rest. If rest is 0, it waits for a duration that
// grows with each write.
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

// sooner returns the shorter of two waits. 0 means that there is no wait.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// newer reports whether a is newer than b. It returns false if the versions cannot be compared.
func newer(a, b client.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}
