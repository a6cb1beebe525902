// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan reconciles Plan: its members run it in the order and number that it says, and its status says how far they are.
package plan

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/progress"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/status"
)

// Kind of the keys under which plans are delivered.
const Kind = "plan"

// Deliveries brings sets to members. delivery.Store is one.
type Deliveries interface {
	Replace(delivery.Key, map[types.NamespacedName]*delivery.Set)
	Outcomes(id string, members []types.NamespacedName) []delivery.Outcome
	OnResult(kind string, f func(delivery.Key))
}

// Progress follows plans in members. progress.Listener is one.
type Progress interface {
	Follow(plan types.NamespacedName, members []types.NamespacedName)
	State(plan string, member types.NamespacedName) progress.State
	OnChange(f func(plan types.NamespacedName))
	OnLink(f func(member types.NamespacedName))
}

// Channels knows what release channels lead to. release.Poller is one.
type Channels interface {
	Result(url string) release.Result
	OnPolled(f func(url string))
}

// Reconciler reconciles Plans that are for members. Register adds it to a manager.
type Reconciler struct {
	// Client reads from a cache with the indexes of package reference, and writes.
	Client client.Client
	// Secrets reads those that are labelled for plans.
	Secrets    client.Reader
	Recorder   events.EventRecorder
	Deliveries Deliveries
	Progress   Progress
	Channels   Channels
	// Settled reports whether agents have had time to come back since this manager started: before, a missing agent need not be away. Nil
	// means that they have.
	Settled func() bool
	Now     func() time.Time

	written status.Written
	claims  claims
	pace    pace
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=plans,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=plans/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile advances one plan as far as it can go now. Claims on Clusters say which members are at work; a member's claim decides what it is
// given.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	plan := &v1.Plan{}
	if err := r.Client.Get(ctx, req.NamespacedName, plan); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read plan %s: %w", req.NamespacedName, err)
	} else if err != nil || !plan.DeletionTimestamp.IsZero() || index.PlanTarget(plan) == (v1.ClusterTarget{}) {
		return ctrl.Result{}, r.remove(ctx, req.NamespacedName)
	}
	stale := r.written.Missing(plan)
	s, err := r.gather(ctx, plan)
	if err != nil || s == nil {
		return ctrl.Result{}, err // the answer of the channel brings us back
	}
	err = r.advance(ctx, s)
	r.deliver(s)
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil // the cache is about to have what we lack
	case err != nil:
		return ctrl.Result{}, err
	case stale:
		return ctrl.Result{}, nil // the event of what is missing brings us back
	}
	return r.writeStatus(ctx, s)
}

// remove takes a plan that is gone, or that is for no member, away from all of them.
func (r *Reconciler) remove(ctx context.Context, name types.NamespacedName) error {
	r.Deliveries.Replace(keyOf(name), nil)
	r.Progress.Follow(name, nil)
	r.written.Forget(name)
	r.pace.forget(name)
	return r.releaseAll(ctx, name)
}

func keyOf(plan types.NamespacedName) delivery.Key {
	return delivery.Key{Kind: Kind, Namespace: plan.Namespace, Name: plan.Name}
}

// setID is the ID of a plan's set in members.
func setID(plan string) string { return Kind + "/" + plan }
