// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
)

// workers reconcile at once. A reconcile may wait for an agent: an announcement or an uninstallation.
const workers = 16

// gatherTime is how long a change of a member waits for the next one. An agent that connects reports within it, mostly, and a status
// that says that its report is awaited need not be written.
const gatherTime = 50 * time.Millisecond

// Wakers call back with the name of a Cluster, or with all Clusters, when something outside the API server changed.
type Wakers struct {
	// Member is called with a function to call when one member changed.
	Member func(func(types.NamespacedName))
	// Guards is called with a function to call when the outcome of one member's guards changed. It may be nil.
	Guards func(func(types.NamespacedName))
	// All is called with a function to call when every Cluster must be looked at.
	All func(func())
}

// Register adds the controller to a manager.
func (r *Reconciler) Register(mgr ctrl.Manager, wakers Wakers) error {
	r.places.most = r.MaxClusters
	return ctrl.NewControllerManagedBy(mgr).
		Named("cluster").
		// No predicate: a status that was computed from a cache that lagged behind is put right by the event of its own write.
		For(&v1.Cluster{}).
		Owns(&corev1.Secret{}, builder.MatchEveryOwner).
		Watches(&v1.Cluster{}, r.places.handler()).
		WatchesRawSource(source.Func(func(ctx context.Context, q queue) error {
			var clusters v1.ClusterList
			if err := mgr.GetClient().List(ctx, &clusters, client.UnsafeDisableDeepCopy); err != nil {
				return fmt.Errorf("count clusters: %w", err)
			}
			r.led, r.admissionTime = r.Now(), admissionTime(len(clusters.Items)) // sources start when this manager leads, before any worker
			return wakers.start(ctx, mgr.GetClient(), q)
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// start enqueues Clusters that the wakers name. Their callbacks read the cache at most, and add to the queue.
func (w Wakers) start(ctx context.Context, cache client.Reader, q queue) error {
	wake := func(name types.NamespacedName) { q.AddAfter(reconcile.Request{NamespacedName: name}, gatherTime) }
	w.Member(wake)
	if w.Guards != nil {
		w.Guards(wake)
	}
	w.All(func() {
		var clusters v1.ClusterList
		if err := cache.List(ctx, &clusters); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "clusters not woken")
			return
		}
		for i := range clusters.Items {
			q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&clusters.Items[i])})
		}
	})
	return nil
}
