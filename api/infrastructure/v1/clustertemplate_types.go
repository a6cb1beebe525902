// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DroverClusterTemplate is a template from which Cluster API creates the DroverClusters of a ClusterClass.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1"
// +kubebuilder:resource:categories=cluster-api,shortName=droverct
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DroverClusterTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec contains the template for DroverClusters.
	// +required
	Spec DroverClusterTemplateSpec `json:"spec"`
}

// DroverClusterTemplateList is a list of DroverClusterTemplates.
//
// +kubebuilder:object:root=true
type DroverClusterTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverClusterTemplate `json:"items"`
}

// DroverClusterTemplateSpec contains the template for DroverClusters.
type DroverClusterTemplateSpec struct {
	// template describes the DroverClusters to create. When the template changes, Cluster API updates the existing
	// DroverClusters.
	// +required
	Template DroverClusterTemplateResource `json:"template"`
}

// DroverClusterTemplateResource describes the DroverClusters to create from a template.
type DroverClusterTemplateResource struct {
	// metadata is the metadata of the DroverClusters.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the spec of the DroverClusters. Use ClusterClass patches and variables for fields that differ between
	// clusters, such as controlPlaneEndpoint.
	// +required
	Spec DroverClusterSpec `json:"spec"`
}
