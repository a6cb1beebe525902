// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
)

// workers reconcile at once. A reconcile waits for the hub's API server at most.
const workers = 8

// gatherTime is how long a result waits for the next one: a binding for many members is reconciled once for many of their results. If
// many bindings change at once, all are sent before the first status is written.
const gatherTime = 100 * time.Millisecond

// waker is a kind whose changes wake bindings.
type waker struct {
	object    client.Object
	concerned func(client.Reader) index.Concerned
}

// Register adds the controller to a manager.
func (r *Reconciler) Register(mgr ctrl.Manager) error {
	// No predicate: a status that was computed from a cache that lagged behind is put right by the event of its own write.
	builder := ctrl.NewControllerManagedBy(mgr).Named(r.kind.name).For(r.kind.object()).
		Owns(&rbacv1.Role{}).Owns(&rbacv1.RoleBinding{}).
		WatchesRawSource(source.Func(func(_ context.Context, q index.Queue) error {
			r.Deliveries.OnResult(r.kind.name, func(k delivery.Key) {
				q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: k.Namespace, Name: k.Name}}, gatherTime)
			})
			return nil
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers})
	for _, w := range r.kind.wakers {
		builder = builder.Watches(w.object, index.Wake(w.concerned(mgr.GetClient())))
	}
	return builder.Complete(r)
}
