// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package binding reconciles ClusterRoleTemplateBinding and ProjectRoleTemplateBinding.
//
// It grants a principal a role in members, and allows the principal to view the Clusters of these members.
package binding

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

// kind is a binding type, which is a pointer to T.
type kind[T any] interface {
	*T
	v1.Binding
}

// Reconciler reconciles bindings of one kind. Create one with NewCluster or NewProject.
type Reconciler[T any, B kind[T]] struct {
	Options
	// kind is the kind of the sets: set.ClusterBinding or set.ProjectBinding. It is also part of the names of the
	// objects on the hub.
	kind    string
	members func(context.Context, client.Reader, B) ([]types.NamespacedName, *index.Problem, error)
	content func(access.Templates, B) (set.Content, error)
	written status.Written[B]
}

// Deliverer delivers sets and counts the members that still contain removed sets. The delivery store implements it.
type Deliverer interface {
	delivery.Deliverer
	Remains(id string, members []types.NamespacedName) (held, away, unreported int)
}

// Options holds the dependencies of a Reconciler.
type Options struct {
	// Client reads from a cache with the indexes from package index.
	status.Output
	Deliveries Deliverer
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings;projectroletemplatebindings;roletemplates;projects;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings/status;projectroletemplatebindings/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusterroletemplatebindings/finalizers;projectroletemplatebindings/finalizers,verbs=update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one binding to the binding's members, allows the principal to view the Clusters of these members,
// and writes the progress to the binding's status.
func (r *Reconciler[T, B]) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: r.kind, Namespace: req.Namespace, Name: req.Name}
	b, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, new(T))
	if err != nil {
		return ctrl.Result{}, err
	} else if !found || !b.GetDeletionTimestamp().IsZero() {
		r.Deliveries.Replace(key, nil)
		return ctrl.Result{}, nil // the objects on the hub are deleted through their owner references
	}
	d, err := r.decide(ctx, b)
	if err != nil {
		return ctrl.Result{}, err
	}
	r.Deliveries.Replace(key, d.sets())
	allowErr := r.allow(ctx, b, d.members)
	result, err := r.writeStatus(ctx, b, d)
	return result, errors.Join(allowErr, err)
}

// decision is the result of reconciling a binding.
type decision struct {
	set     *set.Set // nil if the binding has no set
	members []types.NamespacedName
	// problem explains why the binding has no set or applies to no members. It is nil if there is no problem.
	problem *index.Problem
	expires time.Duration // time until the binding expires, or 0 if it never expires
	// expired is the message for an expired binding. former lists the members that the binding was delivered to before
	// it expired. Both are empty if the binding has not expired.
	expired string
	former  []types.NamespacedName
}

// sets returns the sets that the delivery store must contain.
func (d decision) sets() map[types.NamespacedName]*set.Set {
	if d.set == nil {
		return nil
	}
	sets := make(map[types.NamespacedName]*set.Set, len(d.members)+len(d.former))
	for _, member := range slices.Concat(d.members, d.former) {
		sets[member] = d.set
	}
	return sets
}

// decide reads all objects that the binding depends on and makes a decision. It returns an error only if an object
// cannot be read. A mistake in the binding becomes the decision's problem, and the binding's objects are then removed
// from members.
func (r *Reconciler[T, B]) decide(ctx context.Context, b B) (decision, error) {
	now := r.Now()
	if index.Expired(b.Expires(), now) {
		former, _, err := r.members(ctx, r.Client, b)
		return decision{set: delivery.Absent(set.ID(r.kind, b.GetName())), former: former,
			expired: "It expired at " + b.Expires().UTC().Format(time.RFC3339) + "; delete it, or set a later expiresAt"}, err
	}
	var d decision
	if b.Expires() != nil {
		d.expires = b.Expires().Sub(now)
	}
	var err error
	if d.members, d.problem, err = r.members(ctx, r.Client, b); err != nil {
		return decision{}, err
	}
	var templates v1.RoleTemplateList
	if err := r.Client.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
		return decision{}, fmt.Errorf("list role templates: %w", err)
	}
	content, err := r.content(access.Index(templates.Items), b)
	var refused *access.Error
	switch {
	case errors.As(err, &refused):
		d.problem = &index.Problem{Reason: refused.Reason, Message: refused.Message, Stalled: refused.Reason != v1.ReasonRoleTemplateNotFound}
		return d, nil
	case err != nil:
		return decision{}, err
	}
	if d.set, err = set.New(set.ID(r.kind, b.GetName()), expiry(b.Expires()), content); err != nil {
		d.problem = &index.Problem{Reason: v1.ReasonDeliveryFailed, Message: err.Error(), Stalled: true}
	}
	return d, nil
}

