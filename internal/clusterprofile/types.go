// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clusterprofile contains the parts of SIG Multicluster's ClusterProfile kind that the hub writes.
//
// +kubebuilder:object:generate=true
package clusterprofile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
)

// GroupVersion is the group and version of ClusterProfile.
var GroupVersion = schema.GroupVersion{Group: "multicluster.x-k8s.io", Version: "v1alpha1"}

// AddToScheme adds ClusterProfile to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ClusterProfile{}, &ClusterProfileList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}

// ClusterProfile contains the fields of ClusterProfile in multicluster.x-k8s.io/v1alpha1 (KEP-4322). It replaces the
// upstream type, because the upstream module requires a different version of controller-runtime.
//
// +kubebuilder:object:root=true
type ClusterProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ClusterProfileSpec   `json:"spec"`
	Status ClusterProfileStatus `json:"status,omitzero"`
}

// ClusterProfileList is a list of ClusterProfiles.
//
// +kubebuilder:object:root=true
type ClusterProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterProfile `json:"items"`
}

// ClusterProfileSpec identifies the cluster and its manager.
type ClusterProfileSpec struct {
	DisplayName    string         `json:"displayName,omitempty"`
	ClusterManager ClusterManager `json:"clusterManager"`
}

// ClusterManager is the product that writes a profile. It is immutable. Its name is also the value of LabelManager.
type ClusterManager struct {
	Name string `json:"name"`
}

// ClusterProfileStatus is the known state of the cluster.
type ClusterProfileStatus struct {
	Conditions      []metav1.Condition `json:"conditions,omitempty"`
	Version         Version            `json:"version,omitzero"`
	Properties      []Property         `json:"properties,omitempty"`
	AccessProviders []AccessProvider   `json:"accessProviders,omitempty"`
}

// Version holds the version of the cluster.
type Version struct {
	Kubernetes string `json:"kubernetes,omitempty"`
}

// Property is a fact about the cluster that rarely changes.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// AccessProvider is a way to reach the cluster's API (KEP-5339). It contains the address of the API and, in the
// extension execExtension, the data that an exec plugin needs to create a credential.
type AccessProvider struct {
	Name    string              `json:"name"`
	Cluster clientcmdv1.Cluster `json:"cluster"`
}
