// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package project

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

// gatherTime is how long a result waits for the next one: a project in many members is reconciled once for many of their results.
const gatherTime = 20 * time.Millisecond

// Register adds the controller to a manager. secrets is a cache of the Secrets that are labelled for a project.
func (r *Reconciler) Register(mgr ctrl.Manager, secrets cache.Cache) error {
	reader := mgr.GetClient()
	return ctrl.NewControllerManagedBy(mgr).Named(Kind).
		// No predicate: a status that was computed from a cache that lagged behind is put right by the event of its own write.
		For(&v1.Project{}).
		Watches(&v1.Project{}, index.Wake(index.ProjectToRivals(reader))).
		Watches(&v1.Cluster{}, index.Wake(index.ClusterToProjects(reader))).
		WatchesRawSource(source.Kind(secrets, client.Object(&corev1.Secret{}), index.Wake(index.SecretToProjects))).
		WatchesRawSource(source.Func(func(_ context.Context, q index.Queue) error {
			wake := func(k delivery.Key) {
				q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.Namespace, Name: k.Name}}, gatherTime)
			}
			r.Deliveries.OnResult(Kind, wake)
			r.Deliveries.OnResult(KindSecrets, wake)
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}
