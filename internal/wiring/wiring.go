// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wiring adds controllers and the triggers for their reconciles to a manager.
package wiring

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// Controller describes a controller.
type Controller struct {
	Name       string
	Reconciler reconcile.Reconciler
	// Workers is the maximum number of concurrent reconciles. Zero means one.
	Workers int
	// EveryReplica causes the controller to run on all replicas rather than only on the leader.
	EveryReplica bool
	// Triggers request the controller's reconciles.
	Triggers []Trigger
}

// Add adds controllers to a manager.
func Add(mgr ctrl.Manager, controllers []Controller) error {
	for _, c := range controllers {
		elected := !c.EveryReplica
		b := ctrl.NewControllerManagedBy(mgr).Named(c.Name).
			WithOptions(controller.Options{MaxConcurrentReconciles: max(c.Workers, 1), NeedLeaderElection: &elected})
		for _, trigger := range c.Triggers {
			trigger(b)
		}
		if err := b.Complete(c.Reconciler); err != nil {
			return fmt.Errorf("set up controller %s: %w", c.Name, err)
		}
	}
	return nil
}

// CachesFilled returns an error for the first kind whose cache has not synced yet. It does not wait.
func CachesFilled(caches cache.Cache, kinds ...client.Object) error {
	now, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, object := range kinds {
		informer, err := caches.GetInformer(now, object)
		if err != nil || !informer.HasSynced() {
			return notFilled(object, err)
		}
	}
	return nil
}

// notFilled returns an error that explains why the cache of a kind has not synced.
func notFilled(object client.Object, err error) error {
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("cache of %T cannot be filled: the hub's API server does not have the kind; "+
			"apply the CRDs of this version", object)
	}
	return fmt.Errorf("cache of %T is not filled yet", object)
}

// Queue is a controller's work queue.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Trigger adds a source of reconcile requests to a controller.
type Trigger func(*builder.Builder)

// OnChange requests a reconcile of each object that changes. The object argument is an object of the kind to watch.
func OnChange(object client.Object, predicates ...predicate.Predicate) Trigger {
	return func(b *builder.Builder) { b.For(object, builder.WithPredicates(predicates...)) }
}

// OnOwnedChange requests a reconcile of an object's owner when the object changes.
func OnOwnedChange(object client.Object, options ...builder.OwnsOption) Trigger {
	return func(b *builder.Builder) { b.Owns(object, options...) }
}

// OnOtherChange passes changes to other objects to a handler. The handler requests reconciles of the affected objects.
func OnOtherChange(object client.Object, h handler.EventHandler, options ...builder.WatchesOption) Trigger {
	return func(b *builder.Builder) { b.Watches(object, h, options...) }
}

// OnSource adds the reconcile requests from a source.
func OnSource(from source.Source) Trigger {
	return func(b *builder.Builder) { b.WatchesRawSource(from) }
}

// OnDemand returns a trigger for a source, and the function that starts the source. The source watches nothing before
// the first call, which must come from a reconcile. The result of that call is final: a source.Kind cannot be started
// only if its arguments are invalid.
func OnDemand(from source.Source) (trigger Trigger, start func() error) {
	d := &onDemand{}
	return OnSource(d), sync.OnceValue(func() error { return from.Start(d.ctx, d.queue) })
}

// onDemand is a source that keeps the arguments for the start of another source.
type onDemand struct {
	ctx   context.Context
	queue Queue
}

// Start implements source.Source.
func (d *onDemand) Start(ctx context.Context, q Queue) error {
	d.ctx, d.queue = ctx, q
	return nil
}

// OnStart calls f when the controller starts, before its first reconcile.
func OnStart(f func(context.Context) error) Trigger {
	return withQueue(func(ctx context.Context, _ Queue) error { return f(ctx) })
}

// RequestOnStart requests reconciles of the named objects when the controller starts, even if the objects do not
// exist. It skips empty names.
func RequestOnStart(names ...types.NamespacedName) Trigger {
	return withQueue(func(_ context.Context, q Queue) error {
		for _, name := range names {
			if name.Name != "" {
				q.Add(reconcile.Request{NamespacedName: name})
			}
		}
		return nil
	})
}

// OnCall requests reconciles of the objects that are passed to a callback, after a delay. All calls for an object
// within the delay result in one request.
func OnCall(register func(func(types.NamespacedName)), delay time.Duration) Trigger {
	return withQueue(func(_ context.Context, q Queue) error {
		register(func(name types.NamespacedName) { q.AddAfter(reconcile.Request{NamespacedName: name}, delay) })
		return nil
	})
}

// RequestOnCall requests a reconcile of one object, after a delay, for each call of a callback.
func RequestOnCall(name types.NamespacedName, register func(func()), delay time.Duration) Trigger {
	return OnCall(func(request func(types.NamespacedName)) { register(func() { request(name) }) }, delay)
}

// RequestAllOnCall requests reconciles of all listed objects for each call of a callback.
func RequestAllOnCall(list func(context.Context) ([]types.NamespacedName, error), register func(func())) Trigger {
	return LookUpOnCall(func(f func(struct{})) { register(func() { f(struct{}{}) }) }, 0,
		func(ctx context.Context, _ struct{}) ([]types.NamespacedName, error) { return list(ctx) })
}

// Find returns the names of the objects that a change affects.
type Find[T comparable] func(ctx context.Context, changed T) ([]types.NamespacedName, error)

// LookUpOnCall looks up the objects that are affected by a callback, and requests their reconciles after a delay. The
// callback does not wait for the lookup, because its caller may hold a lock that is shared by all members. When
// thousands of members change at the same time, one lookup can cover several changes to a member.
func LookUpOnCall[T comparable](register func(func(T)), delay time.Duration, find Find[T]) Trigger {
	return withQueue(func(ctx context.Context, q Queue) error {
		changed := workqueue.NewTyped[T]()
		context.AfterFunc(ctx, changed.ShutDown)
		go lookUp(ctx, changed, q, delay, find)
		register(changed.Add)
		return nil
	})
}

// lookUp looks up the objects that each change affects, until the queue of changes is shut down.
func lookUp[T comparable](
	ctx context.Context, changed workqueue.TypedInterface[T], q Queue, delay time.Duration, find Find[T],
) {
	for of, ended := changed.Get(); !ended; of, ended = changed.Get() {
		names, err := find(ctx, of)
		if err != nil { // reading fails only while the cache is being stopped
			ctrl.LoggerFrom(ctx).Error(err, "could not request reconciles")
		}
		for _, name := range names {
			q.AddAfter(reconcile.Request{NamespacedName: name}, delay)
		}
		changed.Done(of)
	}
}

// WithoutName adapts a registration to callbacks that do not need the name of the changed object.
func WithoutName(register func(func(types.NamespacedName))) func(func()) {
	return func(f func()) { register(func(types.NamespacedName) { f() }) }
}

// Named returns a predicate that accepts only events for objects with one of the given names.
func Named(names ...types.NamespacedName) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		return slices.Contains(names, client.ObjectKeyFromObject(object))
	})
}

// withQueue calls f with the controller's queue when the controller starts, before its first reconcile.
func withQueue(f func(context.Context, Queue) error) Trigger { return OnSource(startFunc(f)) }

// startFunc is a source that does not watch anything. controller-runtime calls it when the controller starts.
type startFunc func(context.Context, Queue) error

// Start implements source.Source.
func (f startFunc) Start(ctx context.Context, q Queue) error { return f(ctx, q) }

// String returns the name of the source in logs.
func (startFunc) String() string { return "callback" }
