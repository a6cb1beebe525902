// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package role reconciles RoleTemplate.
//
// It delivers a template's ClusterRole only to members in which the template is bound.
package role

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

// Reconciler reconciles RoleTemplates.
type Reconciler struct {
	// Client reads from a cache with the indexes from package index.
	status.Output
	Deliveries delivery.Deliverer

	written status.Written[*v1.RoleTemplate]
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates;clusterroletemplatebindings;projectroletemplatebindings;projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=roletemplates/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one template to the members in which the template is bound, and writes the progress to the
// template's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: set.Role, Name: req.Name}
	template, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &v1.RoleTemplate{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found || !template.DeletionTimestamp.IsZero() {
		r.Deliveries.Replace(key, nil)
		return ctrl.Result{}, nil
	}
	used, err := r.uses(ctx, template)
	if err != nil {
		return ctrl.Result{}, err
	}
	given, refused, err := r.compute(ctx, template)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, setsOf(used.members, given))
	return r.writeStatus(ctx, template, used, given, refused)
}

// setsOf returns a map that assigns the same set to each member. If given is nil, the map is empty.
func setsOf(members []types.NamespacedName, given *set.Set) map[types.NamespacedName]*set.Set {
	sets := make(map[types.NamespacedName]*set.Set, len(members))
	if given != nil {
		for _, member := range members {
			sets[member] = given
		}
	}
	return sets
}

func (r *Reconciler) writeStatus(
	ctx context.Context, template *v1.RoleTemplate, used uses, given *set.Set, refused *access.Error,
) (ctrl.Result, error) {
	s := &template.Status
	change := r.decide(template, used, given, refused).Change(template.Generation,
		delivery.Status{Observed: &s.ObservedGeneration, Conditions: &s.Conditions, Clusters: &s.Clusters}, r.Now(), nil)
	change.Until = used.until
	return r.written.Write(ctx, r.Output, template, change)
}

// compute builds the set of a template. It returns nil if the template is external or cannot be used.
func (r *Reconciler) compute(ctx context.Context, template *v1.RoleTemplate) (*set.Set, *access.Error, error) {
	var templates v1.RoleTemplateList
	if err := r.Client.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list role templates: %w", err)
	}
	role, err := access.Role(access.Index(templates.Items), template.Name)
	if refused, ok := errors.AsType[*access.Error](err); ok {
		return nil, refused, nil
	}
	if role == nil || err != nil {
		return nil, nil, err
	}
	object, err := set.Object(role)
	if err != nil {
		return nil, nil, err
	}
	given, err := set.New(set.ID(set.Role, template.Name), nil, set.Content{Objects: []*unstructured.Unstructured{object}})
	if err != nil {
		return nil, &access.Error{Reason: v1.ReasonInvalidRules, Message: err.Error()}, nil
	}
	return given, nil, nil
}

// decide returns the progress of a template. The template's status must not name any member, because every user who can
// create bindings can read it.
func (r *Reconciler) decide(template *v1.RoleTemplate, used uses, given *set.Set, refused *access.Error) delivery.Summary {
	if refused != nil {
		summary := delivery.Summarize(nil)
		summary.Refuse(len(used.members), refused.Reason, refused.Message, refused.Reason != v1.ReasonRoleTemplateNotFound)
		return summary
	}
	if given == nil {
		summary := delivery.Summarize(nil)
		summary.Reason, summary.Message = v1.ReasonAvailable, fmt.Sprintf("ClusterRole %s of the members is bound as it is", template.Spec.External)
		return summary
	}
	summary := delivery.Summarize(r.Deliveries.Outcomes(given.ID, used.members))
	switch {
	case len(used.members) == 0:
		summary.Reason, summary.Message = v1.ReasonAvailable, "It can be bound"
	case summary.Clusters.Failed > 0:
		summary.Message = fmt.Sprintf("%d of %d clusters do not have it; the bindings of these say why", summary.Clusters.Failed, summary.Clusters.Desired)
	}
	return summary
}
