// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package role

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
)

// workers reconcile at once.
const workers = 4

// gatherTime is how long a result waits for the next one: a template in many members is reconciled once for many of their results.
const gatherTime = 50 * time.Millisecond

// Register adds the controller to a manager.
func (r *Reconciler) Register(mgr ctrl.Manager) error {
	cache := mgr.GetClient()
	return ctrl.NewControllerManagedBy(mgr).Named(Kind).
		// No predicate: a status that was computed from a cache that lagged behind is put right by the event of its own write.
		For(&v1.RoleTemplate{}).
		Watches(&v1.RoleTemplate{}, index.Wake(index.RoleToRoles(cache))).
		Watches(&v1.ClusterRoleTemplateBinding{}, index.Wake(index.BindingToRoles)).
		Watches(&v1.ProjectRoleTemplateBinding{}, index.Wake(index.BindingToRoles)).
		Watches(&v1.Project{}, index.Wake(index.ProjectToRoles(cache))).
		Watches(&v1.Cluster{}, index.Wake(index.ClusterToRoles(cache))).
		WatchesRawSource(source.Func(func(_ context.Context, q index.Queue) error {
			r.Deliveries.OnResult(Kind, func(k delivery.Key) {
				q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: k.Name}}, gatherTime)
			})
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}
