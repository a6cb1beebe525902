// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// ClusterToClusterBindings are the ClusterRoleTemplateBindings that a change of a Cluster concerns.
func ClusterToClusterBindings(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		bindings, err := ClusterBindingsOf(ctx, reader, client.ObjectKeyFromObject(states[0]), labelsOf(states)...)
		var found names
		for _, b := range bindings {
			found.add(client.ObjectKeyFromObject(b))
		}
		return found.list, err
	}
}

// ClusterToProjects are the Projects that a change of a Cluster concerns.
func ClusterToProjects(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		projects, err := ProjectsOf(ctx, reader, client.ObjectKeyFromObject(states[0]), labelsOf(states)...)
		var found names
		for _, p := range projects {
			found.add(client.ObjectKeyFromObject(p))
		}
		return found.list, err
	}
}

// ClusterToPlans are the Plans that a change of a Cluster concerns: those that are for it, and those that have a claim on it, also when they
// are no more.
func ClusterToPlans(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		plans, err := PlansOf(ctx, reader, client.ObjectKeyFromObject(states[0]), labelsOf(states)...)
		var found names
		for _, p := range plans {
			found.add(client.ObjectKeyFromObject(p))
		}
		for _, state := range states {
			for key := range state.GetAnnotations() {
				if plan, is := strings.CutPrefix(key, v1.LabelPlanPrefix+"/"); is {
					found.add(types.NamespacedName{Namespace: state.GetNamespace(), Name: plan})
				}
			}
		}
		return found.list, err
	}
}

// SecretToPlans are the Plans of a workspace that name a Secret.
func SecretToPlans(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var plans v1.PlanList
		if err := reader.List(ctx, &plans, client.InNamespace(states[0].GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list plans of %s: %w", states[0].GetNamespace(), err)
		}
		var found names
		for i := range plans.Items {
			if slices.Contains(PlanSecrets(&plans.Items[i].Spec), states[0].GetName()) {
				found.add(client.ObjectKeyFromObject(&plans.Items[i]))
			}
		}
		return found.list, nil
	}
}

// PlanSecrets are the names of the Secrets that a plan names, sorted.
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

// ClusterToProjectBindings are the ProjectRoleTemplateBindings that a change of a Cluster concerns, by their Projects.
func ClusterToProjectBindings(reader client.Reader) Concerned {
	return through(ClusterToProjects(reader), func(ctx context.Context, project types.NamespacedName, found *names) error {
		return projectBindings(ctx, reader, project, found)
	})
}

// ProjectToProjectBindings are the bindings that a change of a Project concerns.
func ProjectToProjectBindings(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var found names
		err := projectBindings(ctx, reader, client.ObjectKeyFromObject(states[0]), &found)
		return found.list, err
	}
}

func projectBindings(ctx context.Context, reader client.Reader, project types.NamespacedName, found *names) error {
	bindings, err := ProjectBindingsOf(ctx, reader, project)
	for i := range bindings {
		found.add(client.ObjectKeyFromObject(&bindings[i]))
	}
	return err
}

// RoleToClusterBindings are the ClusterRoleTemplateBindings that a change of a role template concerns: those of the template and of all that
// inherit it.
func RoleToClusterBindings(reader client.Reader) Concerned {
	return through(RoleToRoles(reader), func(ctx context.Context, role types.NamespacedName, found *names) error {
		bindings, err := ClusterBindingsWith(ctx, reader, role.Name)
		for i := range bindings {
			found.add(client.ObjectKeyFromObject(&bindings[i]))
		}
		return err
	})
}

// RoleToProjectBindings is RoleToClusterBindings for ProjectRoleTemplateBindings.
func RoleToProjectBindings(reader client.Reader) Concerned {
	return through(RoleToRoles(reader), func(ctx context.Context, role types.NamespacedName, found *names) error {
		bindings, err := ProjectBindingsWith(ctx, reader, role.Name)
		for i := range bindings {
			found.add(client.ObjectKeyFromObject(&bindings[i]))
		}
		return err
	})
}

// RoleToRoles are the role templates that a change of one concerns: itself and those that inherit it.
func RoleToRoles(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var templates v1.RoleTemplateList
		if err := reader.List(ctx, &templates, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("list role templates: %w", err)
		}
		var found names
		for _, heir := range Heirs(templates.Items, states[0].GetName()) {
			found.add(types.NamespacedName{Name: heir})
		}
		return found.list, nil
	}
}

// BindingToRoles are the role templates that a binding names, and named before a change.
func BindingToRoles(_ context.Context, states ...client.Object) ([]types.NamespacedName, error) {
	var found names
	for _, state := range states {
		found.add(types.NamespacedName{Name: RoleOf(state)})
	}
	return found.list, nil
}

// ClusterToRoles are the role templates that are used for a Cluster, and were before a change.
func ClusterToRoles(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var found names
		bindings, err := ClusterBindingsOf(ctx, reader, client.ObjectKeyFromObject(states[0]), labelsOf(states)...)
		if err != nil {
			return nil, err
		}
		for _, b := range bindings {
			found.add(types.NamespacedName{Name: b.Spec.RoleTemplateName})
		}
		projects, err := ClusterToProjects(reader)(ctx, states...)
		if err != nil {
			return nil, err
		}
		for _, project := range projects {
			if err := projectRoles(ctx, reader, project, &found); err != nil {
				return nil, err
			}
		}
		return found.list, nil
	}
}

// ProjectToRoles are the role templates that are used for a Project.
func ProjectToRoles(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var found names
		err := projectRoles(ctx, reader, client.ObjectKeyFromObject(states[0]), &found)
		return found.list, err
	}
}

func projectRoles(ctx context.Context, reader client.Reader, project types.NamespacedName, found *names) error {
	bindings, err := ProjectBindingsOf(ctx, reader, project)
	for i := range bindings {
		found.add(types.NamespacedName{Name: bindings[i].Spec.RoleTemplateName})
	}
	return err
}

// ProjectToRivals are the Projects of a workspace that list a namespace that a Project lists, or listed before a change; itself included.
func ProjectToRivals(reader client.Reader) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		var found names
		for _, state := range states {
			project, ok := state.(*v1.Project)
			if !ok {
				continue
			}
			rivals, err := ProjectsListing(ctx, reader, project.Namespace, project.Spec.Namespaces)
			if err != nil {
				return nil, err
			}
			for _, rival := range rivals {
				found.add(client.ObjectKeyFromObject(rival))
			}
		}
		return found.list, nil
	}
}

// SecretToProjects are the Projects that a Secret is labelled for, and was before a change.
func SecretToProjects(_ context.Context, states ...client.Object) ([]types.NamespacedName, error) {
	var found names
	for _, state := range states {
		if project := state.GetLabels()[v1.LabelProject]; project != "" {
			found.add(types.NamespacedName{Namespace: state.GetNamespace(), Name: project})
		}
	}
	return found.list, nil
}

// through follows a chain by one more link.
func through(first Concerned, next func(context.Context, types.NamespacedName, *names) error) Concerned {
	return func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error) {
		links, err := first(ctx, states...)
		if err != nil {
			return nil, err
		}
		var found names
		for _, link := range links {
			if err := next(ctx, link, &found); err != nil {
				return nil, err
			}
		}
		return found.list, nil
	}
}
