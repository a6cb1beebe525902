// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DroverClusterTemplate is what Cluster API makes the DroverCluster of a Cluster of, whose topology names a
// ClusterClass.
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

	// spec is the template.
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

// DroverClusterTemplateSpec is the template of clusters.
type DroverClusterTemplateSpec struct {
	// template of a cluster. Cluster API has those that were made of it follow a change.
	// +required
	Template DroverClusterTemplateResource `json:"template"`
}

// DroverClusterTemplateResource is what a cluster is made of.
type DroverClusterTemplateResource struct {
	// metadata for the clusters.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the clusters. What differs between them, as controlPlaneEndpoint, a ClusterClass sets by patches of its
	// variables.
	// +required
	Spec DroverClusterSpec `json:"spec"`
}
