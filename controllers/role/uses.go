// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package role

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
)

// uses describes the members in which a template is bound.
type uses struct {
	members []types.NamespacedName
	// until is the time until the first binding expires, or 0 if no binding expires.
	until time.Duration
}

// uses finds the members in which a template is bound or used by a Baseline. It ignores bindings that have expired or
// that are not allowed to use the template.
func (r *Reconciler) uses(ctx context.Context, template *v1.RoleTemplate) (uses, error) {
	found := finding{now: r.Now(), known: map[types.NamespacedName]struct{}{}, targets: map[string]struct{}{}}
	if template.Spec.Context == v1.ContextCluster {
		bindings, err := index.BindingsWith[*v1.ClusterRoleTemplateBinding](ctx, r.Client, template.Name)
		if err != nil {
			return uses{}, err
		}
		for _, b := range bindings {
			if !b.DeletionTimestamp.IsZero() || found.expired(b.Spec.ExpiresAt) || found.same(b.Namespace, b.Spec.ClusterTarget) {
				continue
			}
			members, _, err := index.Members(ctx, r.Client, b.Namespace, b.Spec.ClusterTarget)
			if err != nil {
				return uses{}, err
			}
			found.add(members)
		}
		err = r.baselines(ctx, template, &found)
		return found.uses, err
	}
	bindings, err := index.BindingsWith[*v1.ProjectRoleTemplateBinding](ctx, r.Client, template.Name)
	if err != nil {
		return uses{}, err
	}
	projects := map[types.NamespacedName]struct{}{}
	for _, b := range bindings {
		project := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ProjectName}
		if _, known := projects[project]; known && b.Spec.ExpiresAt == nil || !b.DeletionTimestamp.IsZero() || found.expired(b.Spec.ExpiresAt) {
			continue
		}
		projects[project] = struct{}{}
		members, _, err := index.ProjectMembers(ctx, r.Client, b)
		if err != nil {
			return uses{}, err
		}
		found.add(members)
	}
	return found.uses, nil
}

// baselines adds the members of the Baselines that use a template, including members that keep an earlier revision.
func (r *Reconciler) baselines(ctx context.Context, template *v1.RoleTemplate, found *finding) error {
	baselines, err := index.BindingsWith[*v1.Baseline](ctx, r.Client, template.Name)
	if err != nil {
		return err
	}
	for _, b := range baselines {
		if !b.DeletionTimestamp.IsZero() || found.same(b.Namespace, b.Spec.ClusterTarget) {
			continue
		}
		members, _, err := index.MembersToKeep(ctx, r.Client, b.Namespace, b.Spec.ClusterTarget)
		if err != nil {
			return err
		}
		found.add(members)
	}
	return nil
}

// finding holds the intermediate results of Reconciler.uses.
type finding struct {
	uses
	now   time.Time
	known map[types.NamespacedName]struct{}
	// targets that name a Cluster and have already been looked up; a thousand bindings for one member need only one
	// lookup
	targets map[string]struct{}
}

// expired reports whether a binding has expired. If the binding expires later, expired records the time.
func (f *finding) expired(end *metav1.Time) bool {
	if index.Expired(end, f.now) {
		return true
	}
	if end != nil {
		if left := end.Sub(f.now); f.until == 0 || left < f.until {
			f.until = left
		}
	}
	return false
}

// same reports whether a target that names a Cluster has already been looked up.
func (f *finding) same(namespace string, t v1.ClusterTarget) bool {
	if t.ClusterSelector != nil {
		return false
	}
	key := namespace + "/" + t.ClusterName
	_, known := f.targets[key]
	f.targets[key] = struct{}{}
	return known
}

func (f *finding) add(members []types.NamespacedName) {
	for _, member := range members {
		if _, known := f.known[member]; !known {
			f.known[member] = struct{}{}
			f.members = append(f.members, member)
		}
	}
}
