// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package role reconciles RoleTemplate: the members where a template is bound have its ClusterRole, and no others.
package role

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/status"
)

// Kind of the keys under which roles are delivered.
const Kind = "role"

// Deliveries brings sets to members. delivery.Store is one.
type Deliveries interface {
	Replace(delivery.Key, map[types.NamespacedName]*delivery.Set)
	Outcomes(id string, members []types.NamespacedName) []delivery.Outcome
	OnResult(kind string, f func(delivery.Key))
}

// Reconciler reconciles RoleTemplates. Register adds it to a manager.
type Reconciler struct {
	// Client reads from a cache with the indexes of package reference, and writes.
	Client     client.Client
	Recorder   events.EventRecorder
	Deliveries Deliveries
	Now        func() time.Time

	written status.Written
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates;clusterroletemplatebindings;projectroletemplatebindings;projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one template to the members where it is bound, and writes into its status how far it has got.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: Kind, Name: req.Name}
	template := &v1.RoleTemplate{}
	if err := r.Client.Get(ctx, req.NamespacedName, template); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read %s: %w", key, err)
	} else if err != nil || !template.DeletionTimestamp.IsZero() {
		r.Deliveries.Replace(key, nil)
		r.written.Forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	stale := r.written.Missing(template)
	used, err := r.uses(ctx, template)
	if err != nil {
		return ctrl.Result{}, err
	}
	set, refused, err := r.compute(ctx, template)
	if err != nil {
		return ctrl.Result{}, err
	}
	sets := make(map[types.NamespacedName]*delivery.Set, len(used.members))
	if set != nil {
		for _, member := range used.members {
			sets[member] = set
		}
	}
	r.Deliveries.Replace(key, sets)
	if stale {
		return ctrl.Result{RequeueAfter: used.until}, nil // the event of what is missing brings us back
	}
	return r.writeStatus(ctx, template, used, r.decide(template, used, set, refused))
}

// compute makes the set of a template, nil for one that is external or refused.
func (r *Reconciler) compute(ctx context.Context, template *v1.RoleTemplate) (*delivery.Set, *access.Error, error) {
	var templates v1.RoleTemplateList
	if err := r.Client.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list role templates: %w", err)
	}
	role, err := access.Role(access.Index(templates.Items), template.Name)
	var refused *access.Error
	if errors.As(err, &refused) {
		return nil, refused, nil
	}
	if role == nil || err != nil {
		return nil, nil, err
	}
	object, err := delivery.Object(role)
	if err != nil {
		return nil, nil, err
	}
	set, err := delivery.NewSet(access.RoleSet(template.Name), nil, expansion.Content{Objects: []*unstructured.Unstructured{object}})
	if err != nil {
		return nil, &access.Error{Reason: v1.ReasonInvalidRules, Message: err.Error()}, nil
	}
	return set, nil, nil
}

// decide returns how far a template has got. Its status names no member: every user who may bind may read it.
func (r *Reconciler) decide(template *v1.RoleTemplate, used uses, set *delivery.Set, refused *access.Error) delivery.Summary {
	if refused != nil {
		verdict := delivery.Summarize(nil)
		verdict.Refuse(len(used.members), refused.Reason, refused.Message, refused.Reason != v1.ReasonRoleTemplateNotFound)
		return verdict
	}
	if set == nil {
		verdict := delivery.Summarize(nil)
		verdict.Reason, verdict.Message = v1.ReasonAvailable, fmt.Sprintf("ClusterRole %s of the members is bound as it is there", template.Spec.External)
		return verdict
	}
	verdict := delivery.Summarize(r.Deliveries.Outcomes(set.ID, used.members))
	switch {
	case len(used.members) == 0:
		verdict.Reason, verdict.Message = v1.ReasonAvailable, "It can be bound"
	case verdict.Clusters.Failed > 0:
		verdict.Message = fmt.Sprintf("%d of %d clusters do not have it; the bindings of these say why", verdict.Clusters.Failed, verdict.Clusters.Desired)
	}
	return verdict
}

// writeStatus writes the status.
func (r *Reconciler) writeStatus(ctx context.Context, template *v1.RoleTemplate, used uses, verdict delivery.Summary) (ctrl.Result, error) {
	result := ctrl.Result{RequeueAfter: used.until}
	observed := template.Status.ObservedGeneration == template.Generation
	wait := r.written.Wait(template, verdict.Urgent(observed, template.Status.Clusters), r.Now())
	if wait = max(wait, verdict.Delay(observed, r.Now())); wait > 0 {
		if result.RequeueAfter == 0 || wait < result.RequeueAfter {
			result.RequeueAfter = wait
		}
		return result, nil
	}
	update := status.Begin(template)
	news := verdict.Write(&template.Status.Conditions, template.Generation, r.Now())
	if news {
		update.Event(status.Event{Warning: !verdict.Ready, Reason: verdict.Reason, Action: "Deliver", Message: verdict.Message})
	}
	template.Status.ObservedGeneration, template.Status.Clusters = template.Generation, &verdict.Clusters
	return result, r.written.Commit(ctx, update, r.Client, r.Recorder, r.Now())
}
