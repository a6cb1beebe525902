// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
)

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
