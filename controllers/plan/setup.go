// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
)

// workers reconcile at once.
const workers = 4

// gatherTime is how long a change waits for the next: a plan in many members is reconciled once for many of their reports.
const gatherTime = 20 * time.Millisecond

// Register adds the controller to a manager. secrets is a cache of the Secrets that are labelled for plans.
func (r *Reconciler) Register(mgr ctrl.Manager, secrets cache.Cache) error {
	reader := mgr.GetClient()
	return ctrl.NewControllerManagedBy(mgr).Named(Kind).
		// No predicate: a status that was computed from a cache that lagged behind is put right by the event of its own write.
		For(&v1.Plan{}).
		Watches(&v1.Cluster{}, index.Wake(index.ClusterToPlans(reader))).
		WatchesRawSource(source.Kind(secrets, client.Object(&corev1.Secret{}), index.Wake(index.SecretToPlans(reader)))).
		WatchesRawSource(source.Func(func(ctx context.Context, q index.Queue) error {
			wake := func(plan types.NamespacedName) { q.AddAfter(reconcile.Request{NamespacedName: plan}, gatherTime) }
			r.Deliveries.OnResult(Kind, func(k delivery.Key) { wake(types.NamespacedName{Namespace: k.Namespace, Name: k.Name}) })
			r.Progress.OnChange(wake)
			r.Progress.OnLink(func(member types.NamespacedName) { r.wakeAll(ctx, member, wake) })
			r.Channels.OnPolled(func(url string) { r.wakeReaders(ctx, url, wake) })
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// wakeAll wakes the plans that are for a member whose connection changed.
func (r *Reconciler) wakeAll(ctx context.Context, member types.NamespacedName, wake func(types.NamespacedName)) {
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, member, cluster, client.UnsafeDisableDeepCopy); err != nil {
		return // it is gone, or not known yet: its own event wakes them
	}
	plans, err := index.ClusterToPlans(r.Client)(ctx, cluster)
	if err != nil { // a cache that cannot be read is one that is being stopped
		ctrl.LoggerFrom(ctx).Error(err, "plans not woken")
	}
	for _, plan := range plans {
		wake(plan)
	}
}

// wakeReaders wakes the plans that read a channel.
func (r *Reconciler) wakeReaders(ctx context.Context, url string, wake func(types.NamespacedName)) {
	var plans v1.PlanList
	if err := r.Client.List(ctx, &plans, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "plans not woken")
	}
	for i := range plans.Items {
		if plans.Items[i].Spec.Channel == url {
			wake(client.ObjectKeyFromObject(&plans.Items[i]))
		}
	}
}
