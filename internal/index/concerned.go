// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// ClusterBindingsOf are the ClusterRoleTemplateBindings that are for a Cluster with one of several sets of labels: those it had and those
// that it has. What is returned belongs to the cache and must not be changed; so it is with all lists of this package.
func ClusterBindingsOf(ctx context.Context, reader client.Reader, cluster types.NamespacedName, labels ...map[string]string) ([]*v1.ClusterRoleTemplateBinding, error) {
	var found []*v1.ClusterRoleTemplateBinding
	for _, key := range []string{cluster.Name, selecting} {
		var list v1.ClusterRoleTemplateBindingList
		if err := lookUp(ctx, reader, &list, cluster.Namespace, byCluster, key); err != nil {
			return nil, err
		}
		for i := range list.Items {
			if selectsAny(list.Items[i].Spec.ClusterTarget, cluster.Name, labels) {
				found = append(found, &list.Items[i])
			}
		}
	}
	return found, nil
}

// ProjectsOf are the Projects that are for a Cluster with one of several sets of labels.
func ProjectsOf(ctx context.Context, reader client.Reader, cluster types.NamespacedName, labels ...map[string]string) ([]*v1.Project, error) {
	var found []*v1.Project
	for _, key := range []string{cluster.Name, selecting} {
		var list v1.ProjectList
		if err := lookUp(ctx, reader, &list, cluster.Namespace, byCluster, key); err != nil {
			return nil, err
		}
		for i := range list.Items {
			if selectsAny(list.Items[i].Spec.ClusterTarget, cluster.Name, labels) {
				found = append(found, &list.Items[i])
			}
		}
	}
	return found, nil
}

// PlansOf are the Plans that are for a Cluster with one of several sets of labels.
func PlansOf(ctx context.Context, reader client.Reader, cluster types.NamespacedName, labels ...map[string]string) ([]*v1.Plan, error) {
	var found []*v1.Plan
	for _, key := range []string{cluster.Name, selecting} {
		var list v1.PlanList
		if err := lookUp(ctx, reader, &list, cluster.Namespace, byCluster, key); err != nil {
			return nil, err
		}
		for i := range list.Items {
			if selectsAny(PlanTarget(&list.Items[i]), cluster.Name, labels) {
				found = append(found, &list.Items[i])
			}
		}
	}
	return found, nil
}

func selectsAny(t v1.ClusterTarget, name string, labels []map[string]string) bool {
	return slices.ContainsFunc(labels, func(of map[string]string) bool { return Selects(t, name, of) })
}

// ProjectBindingsOf are the bindings of a project.
func ProjectBindingsOf(ctx context.Context, reader client.Reader, project types.NamespacedName) ([]v1.ProjectRoleTemplateBinding, error) {
	var list v1.ProjectRoleTemplateBindingList
	err := lookUp(ctx, reader, &list, project.Namespace, byProject, project.Name)
	return list.Items, err
}

// ClusterBindingsWith are the ClusterRoleTemplateBindings that name a role template, in all namespaces.
func ClusterBindingsWith(ctx context.Context, reader client.Reader, role string) ([]v1.ClusterRoleTemplateBinding, error) {
	var list v1.ClusterRoleTemplateBindingList
	err := lookUp(ctx, reader, &list, "", byRole, role)
	return list.Items, err
}

// ProjectBindingsWith are the ProjectRoleTemplateBindings that name a role template, in all namespaces.
func ProjectBindingsWith(ctx context.Context, reader client.Reader, role string) ([]v1.ProjectRoleTemplateBinding, error) {
	var list v1.ProjectRoleTemplateBindingList
	err := lookUp(ctx, reader, &list, "", byRole, role)
	return list.Items, err
}

// ProjectsListing are the Projects of a namespace that list one of the names among theirs.
func ProjectsListing(ctx context.Context, reader client.Reader, workspace string, names []string) ([]*v1.Project, error) {
	var found []*v1.Project
	for _, name := range names {
		var list v1.ProjectList
		if err := lookUp(ctx, reader, &list, workspace, byNamespace, name); err != nil {
			return nil, err
		}
		for i := range list.Items {
			known := func(p *v1.Project) bool { return p.Name == list.Items[i].Name }
			if !slices.ContainsFunc(found, known) {
				found = append(found, &list.Items[i])
			}
		}
	}
	return found, nil
}

// Heirs are the names of the role templates that inherit one, over however many others, and its own name.
func Heirs(templates []v1.RoleTemplate, name string) []string {
	heirs := []string{name}
	for i := 0; i < len(heirs); i++ { // it grows
		for j := range templates {
			heir := &templates[j]
			if slices.Contains(heir.Spec.Inherits, heirs[i]) && !slices.Contains(heirs, heir.Name) {
				heirs = append(heirs, heir.Name)
			}
		}
	}
	return heirs
}

// lookUp reads what has a value in an index. An empty namespace stands for all.
func lookUp(ctx context.Context, reader client.Reader, into client.ObjectList, namespace, index, value string) error {
	options := []client.ListOption{client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy}
	if namespace != "" {
		options = append(options, client.InNamespace(namespace))
	}
	if err := reader.List(ctx, into, options...); err != nil {
		return fmt.Errorf("list %T by %s %s: %w", into, index, value, err)
	}
	return nil
}
