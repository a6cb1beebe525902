// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1 contains the kinds with which clusters are made of Hosts by k3s and RKE2, and with which their etcd is
// saved and restored.
//
// +kubebuilder:object:generate=true
// +groupName=provision.cluster.drover.dev
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group is the API group of these kinds. Their objects are root on machines: the rights to it are given apart from
// those to the rest of a workspace.
const Group = "provision.cluster.drover.dev"

// GroupVersion is the group and version of this package.
var GroupVersion = schema.GroupVersion{Group: Group, Version: "v1"}

// AddToScheme registers the kinds of this package with a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ClusterInstallation{}, &ClusterInstallationList{}, &EtcdSnapshot{}, &EtcdSnapshotList{}, &EtcdRestore{}, &EtcdRestoreList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
