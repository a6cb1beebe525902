// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of all kinds in this package. It sorts before cluster.x-k8s.io, so "kubectl get clusters"
// lists Drover's Clusters even if Cluster API is installed too.
const Group = "cluster.drover.dev"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1"}

// AddToScheme registers the kinds in this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&AuthProvider{}, &AuthProviderList{},
		&Cluster{}, &ClusterList{},
		&Host{}, &HostList{},
		&RoleTemplate{}, &RoleTemplateList{},
		&ClusterRoleTemplateBinding{}, &ClusterRoleTemplateBindingList{},
		&ProjectRoleTemplateBinding{}, &ProjectRoleTemplateBindingList{},
		&Project{}, &ProjectList{},
		&Plan{}, &PlanList{},
		&Baseline{}, &BaselineList{},
		&User{}, &UserList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
