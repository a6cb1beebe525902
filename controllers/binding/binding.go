// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binding reconciles ClusterRoleTemplateBinding and ProjectRoleTemplateBinding: a principal gets a role in members, and may see their Clusters.
package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/status"
)

// Deliveries brings sets to members. delivery.Store is one.
type Deliveries interface {
	Replace(delivery.Key, map[types.NamespacedName]*delivery.Set)
	Outcomes(id string, members []types.NamespacedName) []delivery.Outcome
	Remains(id string, members []types.NamespacedName) (held, away, unreported int)
	OnResult(kind string, f func(delivery.Key))
}

// Reconciler reconciles bindings of one kind. NewCluster and NewProject make it, Register adds it to a manager.
type Reconciler struct {
	Options
	kind    kind
	written status.Written
}

// Options of a Reconciler.
type Options struct {
	// Client reads from a cache with the indexes of package reference, and writes.
	Client     client.Client
	Recorder   events.EventRecorder
	Deliveries Deliveries
	Now        func() time.Time
}

// kind has what differs between the two kinds of bindings.
type kind struct {
	// name is that of the delivery.Key, of the sets and of the objects on the hub: "crtb" or "prtb".
	name    string
	object  func() client.Object
	view    func(client.Object) *view
	members func(context.Context, client.Reader, client.Object) ([]types.NamespacedName, *index.Problem, error)
	content func(access.Templates, client.Object) (expansion.Content, error)
	wakers  []waker
}

// view has what both kinds of bindings have.
type view struct {
	object  client.Object
	subject v1.Subject
	expires *metav1.Time
	status  *v1.DeliveryStatus
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings;projectroletemplatebindings;roletemplates;projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings/status;projectroletemplatebindings/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings/finalizers;projectroletemplatebindings/finalizers,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one binding to its members, lets its principal see their Clusters, and writes into its status how far it has got.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: r.kind.name, Namespace: req.Namespace, Name: req.Name}
	object := r.kind.object()
	if err := r.Client.Get(ctx, req.NamespacedName, object); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read %s: %w", key, err)
	} else if err != nil || !object.GetDeletionTimestamp().IsZero() {
		r.Deliveries.Replace(key, nil)
		r.written.Forget(req.NamespacedName)
		return ctrl.Result{}, nil // what is on the hub goes by its owner references
	}
	stale := r.written.Missing(object)
	b := r.kind.view(object)
	plan, err := r.plan(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, plan.sets())
	allowErr := r.allow(ctx, b, plan.members)
	if stale {
		return ctrl.Result{RequeueAfter: plan.expires}, allowErr // the event of what is missing brings us back
	}
	result, err := r.writeStatus(ctx, b, plan)
	return result, errors.Join(allowErr, err)
}

// plan is what a reconcile of a binding decided.
type plan struct {
	set     *delivery.Set // nil if there is none
	members []types.NamespacedName
	// problem is why there is no set, or no member; nil if there is none.
	problem *index.Problem
	expires time.Duration // until it does, 0 for never
	// expired is the message of a binding that has ended, and former are the members that had it; empty for one that has not.
	expired string
	former  []types.NamespacedName
}

// sets are what the delivery store is to have.
func (p plan) sets() map[types.NamespacedName]*delivery.Set {
	if p.set == nil {
		return nil
	}
	sets := make(map[types.NamespacedName]*delivery.Set, len(p.members)+len(p.former))
	for _, member := range slices.Concat(p.members, p.former) {
		sets[member] = p.set
	}
	return sets
}

// plan gathers and decides. An error means that reading failed. A fault of the binding is a problem instead, so that it takes away what was there.
func (r *Reconciler) plan(ctx context.Context, b *view) (plan, error) {
	now := r.Now()
	if index.Expired(b.expires, now) {
		former, _, err := r.kind.members(ctx, r.Client, b.object)
		return plan{set: delivery.Absent(r.setID(b)), former: former,
			expired: "It expired at " + b.expires.UTC().Format(time.RFC3339) + "; delete it, or set a later expiresAt"}, err
	}
	var p plan
	if b.expires != nil {
		p.expires = b.expires.Sub(now)
	}
	var err error
	if p.members, p.problem, err = r.kind.members(ctx, r.Client, b.object); err != nil {
		return plan{}, err
	}
	var templates v1.RoleTemplateList
	if err := r.Client.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
		return plan{}, fmt.Errorf("list role templates: %w", err)
	}
	content, err := r.kind.content(access.Index(templates.Items), b.object)
	var refused *access.Error
	switch {
	case errors.As(err, &refused):
		p.problem = &index.Problem{Reason: refused.Reason, Message: refused.Message, Stalled: refused.Reason != v1.ReasonRoleTemplateNotFound}
		return p, nil
	case err != nil:
		return plan{}, err
	}
	if p.set, err = delivery.NewSet(r.setID(b), expiry(b.expires), content); err != nil {
		p.problem = &index.Problem{Reason: v1.ReasonDeliveryFailed, Message: err.Error(), Stalled: true}
	}
	return p, nil
}

func (r *Reconciler) setID(b *view) string { return r.kind.name + "/" + b.object.GetName() }

func expiry(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}

// writeStatus writes the status.
func (r *Reconciler) writeStatus(ctx context.Context, b *view, p plan) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: p.expires}
	var outcomes []delivery.Outcome
	if p.set != nil && p.expired == "" {
		outcomes = r.Deliveries.Outcomes(p.set.ID, p.members)
	}
	verdict := delivery.Summarize(outcomes)
	if p.expired != "" {
		held, away, unreported := r.Deliveries.Remains(p.set.ID, p.former)
		verdict.Expire(p.expired, held, away, unreported)
	}
	if p.problem != nil {
		verdict.Refuse(len(p.members), p.problem.Reason, p.problem.Message, p.problem.Stalled)
	}
	generation := b.object.GetGeneration()
	observed := b.status.ObservedGeneration == generation
	wait := r.written.Wait(b.object, verdict.Urgent(observed, b.status.Clusters), r.Now())
	if wait = max(wait, verdict.Delay(observed, r.Now())); wait > 0 {
		result.RequeueAfter = sooner(result.RequeueAfter, wait)
		return result, nil
	}
	update := status.Begin(b.object)
	if verdict.Write(&b.status.Conditions, generation, r.Now()) {
		update.Event(status.Event{Warning: !verdict.Ready, Reason: verdict.Reason, Action: "Deliver", Message: verdict.Message})
	}
	b.status.ObservedGeneration, b.status.Clusters, b.status.Failures = generation, &verdict.Clusters, verdict.Failures
	return result, r.written.Commit(ctx, update, r.Client, r.Recorder, r.Now())
}

// sooner returns the shorter of two times to wait; 0 means none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}
