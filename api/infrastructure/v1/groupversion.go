// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains the kinds that make Drover a Cluster API infrastructure provider.
//
// The kinds implement the v1beta2 contract of Cluster API. The machines of this provider are Hosts.
//
// +kubebuilder:object:generate=true
// +groupName=infrastructure.cluster.drover.dev
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the kinds in this package. Cluster API reserves group names of this form for third-party
// providers.
const Group = "infrastructure.cluster.drover.dev"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1"}

// AddToScheme registers the kinds in this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&DroverCluster{}, &DroverClusterList{},
		&DroverClusterTemplate{}, &DroverClusterTemplateList{},
		&DroverMachine{}, &DroverMachineList{},
		&DroverMachineTemplate{}, &DroverMachineTemplateList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
