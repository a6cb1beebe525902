// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wiring adds controllers and the triggers for their reconciles to a manager.
package wiring

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
