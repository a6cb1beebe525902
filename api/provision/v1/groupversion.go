// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains the kinds that install clusters on Hosts with k3s and RKE2, and the kinds that back up and
// restore etcd.
//
// +kubebuilder:object:generate=true
// +groupName=provision.cluster.drover.dev
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of the kinds in this package. Objects of these kinds give root access to machines, so access
// to them is granted separately from access to the other objects in a workspace.
const Group = "provision.cluster.drover.dev"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1"}

// AddToScheme registers the kinds in this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(
		GroupVersion, &ClusterInstallation{}, &ClusterInstallationList{}, &EtcdSnapshot{}, &EtcdSnapshotList{},
		&EtcdRestore{}, &EtcdRestoreList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
