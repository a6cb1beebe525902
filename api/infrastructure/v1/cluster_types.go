// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// DroverCluster is the infrastructure of a Cluster of Cluster API whose machines are Hosts. It makes no infrastructure:
// it writes the kubeconfig with which Cluster API reaches the cluster through the hub's proxy, and names the failure
// domains of the Hosts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1"
// +kubebuilder:resource:categories=cluster-api,shortName=drovercl
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type DroverCluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where nodes find their control plane.
	// +optional
	Spec DroverClusterSpec `json:"spec,omitempty"`

	// status is what Cluster API reads.
	// +optional
	Status DroverClusterStatus `json:"status,omitempty"`
}

// DroverClusterList is a list of DroverClusters.
//
// +kubebuilder:object:root=true
type DroverClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverCluster `json:"items"`
}

// DroverClusterSpec is what the user wants of a DroverCluster.
type DroverClusterSpec struct {
	// controlPlaneEndpoint is where the cluster's own nodes reach its API servers: a virtual address, a load balancer, a
	// name in DNS, or the address of the only host of the control plane. Drover makes none, and the hub never dials it.
	// Without it, spec.controlPlaneEndpoint of the Cluster of Cluster API must be set.
	// +optional
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// failureDomainLabel is a label of Hosts. Each value of it in the workspace is a failure domain, over which the
	// control plane is spread. Default: no failure domains.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	FailureDomainLabel string `json:"failureDomainLabel,omitempty"`

	// etcd says when snapshots of etcd are made, and where they are copied to, of a control plane by kubeadm.
	// +optional
	Etcd Etcd `json:"etcd,omitempty,omitzero"`
}

// Etcd says when snapshots of etcd are made, and where they are copied to.
//
// +kubebuilder:validation:MinProperties=1
type Etcd struct {
	// schedule of snapshots in the form of cron, with five fields or a word like @daily, in UTC: "0 */6 * * *". Times
	// are at least five minutes apart. Default: none are made by themselves.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[-0-9*/, A-Za-z@?]+$`
	Schedule string `json:"schedule,omitempty"`
	// retention is how many scheduled snapshots each control plane keeps. Default: 5. Copies in s3 are not removed.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Retention int32 `json:"retention,omitempty"`
	// s3 is where each snapshot is copied to, also one that a user made. It stays on the control plane, too.
	// +optional
	S3 *provisionv1.EtcdS3 `json:"s3,omitempty"`
}

// APIEndpoint is a host and port of an API server.
//
// +kubebuilder:validation:MinProperties=1
type APIEndpoint struct {
	// host is a name or an IP address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host,omitempty"`
	// port is its TCP port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// DroverClusterStatus is what is known of a DroverCluster.
type DroverClusterStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// initialization is what Cluster API waits for.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// failureDomains are the values of spec.failureDomainLabel that Hosts of the workspace have, at most 100.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`

	// conditions are Ready, and Paused while Cluster API asks for it.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization says how far the infrastructure is, as the contract has it.
//
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// provisioned is true once the infrastructure is there, and stays so.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// FailureDomain is one of a cluster, as the contract has it.
type FailureDomain struct {
	// name is the value of the label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// controlPlane is true: machines of the control plane may be there.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
}
