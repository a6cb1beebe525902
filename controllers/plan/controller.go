// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan reconciles Plan.
//
// It rolls out a plan to members in the specified order and with limited concurrency, and shows their progress in the
// plan's status.
package plan

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

// Reconciler reconciles Plans that apply to members.
type Reconciler struct {
	// Client reads from a cache with the indexes of package index.
	status.Output
	// Secrets reads the Secrets that are labeled for plans.
	Secrets    client.Reader
	Deliveries delivery.Deliverer
	// State returns the state of a plan in a member, as reported by the member's agent.
	State func(plan string, member types.NamespacedName) MemberState
	// Unconfirmed returns the changes in a member that are waiting for an administrator's confirmation. If Unconfirmed
	// is nil, there are no such changes.
	Unconfirmed delivery.Unconfirmed
	// Channel returns the current version of a release channel. If the next query is due, Channel queries the release
	// channel on behalf of the workspace.
	Channel func(workspace, url string) release.Result
	// Settled reports whether agents have had time to reconnect since this manager started. A missing agent does not
	// count as disconnected until Settled returns true. A nil Settled is equivalent to a function that always returns
	// true.
	Settled func() bool
	// Returned is similar to Settled, but measures the time since the first agent connected, because the hub might not
	// have been reachable before that. It is used where an agent may have newer information about a plan than the hub. A
	// nil Returned is equivalent to a function that always returns true.
	Returned func() bool

	written status.Written[*v1.Plan]
	claims  status.Written[*v1.Cluster]
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=plans,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=plans/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile advances one plan as far as possible. The plan's claims on Clusters mark the members in which it is in
// progress.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	plan, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &v1.Plan{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found || !plan.DeletionTimestamp.IsZero() || plan.Spec.Target() == (v1.ClusterTarget{}) {
		return ctrl.Result{}, r.remove(ctx, req.NamespacedName)
	}
	s, err := r.gather(ctx, plan)
	if err != nil {
		return ctrl.Result{}, err
	}
	if s == nil { // the channel's response triggers a reconcile
		return ctrl.Result{}, r.wait(ctx, plan)
	}
	err = r.advance(ctx, s)
	r.deliver(s)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil // the cache will catch up soon
	case err != nil:
		return ctrl.Result{}, err
	}
	return r.writeStatus(ctx, s)
}

// wait makes members keep their current set until the plan's channel has responded. The store waits for all owners
// before it removes obsolete objects from members. Without the current sets, slow channels would delay the store.
func (r *Reconciler) wait(ctx context.Context, plan *v1.Plan) error {
	var list v1.ClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(plan.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", plan.Namespace, err)
	}
	sets := map[types.NamespacedName]*set.Set{}
	for i := range list.Items {
		object := r.claims.Newest(&list.Items[i])
		if object.DeletionTimestamp.IsZero() && object.Annotations[v1.PlanLabel(plan.Name)] != "" {
			sets[client.ObjectKeyFromObject(object)] = delivery.Unchanged(set.ID(set.Plan, plan.Name))
		}
	}
	r.Deliveries.Replace(keyOf(client.ObjectKeyFromObject(plan)), sets)
	return nil
}

// remove removes a plan from all members. It is called if the plan is gone or no longer applies to any member.
func (r *Reconciler) remove(ctx context.Context, name types.NamespacedName) error {
	r.Deliveries.Replace(keyOf(name), nil)
	r.written.Forget(name)
	return r.releaseAll(ctx, name)
}

func keyOf(plan types.NamespacedName) delivery.Key {
	return delivery.Key{Kind: set.Plan, Namespace: plan.Namespace, Name: plan.Name}
}
