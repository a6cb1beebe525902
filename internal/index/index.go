// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package index finds the members that an object on the hub targets, and the objects that a change affects.
//
// It reads from caches to which Index has added indexes. It runs on every replica of the hub.
package index

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/kinds"
)

// Names of indexes.
const (
	byCluster   = "index.cluster"   // value of clusterName, or selecting for objects with a selector
	byRole      = "index.role"      // each of RoleTemplates
	bySubject   = "index.subject"   // workspace/kind/name; used by Grants
	byProject   = "index.project"   // projectName
	byNamespace = "index.namespace" // each of spec.namespaces
	// byAnySubject is like bySubject for all workspaces.
	byAnySubject = "index.anysubject" // /kind/name; used by Grants
	byPrincipal  = "index.principal"  // spec.principal of a User
)

// selecting is the value of all objects with a selector in the index byCluster. It cannot be the name of a Cluster.
const selecting = "*"

// Index adds the indexes to a cache. Call it before the cache is used.
func Index(ctx context.Context, indexer client.FieldIndexer) error {
	role := func(o client.Object) []string { return o.(roleUser).RoleTemplates() }
	type field struct {
		kind client.Object
		name string
		keys client.IndexerFunc
	}
	indexes := []field{
		{&v1.Baseline{}, byRole, role},
		{&v1.ClusterRoleTemplateBinding{}, byRole, role},
		{&v1.ProjectRoleTemplateBinding{}, byRole, role},
		{&v1.ProjectRoleTemplateBinding{}, byProject, func(o client.Object) []string {
			return []string{o.(*v1.ProjectRoleTemplateBinding).Spec.ProjectName}
		}},
		{&v1.Project{}, byNamespace, func(o client.Object) []string { return o.(*v1.Project).Spec.Namespaces }},
	}
	for _, kind := range kinds.All() {
		if _, is := kind.Object.(v1.Targeted); is {
			indexes = append(indexes, field{kind.Object, byCluster, func(o client.Object) []string {
				return targetKey(o.(v1.Targeted).Target())
			}})
		}
	}
	for _, index := range indexes {
		if err := indexer.IndexField(ctx, index.kind, index.name, index.keys); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.kind, index.name, err)
		}
	}
	return nil
}

// Users adds the index that Disabled uses to a cache. Only hubs with sign-in need this index.
func Users(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, &v1.User{}, byPrincipal, func(o client.Object) []string {
		return []string{o.(*v1.User).Spec.Principal}
	})
	if meta.IsNoMatchError(err) {
		return fmt.Errorf("signIn.issuer is configured, but the hub's API server does not have the kind User: "+
			"apply the CRDs of this version: %w", err)
	} else if err != nil {
		return fmt.Errorf("index Users by %s: %w", byPrincipal, err)
	}
	return nil
}

func targetKey(t v1.ClusterTarget) []string {
	switch {
	case t.ClusterSelector != nil:
		return []string{selecting}
	case t.ClusterName != "":
		return []string{t.ClusterName}
	}
	return nil
}
