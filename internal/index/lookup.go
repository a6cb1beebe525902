// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/kinds"
)

type targeted interface {
	client.Object
	v1.Targeted
}

// targeting returns the objects of a kind that target a Cluster. The objects in all lists that this package returns
// belong to the cache and must not be changed.
func targeting[T targeted](ctx context.Context, reader client.Reader, cluster client.Object) ([]T, error) {
	var found []T
	for _, key := range []string{cluster.GetName(), selecting} {
		objects, err := lookUp[T](ctx, reader, cluster.GetNamespace(), byCluster, key)
		if err != nil {
			return nil, err
		}
		for _, object := range objects {
			if selected, err := object.Target().Selects(cluster.GetName(), cluster.GetLabels()); err == nil && selected {
				found = append(found, object)
			}
		}
	}
	return found, nil
}

// ProjectBindingsOf returns the bindings of a project.
func ProjectBindingsOf(
	ctx context.Context, reader client.Reader, project types.NamespacedName,
) ([]*v1.ProjectRoleTemplateBinding, error) {
	return lookUp[*v1.ProjectRoleTemplateBinding](ctx, reader, project.Namespace, byProject, project.Name)
}

// roleUser is an object that uses the rights of a role template: a binding or a Baseline.
type roleUser interface {
	client.Object
	RoleTemplates() []string
}

// BindingsWith returns the bindings of a kind, or the Baselines, that use a role template, in all namespaces.
func BindingsWith[B roleUser](ctx context.Context, reader client.Reader, role string) ([]B, error) {
	return lookUp[B](ctx, reader, "", byRole, role)
}

// ProjectsListing returns the Projects in a namespace whose spec.namespaces contains at least one of the given names.
func ProjectsListing(
	ctx context.Context, reader client.Reader, workspace string, names []string,
) ([]*v1.Project, error) {
	var found []*v1.Project
	for _, name := range names {
		projects, err := lookUp[*v1.Project](ctx, reader, workspace, byNamespace, name)
		if err != nil {
			return nil, err
		}
		for _, project := range projects {
			known := func(p *v1.Project) bool { return p.Name == project.Name }
			if !slices.ContainsFunc(found, known) {
				found = append(found, project)
			}
		}
	}
	return found, nil
}

// Inheritors returns the name of a role template and the names of all templates that inherit from it, directly or
// indirectly.
func Inheritors(templates []v1.RoleTemplate, name string) []string {
	heirs := []string{name}
	for i := 0; i < len(heirs); i++ { // the loop extends heirs
		for j := range templates {
			heir := &templates[j]
			if slices.Contains(heir.Spec.Inherits, heirs[i]) && !slices.Contains(heirs, heir.Name) {
				heirs = append(heirs, heir.Name)
			}
		}
	}
	return heirs
}

// lookUp returns the objects of a kind that have the given value in an index. An empty namespace means all namespaces.
func lookUp[T client.Object](
	ctx context.Context, reader client.Reader, namespace, index, value string,
) ([]T, error) {
	var none T
	kind, known := kinds.Of(none)
	if !known {
		return nil, fmt.Errorf("look up %T: internal/kinds has no such kind", none)
	}
	list := kind.List.DeepCopyObject().(client.ObjectList)
	if err := reader.List(ctx, list, client.InNamespace(namespace), client.MatchingFields{index: value},
		client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list %T by %s %s: %w", list, index, value, err)
	}
	found := make([]T, 0, meta.LenList(list))
	err := meta.EachListItem(list, func(object runtime.Object) error {
		item, ok := object.(T)
		if !ok {
			return fmt.Errorf("list %T by %s %s: unexpected %T", list, index, value, object)
		}
		found = append(found, item)
		return nil
	})
	return found, err
}
