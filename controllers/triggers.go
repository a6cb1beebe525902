// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// trigger adds to a controller what it is woken by.
type trigger func(*builder.Builder)

// self wakes it for the object that changed.
func self(object client.Object, predicates ...predicate.Predicate) trigger {
	return func(b *builder.Builder) { b.For(object, builder.WithPredicates(predicates...)) }
}

// owned wakes it for the owner of the object that changed.
func owned(object client.Object, options ...builder.OwnsOption) trigger {
	return func(b *builder.Builder) { b.Owns(object, options...) }
}

// handled wakes it as a handler says.
func handled(object client.Object, h handler.EventHandler, options ...builder.WatchesOption) trigger {
	return func(b *builder.Builder) { b.Watches(object, h, options...) }
}

// on wakes it for the objects that a change of another one affects.
func (p *parts) on(object client.Object, lookup index.Lookup) trigger {
	return handled(object, index.Enqueue(p.client, lookup), builder.WithPredicates(index.Changed))
}

// onSecret wakes it for the objects that a change of a Secret affects. A Secret has no generation.
func (p *parts) onSecret(secrets cache.Cache, lookup index.Lookup) trigger {
	return func(b *builder.Builder) {
		b.WatchesRawSource(source.Kind(secrets, client.Object(&corev1.Secret{}), index.Enqueue(p.client, lookup), predicate.ResourceVersionChangedPredicate{}))
	}
}

// started calls f with the queue when the controller starts, before its first reconcile.
func started(f func(context.Context, queue) error) trigger {
	return func(b *builder.Builder) { b.WatchesRawSource(callback(f)) }
}

// callback is a source of requests that is no watch: controller-runtime calls it when the controller starts.
type callback func(context.Context, queue) error

// Start calls f. It implements source.Source.
func (f callback) Start(ctx context.Context, q queue) error { return f(ctx, q) }

// String returns how the log names the source.
func (callback) String() string { return "callback" }

// before calls f when the controller starts.
func before(f func(context.Context) error) trigger {
	return started(func(ctx context.Context, _ queue) error { return f(ctx) })
}

// atStart wakes it for objects when it starts, also for those that do not exist. An empty name is left out.
func atStart(names ...types.NamespacedName) trigger {
	return started(func(_ context.Context, q queue) error {
		for _, name := range names {
			if name.Name != "" {
				q.Add(reconcile.Request{NamespacedName: name})
			}
		}
		return nil
	})
}

// looked wakes it, a moment later, for the objects that are looked up for what a callback gets. The callback does not wait for the look-up: who calls it may hold a lock that all members
// share. Where thousands of members change at the same time, each is looked up once for several changes.
func looked[T comparable](on func(func(T)), later time.Duration, lookup func(context.Context, T) ([]types.NamespacedName, error)) trigger {
	return started(func(ctx context.Context, q queue) error {
		changed := workqueue.NewTyped[T]()
		context.AfterFunc(ctx, changed.ShutDown)
		go lookUp(ctx, changed, q, later, lookup)
		on(changed.Add)
		return nil
	})
}

// lookUp looks up what has changed, until that queue is shut down.
func lookUp[T comparable](ctx context.Context, changed workqueue.TypedInterface[T], q queue, later time.Duration, lookup func(context.Context, T) ([]types.NamespacedName, error)) {
	for of, ended := changed.Get(); !ended; of, ended = changed.Get() {
		names, err := lookup(ctx, of)
		if err != nil { // a cache that cannot be read is being stopped
			ctrl.LoggerFrom(ctx).Error(err, "reconciles not woken")
		}
		for _, name := range names {
			q.AddAfter(reconcile.Request{NamespacedName: name}, later)
		}
		changed.Done(of)
	}
}

// calls wakes it, a moment later, for the names that a callback gets.
func calls(on func(func(types.NamespacedName)), later time.Duration) trigger {
	return started(func(_ context.Context, q queue) error {
		on(func(name types.NamespacedName) { q.AddAfter(reconcile.Request{NamespacedName: name}, later) })
		return nil
	})
}

// results wakes it, a moment later, for the owners of sets whose outcome changed.
func results(deliveries *delivery.Store, later time.Duration, kinds ...string) trigger {
	return calls(ownersOf(deliveries, kinds...), later)
}

// ownersOf calls back with the names of the owners of sets whose outcome changed.
func ownersOf(deliveries *delivery.Store, kinds ...string) func(func(types.NamespacedName)) {
	return func(wake func(types.NamespacedName)) {
		for _, kind := range kinds {
			deliveries.OnResult(kind, func(k delivery.Key) { wake(types.NamespacedName{Namespace: k.Namespace, Name: k.Name}) })
		}
	}
}

// always wakes it for one object at every callback.
func always(name types.NamespacedName, on func(func())) trigger { return after(name, on, 0) }

// after wakes it for one object, a moment after every callback.
func after(name types.NamespacedName, on func(func()), later time.Duration) trigger {
	return calls(func(wake func(types.NamespacedName)) { on(func() { wake(name) }) }, later)
}

// nameless is a callback without the name of what changed.
func nameless(on func(func(types.NamespacedName))) func(func()) {
	return func(f func()) { on(func(types.NamespacedName) { f() }) }
}

// each wakes it for all objects that are listed at a callback.
func each(list func(context.Context) ([]types.NamespacedName, error), on func(func())) trigger {
	return looked(func(f func(struct{})) { on(func() { f(struct{}{}) }) }, 0, func(ctx context.Context, _ struct{}) ([]types.NamespacedName, error) { return list(ctx) })
}

// only passes events of the named objects.
func only(names ...types.NamespacedName) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool { return slices.Contains(names, client.ObjectKeyFromObject(object)) })
}
