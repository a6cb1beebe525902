// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Etcd says where and when snapshots of a cluster's etcd are made. The distribution makes them.
type Etcd struct {
	// schedule of snapshots in the form of cron, with five fields or a word like @daily: "0 */12 * * *". Default: the
	// distribution's.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[-0-9*/, A-Za-z@?]+$`
	Schedule string `json:"schedule,omitempty"`
	// retention is how many scheduled snapshots each server keeps. Default: the distribution's.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Retention int32 `json:"retention,omitempty"`
	// s3 is where snapshots are copied to. They stay on the servers, too.
	// +optional
	S3 *EtcdS3 `json:"s3,omitempty"`
}

// BucketLookup is how requests to a store name the bucket.
//
// +kubebuilder:validation:Enum=DNS;Path
type BucketLookup string

// Ways to name a bucket.
const (
	BucketLookupDNS  BucketLookup = "DNS"
	BucketLookupPath BucketLookup = "Path"
)

// EtcdS3 is an S3-compatible store.
type EtcdS3 struct {
	// endpoint is its host, with a port if it is not 443. Default: that of AWS.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9.:\[\]]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// bucket for the snapshots.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[-a-z0-9.]+$`
	Bucket string `json:"bucket"`
	// region of the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[-a-z0-9]+$`
	Region string `json:"region,omitempty"`
	// bucketLookup is how requests name the bucket: DNS as <bucket>.<endpoint>, which some stores need, or Path as
	// <endpoint>/<bucket>. Default: DNS for AWS and stores that are known to need it, otherwise Path.
	// +optional
	BucketLookup BucketLookup `json:"bucketLookup,omitempty"`
	// folder in the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9._/]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.]{0,2}(/|$)')",message="folder is names with one / between two of them, such as backups/prod, none of which is . or .."
	Folder string `json:"folder,omitempty"`
	// credentialsSecretName names a Secret of the same namespace with the keys accessKey and secretKey, ca.crt if the
	// endpoint has a CA of its own, and the label provision.cluster.drover.dev/use: "true". Without it the servers use
	// what their machines are allowed.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`
}

// EtcdS3Object is an object in a bucket of an S3-compatible store.
type EtcdS3Object struct {
	// endpoint of the store, empty for that of AWS.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9.:\[\]]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// bucket of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[-a-z0-9.]+$`
	Bucket string `json:"bucket"`
	// region of the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[-a-z0-9]+$`
	Region string `json:"region,omitempty"`
	// bucketLookup is how requests name the bucket: DNS as <bucket>.<endpoint>, which some stores need, or Path as
	// <endpoint>/<bucket>. Default: DNS for AWS and stores that are known to need it, otherwise Path.
	// +optional
	BucketLookup BucketLookup `json:"bucketLookup,omitempty"`
	// key of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9._/]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.]{0,2}(/|$)')",message="key is names with one / between two of them, none of which is . or .."
	Key string `json:"key"`
}

// EtcdSnapshot has one server of a ClusterInstallation, or one control plane that kubeadm has made of a Host, make a
// snapshot of etcd now. To delete it leaves the snapshot where it is.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=esnap
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.clusterRef.kind`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.host`
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.status.snapshot`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type EtcdSnapshot struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says of what the snapshot is. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed: make another EtcdSnapshot"
	Spec EtcdSnapshotSpec `json:"spec"`

	// status says how far it is, and where it is.
	// +optional
	// +kubebuilder:default={phase: "Pending", conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for its cluster to be reconciled", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status EtcdSnapshotStatus `json:"status,omitempty"`
}

// EtcdSnapshotList is a list of EtcdSnapshots.
//
// +kubebuilder:object:root=true
type EtcdSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdSnapshot `json:"items"`
}

// EtcdSnapshotSpec says of what a snapshot is.
type EtcdSnapshotSpec struct {
	// clusterRef names the cluster whose etcd is saved.
	ClusterRef EtcdClusterRef `json:"clusterRef"`
}

// EtcdClusterKind is a kind of object whose cluster's etcd can be saved and restored.
//
// +kubebuilder:validation:Enum=ClusterInstallation;DroverCluster
type EtcdClusterKind string

// Kinds of clusters.
const (
	// EtcdOfInstallation is the etcd of a cluster that k3s or RKE2 makes of Hosts.
	EtcdOfInstallation EtcdClusterKind = "ClusterInstallation"
	// EtcdOfDroverCluster is the etcd of a cluster that Cluster API makes of Hosts by kubeadm.
	EtcdOfDroverCluster EtcdClusterKind = "DroverCluster"
)

// EtcdClusterRef names a cluster in the same namespace.
type EtcdClusterRef struct {
	// kind is ClusterInstallation, for a cluster by k3s or RKE2, or DroverCluster, for a cluster that Cluster API makes of
	// Hosts by kubeadm.
	Kind EtcdClusterKind `json:"kind"`
	// name of the object, in the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// EtcdSnapshotPhase is how far a snapshot is.
//
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed
type EtcdSnapshotPhase string

// Phases of a snapshot.
const (
	SnapshotPending   EtcdSnapshotPhase = "Pending"
	SnapshotRunning   EtcdSnapshotPhase = "Running"
	SnapshotSucceeded EtcdSnapshotPhase = "Succeeded"
	SnapshotFailed    EtcdSnapshotPhase = "Failed"
)

// EtcdSnapshotStatus is what is known of a snapshot.
type EtcdSnapshotStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, Stalled if it has failed: it is not tried again, and of a DroverCluster Saved: the file is on
	// the host.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is how far it is.
	// +optional
	Phase EtcdSnapshotPhase `json:"phase,omitempty"`
	// host that makes it, or has made it.
	// +optional
	Host string `json:"host,omitempty"`
	// snapshot is what its file's name begins with; the distribution adds the node's name and the time. The file is in
	// server/db/snapshots of the host's data directory, and in the bucket of spec.etcd.s3. Of a DroverCluster it is the
	// name of the file, which is in /var/lib/drover/etcd/snapshots of the host.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// s3 is the copy in a bucket, of a DroverCluster with spec.etcd.s3.
	// +optional
	S3 *EtcdS3Object `json:"s3,omitempty"`
	// configuration is the spec that the ClusterInstallation had when the snapshot was made, for an EtcdRestore that
	// restores it, too.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Configuration *runtime.RawExtension `json:"configuration,omitempty"`
}

// What is on the EtcdSnapshots of a DroverCluster.
const (
	// LabelScheduled with the value "true" is on EtcdSnapshots that the schedule of their owner has made. Those beyond its
	// retention are removed.
	LabelScheduled = Group + "/scheduled"
	// AnnotationScheduledFor has the time of the schedule for which an EtcdSnapshot was made, as RFC 3339.
	AnnotationScheduledFor = Group + "/scheduled-for"
	// ConditionSaved of an EtcdSnapshot of a DroverCluster is True once the file is on the disk of its host, also if the
	// copy to a bucket fails.
	ConditionSaved = "Saved"
)

// Reasons of the condition Ready of an EtcdSnapshot.
const (
	// ReasonWaiting: the message says what it waits for.
	ReasonWaiting = "Waiting"
	// ReasonRunning: a host carries it out.
	ReasonRunning = "Running"
	// ReasonSucceeded: it is done.
	ReasonSucceeded = "Succeeded"
	// ReasonFailed: it has failed, and is not tried again. Stalled.
	ReasonFailed = "Failed"
)
