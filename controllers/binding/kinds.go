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
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/index"
)

// Kinds of the keys under which bindings are delivered.
const (
	KindCluster = "crtb"
	KindProject = "prtb"
)

// NewCluster makes the reconciler of ClusterRoleTemplateBindings.
func NewCluster(o Options) *Reconciler {
	return &Reconciler{Options: o, kind: kind{
		name:   KindCluster,
		object: func() client.Object { return &v1.ClusterRoleTemplateBinding{} },
		view: func(o client.Object) *view {
			b := o.(*v1.ClusterRoleTemplateBinding)
			return &view{object: b, subject: b.Spec.Subject, expires: b.Spec.ExpiresAt, status: &b.Status}
		},
		members: func(ctx context.Context, reader client.Reader, o client.Object) ([]types.NamespacedName, *index.Problem, error) {
			return index.Members(ctx, reader, o.GetNamespace(), o.(*v1.ClusterRoleTemplateBinding).Spec.ClusterTarget)
		},
		content: func(templates access.Templates, o client.Object) (expansion.Content, error) {
			binding, err := access.ClusterBinding(templates, o.(*v1.ClusterRoleTemplateBinding))
			if err != nil {
				return expansion.Content{}, err
			}
			object, err := delivery.Object(binding)
			return expansion.Content{Objects: []*unstructured.Unstructured{object}}, err
		},
		wakers: []waker{
			{&v1.Cluster{}, index.ClusterToClusterBindings},
			{&v1.RoleTemplate{}, index.RoleToClusterBindings},
		},
	}}
}

// NewProject makes the reconciler of ProjectRoleTemplateBindings.
func NewProject(o Options) *Reconciler {
	return &Reconciler{Options: o, kind: kind{
		name:   KindProject,
		object: func() client.Object { return &v1.ProjectRoleTemplateBinding{} },
		view: func(o client.Object) *view {
			b := o.(*v1.ProjectRoleTemplateBinding)
			return &view{object: b, subject: b.Spec.Subject, expires: b.Spec.ExpiresAt, status: &b.Status}
		},
		members: func(ctx context.Context, reader client.Reader, o client.Object) ([]types.NamespacedName, *index.Problem, error) {
			return index.ProjectMembers(ctx, reader, o.(*v1.ProjectRoleTemplateBinding))
		},
		content: func(templates access.Templates, o client.Object) (expansion.Content, error) {
			b := o.(*v1.ProjectRoleTemplateBinding)
			binding, err := access.ProjectBinding(templates, b)
			if err != nil {
				return expansion.Content{}, err
			}
			object, err := delivery.Object(binding)
			per := &expansion.PerNamespace{Project: b.Spec.ProjectName, Templates: []expansion.Template{{Object: object}}}
			return expansion.Content{PerNamespace: per}, err
		},
		wakers: []waker{
			{&v1.Cluster{}, index.ClusterToProjectBindings},
			{&v1.Project{}, index.ProjectToProjectBindings},
			{&v1.RoleTemplate{}, index.RoleToProjectBindings},
		},
	}}
}
