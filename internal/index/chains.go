// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Lookup returns the names of the objects that are affected by a change to an object. For an update, it is called once
// with the old object and once with the new object.
type Lookup func(ctx context.Context, reader client.Reader, object client.Object) ([]types.NamespacedName, error)

// Enqueue returns a handler that enqueues the objects that are affected by a change.
func Enqueue(reader client.Reader, lookup Lookup) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		names, err := lookup(ctx, reader, object)
		if err != nil { // reading fails only while the cache is being stopped
			ctrl.LoggerFrom(ctx).Error(err, "could not request reconciles")
		}
		requests := make([]reconcile.Request, len(names))
		for i, name := range names {
			requests[i] = reconcile.Request{NamespacedName: name}
		}
		return requests
	})
}

// Changed selects the events that can affect other objects. It ignores changes that affect only the status, unless they
// change the role templates that a Baseline uses. It also selects updates that change the UID. Such an event occurs if
// an object is deleted and created again while the watch is interrupted.
var Changed = predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{}, predicate.Funcs{
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, is := e.ObjectOld.(*v1.Baseline)
		now, still := e.ObjectNew.(*v1.Baseline)
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
			is && still && !slices.Equal(before.RoleTemplates(), now.RoleTemplates())
	},
})

// Self returns the name of the object itself.
func Self(_ context.Context, _ client.Reader, object client.Object) ([]types.NamespacedName, error) {
	return names([]client.Object{object}), nil
}

// ClusterTo returns the objects of a kind that target a Cluster. For each kind T, ClusterTo[T] is a Lookup.
func ClusterTo[T targeted](
	ctx context.Context, reader client.Reader, cluster client.Object,
) ([]types.NamespacedName, error) {
	found, err := targeting[T](ctx, reader, cluster)
	return names(found), err
}

// ClusterToPlans returns the Plans that target a Cluster. It also returns the Plans that have a claim on the Cluster,
// even if those Plans no longer exist.
func ClusterToPlans(ctx context.Context, reader client.Reader, cluster client.Object) ([]types.NamespacedName, error) {
	found, err := ClusterTo[*v1.Plan](ctx, reader, cluster)
	for key := range cluster.GetAnnotations() {
		if plan, is := strings.CutPrefix(key, v1.LabelPlanPrefix+"/"); is {
			found = append(found, types.NamespacedName{Namespace: cluster.GetNamespace(), Name: plan})
		}
	}
	return found, err
}

// SecretToPlans returns the Plans in a Secret's workspace that refer to the Secret.
func SecretToPlans(ctx context.Context, reader client.Reader, secret client.Object) ([]types.NamespacedName, error) {
	return plans(ctx, reader, secret.GetNamespace(), func(spec *v1.PlanSpec) bool {
		return slices.Contains(PlanSecrets(spec), secret.GetName())
	})
}

// ChannelToPlans returns the Plans in all workspaces that use a channel.
func ChannelToPlans(ctx context.Context, reader client.Reader, url string) ([]types.NamespacedName, error) {
	return plans(ctx, reader, "", func(spec *v1.PlanSpec) bool { return spec.Channel == url })
}

// plans returns the Plans in a workspace whose specs match. An empty workspace means all workspaces.
func plans(
	ctx context.Context, reader client.Reader, workspace string, matches func(*v1.PlanSpec) bool,
) ([]types.NamespacedName, error) {
	var list v1.PlanList
	if err := reader.List(ctx, &list, client.InNamespace(workspace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list plans of %s: %w", workspace, err)
	}
	var found []types.NamespacedName
	for i := range list.Items {
		if plan := &list.Items[i]; matches(&plan.Spec) {
			found = append(found, client.ObjectKeyFromObject(plan))
		}
	}
	return found, nil
}

// PlanSecrets returns the sorted names of the Secrets that a plan refers to.
func PlanSecrets(spec *v1.PlanSpec) []string {
	var named []string
	for _, s := range spec.Secrets {
		named = append(named, s.Name)
	}
	for _, s := range spec.ImagePullSecrets {
		named = append(named, s.Name)
	}
	slices.Sort(named)
	return slices.Compact(named)
}

// ClusterToProjectBindings returns the bindings of the Projects that target a Cluster.
func ClusterToProjectBindings(
	ctx context.Context, reader client.Reader, cluster client.Object,
) ([]types.NamespacedName, error) {
	return then(ctx, reader, cluster, ClusterTo[*v1.Project],
		func(project types.NamespacedName) ([]types.NamespacedName, error) {
			bindings, err := ProjectBindingsOf(ctx, reader, project)
			return names(bindings), err
		})
}

// ProjectToProjectBindings returns the bindings that refer to a Project.
func ProjectToProjectBindings(
	ctx context.Context, reader client.Reader, project client.Object,
) ([]types.NamespacedName, error) {
	bindings, err := ProjectBindingsOf(ctx, reader, client.ObjectKeyFromObject(project))
	return names(bindings), err
}

// RoleTo returns the bindings of a kind, or the Baselines, that use a role template or a template that inherits from
// it. For each kind B, RoleTo[B] is a Lookup.
func RoleTo[B roleUser](
	ctx context.Context, reader client.Reader, role client.Object,
) ([]types.NamespacedName, error) {
	return then(ctx, reader, role, RoleToRoles, func(role types.NamespacedName) ([]types.NamespacedName, error) {
		bindings, err := BindingsWith[B](ctx, reader, role.Name)
		return names(bindings), err
	})
}

// RoleToRoles returns a role template and the templates that inherit from it.
func RoleToRoles(ctx context.Context, reader client.Reader, role client.Object) ([]types.NamespacedName, error) {
	var templates v1.RoleTemplateList
	if err := reader.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list role templates: %w", err)
	}
	var found []types.NamespacedName
	for _, heir := range Inheritors(templates.Items, role.GetName()) {
		found = append(found, types.NamespacedName{Name: heir})
	}
	return found, nil
}