func expiry(t *metav1.Time) *time.Time {
	if t == nil {
		return nil
	}
	return &t.Time
}

func (r *Reconciler[T, B]) writeStatus(ctx context.Context, b B, d decision) (ctrl.Result, error) {
	var outcomes []delivery.Outcome
	if d.set != nil && d.expired == "" {
		outcomes = r.Deliveries.Outcomes(d.set.ID, d.members)
	}
	summary := delivery.Summarize(outcomes)
	if d.expired != "" {
		held, away, unreported := r.Deliveries.Remains(d.set.ID, d.former)
		summary.Expire(d.expired, held, away, unreported)
	}
	if d.problem != nil {
		summary.Refuse(len(d.members), d.problem.Reason, d.problem.Message, d.problem.Stalled)
	}
	s := b.Delivery()
	change := summary.Change(b.GetGeneration(), delivery.Status{Observed: &s.ObservedGeneration, Conditions: &s.Conditions, Clusters: &s.Clusters}, r.Now(),
		func(*status.Update) { s.Failures = summary.Failures })
	change.Until = d.expires
	return r.written.Write(ctx, r.Output, b, change)
}

// NewCluster returns the reconciler for ClusterRoleTemplateBindings.
func NewCluster(o Options) *Reconciler[v1.ClusterRoleTemplateBinding, *v1.ClusterRoleTemplateBinding] {
	return &Reconciler[v1.ClusterRoleTemplateBinding, *v1.ClusterRoleTemplateBinding]{
		Options: o, kind: set.ClusterBinding, members: clusterMembers, content: clusterContent,
	}
}

func clusterMembers(ctx context.Context, reader client.Reader, b *v1.ClusterRoleTemplateBinding) ([]types.NamespacedName, *index.Problem, error) {
	return index.Members(ctx, reader, b.Namespace, b.Spec.ClusterTarget)
}

func clusterContent(templates access.Templates, b *v1.ClusterRoleTemplateBinding) (set.Content, error) {
	binding, err := access.ClusterBinding(templates, b)
	if err != nil {
		return set.Content{}, err
	}
	object, err := set.Object(binding)
	return set.Content{Objects: []*unstructured.Unstructured{object}}, err
}

// NewProject returns the reconciler for ProjectRoleTemplateBindings.
func NewProject(o Options) *Reconciler[v1.ProjectRoleTemplateBinding, *v1.ProjectRoleTemplateBinding] {
	return &Reconciler[v1.ProjectRoleTemplateBinding, *v1.ProjectRoleTemplateBinding]{
		Options: o, kind: set.ProjectBinding, members: index.ProjectMembers, content: projectContent,
	}
}

func projectContent(templates access.Templates, b *v1.ProjectRoleTemplateBinding) (set.Content, error) {
	binding, err := access.ProjectBinding(templates, b)
	if err != nil {
		return set.Content{}, err
	}
	object, err := set.Object(binding)
	per := &set.PerNamespace{Project: b.Spec.ProjectName, Templates: []set.Template{{Object: object}}}
	return set.Content{PerNamespace: per}, err
}
