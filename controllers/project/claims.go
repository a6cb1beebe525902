// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package project

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
)

// decideProject builds the project's set for each member. The sets of two members differ only if another project owns
// some of the namespaces in one of the members.
func (r *Reconciler) decideProject(ctx context.Context, project *v1.Project, d *decision) error {
	rivals, err := r.rivals(ctx, project)
	if err != nil {
		return err
	}
	made := map[string]*set.Set{} // sets, keyed by the namespaces that other projects own
	told := map[string]bool{}
	for _, member := range d.members {
		taken, err := r.taken(ctx, project, rivals, member)
		if err != nil {
			return err
		}
		names := slices.Sorted(maps.Keys(taken))
		for _, name := range names {
			if !told[name] {
				told[name] = true
				d.fail(v1.ReasonNamespaceTaken, fmt.Sprintf("In cluster %s, namespace %s belongs to project %s; take it out of spec.namespaces of one of them",
					member.Name, name, taken[name]))
			}
		}
		given := made[strings.Join(names, ",")]
		if given == nil {
			content, err := tenancy.Content(project, taken)
			if err != nil {
				return err
			}
			if given, err = set.New(set.ID(set.Project, project.Name), nil, content); err != nil {
				d.fail(v1.ReasonDeliveryFailed, err.Error())
				return nil
			}
			made[strings.Join(names, ",")] = given
		}
		d.projects[member] = given
	}
	return nil
}

// rivals returns the other projects in the workspace that list one of this project's namespaces.
func (r *Reconciler) rivals(ctx context.Context, project *v1.Project) ([]*v1.Project, error) {
	listing, err := index.ProjectsListing(ctx, r.Client, project.Namespace, project.Spec.Namespaces)
	return slices.DeleteFunc(listing, func(other *v1.Project) bool {
		return other.Name == project.Name || !other.DeletionTimestamp.IsZero()
	}), err
}

// taken returns the project's namespaces that belong to another project in a member, and the name of that project.
func (r *Reconciler) taken(ctx context.Context, project *v1.Project, rivals []*v1.Project, member types.NamespacedName) (map[string]string, error) {
	if len(rivals) == 0 {
		return nil, nil
	}
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, member, cluster); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read cluster %s: %w", member, err)
	}
	there := []*v1.Project{project}
	for _, rival := range rivals {
		if selected, err := rival.Spec.Selects(member.Name, cluster.Labels); err == nil && selected {
			there = append(there, rival)
		}
	}
	return tenancy.Claims(there)[project.Name], nil
}