// BindingToRoles returns the role templates that a binding or Baseline uses.
func BindingToRoles(_ context.Context, _ client.Reader, binding client.Object) ([]types.NamespacedName, error) {
	if b, ok := binding.(roleUser); ok {
		return roles([]roleUser{b}), nil
	}
	return nil, nil
}

// ClusterToRoles returns the role templates that bindings and Baselines for a Cluster use.
func ClusterToRoles(ctx context.Context, reader client.Reader, cluster client.Object) ([]types.NamespacedName, error) {
	bindings, err := targeting[*v1.ClusterRoleTemplateBinding](ctx, reader, cluster)
	if err != nil {
		return nil, err
	}
	baselines, err := targeting[*v1.Baseline](ctx, reader, cluster)
	if err != nil {
		return nil, err
	}
	next := func(project types.NamespacedName) ([]types.NamespacedName, error) {
		bindings, err := ProjectBindingsOf(ctx, reader, project)
		return roles(bindings), err
	}
	ofProjects, err := then(ctx, reader, cluster, ClusterTo[*v1.Project], next)
	return slices.Concat(roles(bindings), roles(baselines), ofProjects), err
}

// ProjectToRoles returns the role templates that bindings for a Project refer to.
func ProjectToRoles(ctx context.Context, reader client.Reader, project client.Object) ([]types.NamespacedName, error) {
	bindings, err := ProjectBindingsOf(ctx, reader, client.ObjectKeyFromObject(project))
	return roles(bindings), err
}

// ProjectToConflicting returns the Projects in a workspace that list at least one of the given Project's namespaces,
// including the Project itself.
func ProjectToConflicting(
	ctx context.Context, reader client.Reader, project client.Object,
) ([]types.NamespacedName, error) {
	p, ok := project.(*v1.Project)
	if !ok {
		return nil, nil
	}
	rivals, err := ProjectsListing(ctx, reader, p.Namespace, p.Spec.Namespaces)
	return names(rivals), err
}

// SecretToProjects returns the Project named by a Secret's label.
func SecretToProjects(_ context.Context, _ client.Reader, secret client.Object) ([]types.NamespacedName, error) {
	project := secret.GetLabels()[v1.LabelProject]
	if project == "" {
		return nil, nil
	}
	return []types.NamespacedName{{Namespace: secret.GetNamespace(), Name: project}}, nil
}

// then finds the objects that a change affects directly, and returns the objects that these objects affect in turn.
func then(
	ctx context.Context, reader client.Reader, object client.Object,
	first Lookup, next func(types.NamespacedName) ([]types.NamespacedName, error),
) ([]types.NamespacedName, error) {
	links, err := first(ctx, reader, object)
	if err != nil {
		return nil, err
	}
	var found []types.NamespacedName
	for _, link := range links {
		affected, err := next(link)
		if err != nil {
			return nil, err
		}
		found = append(found, affected...)
	}
	return found, nil
}

func names[T client.Object](objects []T) []types.NamespacedName {
	found := make([]types.NamespacedName, len(objects))
	for i, object := range objects {
		found[i] = client.ObjectKeyFromObject(object)
	}
	return found
}

func roles[B roleUser](bindings []B) (found []types.NamespacedName) {
	for _, binding := range bindings {
		for _, role := range binding.RoleTemplates() {
			found = append(found, types.NamespacedName{Name: role})
		}
	}
	return found
}
