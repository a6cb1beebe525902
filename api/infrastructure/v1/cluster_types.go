// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// DroverCluster represents the infrastructure of a Cluster API Cluster whose machines are Hosts. Drover does not create
// networks or load balancers for the cluster. It provides the kubeconfig that Cluster API uses to reach the cluster
// through the hub's proxy, and reports the failure domains of the Hosts in the status.
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

	// spec defines the control plane endpoint, the failure domains and the schedule of etcd snapshots.
	// +optional
	Spec DroverClusterSpec `json:"spec,omitzero"`

	// status is the observed state of the DroverCluster. Cluster API reads it.
	// +optional
	Status DroverClusterStatus `json:"status,omitzero"`
}

// DroverClusterList is a list of DroverClusters.
//
// +kubebuilder:object:root=true
type DroverClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverCluster `json:"items"`
}

// DroverClusterSpec is the desired state of a DroverCluster.
type DroverClusterSpec struct {
	// controlPlaneEndpoint is the endpoint that the cluster's nodes use to reach its API servers: a virtual IP address, a
	// load balancer, a DNS name, or the address of a single control plane host. Drover does not create the endpoint, and
	// the hub does not connect to it. If this field is not set, spec.controlPlaneEndpoint of the Cluster API Cluster must
	// be set.
	// +optional
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`

	// failureDomainLabel is the key of a label on Hosts. Each value of this label on the Hosts in the same namespace is a
	// failure domain. Control plane nodes are spread across the failure domains. By default, there are no failure domains.
	// +optional
	// +kubebuilder:validation:MaxLength=317
	FailureDomainLabel string `json:"failureDomainLabel,omitempty"`

	// etcd configures scheduled etcd snapshots of a kubeadm control plane. By default, no snapshots are scheduled.
	// +optional
	Etcd Etcd `json:"etcd,omitempty,omitzero"`
}

// Etcd configures when etcd snapshots are taken and where they are stored.
//
// +kubebuilder:validation:MinProperties=1
type Etcd struct {
	// schedule is the cron schedule for snapshots, in UTC: either five fields, such as "0 */6 * * *", or a shorthand such
	// as @daily. Snapshots must be at least five minutes apart. By default, no snapshots are scheduled.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[-0-9*/, A-Za-z@?]+$`
	Schedule string `json:"schedule,omitempty"`
	// retention is the number of scheduled snapshots to keep on each control plane node. Copies in the bucket are never
	// removed. The valid range is 1 to 100. The default is 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Retention int32 `json:"retention,omitempty"`
	// s3 is the bucket to which all snapshots, including manual ones, are copied. Each snapshot is also kept on the
	// control plane node that took it. By default, snapshots are not copied.
	// +optional
	S3 *provisionv1.EtcdS3 `json:"s3,omitempty"`
}

// APIEndpoint is the host and port of an API server.
//
// +kubebuilder:validation:MinProperties=1
type APIEndpoint struct {
	// host is a DNS name or an IP address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host,omitempty"`
	// port is the TCP port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// DroverClusterStatus is the observed state of a DroverCluster.
type DroverClusterStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// initialization reports whether the infrastructure has been provisioned. Cluster API waits until provisioning is
	// complete.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// failureDomains lists the failure domains of the cluster, as defined by spec.failureDomainLabel. At most 100 are
	// listed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`

	// conditions contains Ready. It also contains EtcdScheduled if spec.etcd.schedule is set, and Paused while Cluster
	// API has paused the cluster.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Initialization reports whether the infrastructure has been provisioned, as the Cluster API contract requires.
//
// +kubebuilder:validation:MinProperties=1
type Initialization struct {
	// provisioned is true once the infrastructure has been provisioned. It never becomes false again.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// FailureDomain is a failure domain of a cluster, as the Cluster API contract defines it.
type FailureDomain struct {
	// name is the name of the failure domain. It is a value of the label that spec.failureDomainLabel specifies.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name"`
	// controlPlane is always true, because control plane machines can run in any failure domain.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
}

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

// ObjectMeta is the metadata that a template can set.
//
// +kubebuilder:validation:MinProperties=1
type ObjectMeta struct {
	// labels are the labels of the created objects.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are the annotations of the created objects.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}
