// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Wakers call back when something outside the API server changed.
type Wakers struct {
	// Member is called with a function to call when one member changed.
	Member func(func(types.NamespacedName))
	// Trust is called with a function to call when another authority was loaded.
	Trust func(func())
}

// Register adds the keeper to a manager. A member that confirms, or that is lost, may be the last that the end of an old authority waits for.
func (k *Keeper) Register(mgr ctrl.Manager, wakers Wakers) error {
	request := reconcile.Request{NamespacedName: k.Secret}
	return ctrl.NewControllerManagedBy(mgr).
		Named("authority").
		For(&corev1.Secret{}, builder.WithPredicates(only(k.Secret))).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(request) // also when there is no Secret to watch yet
			wakers.Member(func(types.NamespacedName) { q.Add(request) })
			wakers.Trust(func() { q.Add(request) })
			return nil
		})).
		Complete(k)
}

// Register adds the loader to a manager, on every replica.
func (l *Loader) Register(mgr ctrl.Manager) error {
	if l.Given.Name != "" {
		l.Trust.AwaitGiven()
	}
	everywhere := false
	return ctrl.NewControllerManagedBy(mgr).
		Named("authority-loader").
		For(&corev1.Secret{}, builder.WithPredicates(only(l.Authority, l.Given))).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(reconcile.Request{NamespacedName: l.Authority})
			if l.Given.Name != "" {
				q.Add(reconcile.Request{NamespacedName: l.Given}) // also when it is not there
			}
			return nil
		})).
		WithOptions(controller.Options{NeedLeaderElection: &everywhere}).
		Complete(l)
}

// only passes events of the named objects.
func only(names ...types.NamespacedName) predicate.Predicate {
	return predicate.NewPredicateFuncs(func(object client.Object) bool {
		for _, name := range names {
			if client.ObjectKeyFromObject(object) == name {
				return true
			}
		}
		return false
	})
}
