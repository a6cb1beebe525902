// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Etcd configures when etcd snapshots are taken and where they are stored. The distribution takes the snapshots.
type Etcd struct {
	// schedule is the cron schedule for snapshots: either five fields, such as "0 */12 * * *", or a shorthand such as
	// @daily. The default is the distribution's own default schedule.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[-0-9*/, A-Za-z@?]+$`
	Schedule string `json:"schedule,omitempty"`
	// retention is the number of scheduled snapshots to keep on each server. The default is the distribution's own
	// default.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	Retention int32 `json:"retention,omitempty"`
	// s3 is the bucket to which snapshots are copied. The snapshots are also kept on the servers. By default, snapshots
	// are not copied.
	// +optional
	S3 *EtcdS3 `json:"s3,omitempty"`
}

// BucketLookup defines how requests to an S3-compatible store address the bucket.
//
// +kubebuilder:validation:Enum=DNS;Path
type BucketLookup string

// Ways to address a bucket.
const (
	BucketLookupDNS  BucketLookup = "DNS"
	BucketLookupPath BucketLookup = "Path"
)

// EtcdS3 is a bucket in an S3-compatible store.
type EtcdS3 struct {
	// endpoint is the host name of the store, in the format "<host>" or "<host>:<port>". The default is the AWS endpoint.
	// The port defaults to 443.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9.:\[\]]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// bucket is the name of the bucket.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[-a-z0-9.]+$`
	Bucket string `json:"bucket"`
	// region is the region of the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[-a-z0-9]+$`
	Region string `json:"region,omitempty"`
	// bucketLookup defines how requests address the bucket: DNS means <bucket>.<endpoint>, and Path means
	// <endpoint>/<bucket>. Some stores require DNS. The default is DNS for AWS and other stores that are known to
	// require DNS, and Path otherwise.
	// +optional
	BucketLookup BucketLookup `json:"bucketLookup,omitempty"`
	// folder is the folder in the bucket where snapshots are stored. By default, snapshots are stored at the top level
	// of the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9._/]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.]{0,2}(/|$)')",message="folder must consist of names separated by single slashes, such as backups/prod; the names . and .. are not allowed"
	Folder string `json:"folder,omitempty"`
	// credentialsSecretName is the name of a Secret in the same namespace. The Secret must have the keys accessKey and
	// secretKey, and also ca.crt if the endpoint uses a private CA. It must have the label
	// provision.cluster.drover.dev/use: "true". By default, each server uses the cloud permissions of its machine.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`
}

// EtcdS3Object is an object in a bucket of an S3-compatible store.
type EtcdS3Object struct {
	// endpoint is the host name of the store. It is empty for AWS.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9.:\[\]]+$`
	Endpoint string `json:"endpoint,omitempty"`
	// bucket is the name of the bucket.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[-a-z0-9.]+$`
	Bucket string `json:"bucket"`
	// region is the region of the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[-a-z0-9]+$`
	Region string `json:"region,omitempty"`
	// bucketLookup defines how requests address the bucket: DNS means <bucket>.<endpoint>, and Path means
	// <endpoint>/<bucket>. Some stores require DNS. The default is DNS for AWS and other stores that are known to
	// require DNS, and Path otherwise.
	// +optional
	BucketLookup BucketLookup `json:"bucketLookup,omitempty"`
	// key is the key of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[-A-Za-z0-9._/]+$`
	// +kubebuilder:validation:XValidation:rule="!self.matches('(^|/)[.]{0,2}(/|$)')",message="key must consist of names separated by single slashes; the names . and .. are not allowed"
	Key string `json:"key"`
}

// EtcdSnapshot takes a single snapshot of a cluster's etcd immediately. The snapshot is taken on a server of a
// ClusterInstallation, or on a control plane Host of a kubeadm cluster. Deleting the EtcdSnapshot does not delete the
// snapshot's file.
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

	// spec identifies the cluster whose etcd is backed up. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed: create another EtcdSnapshot"
	Spec EtcdSnapshotSpec `json:"spec"`

	// status describes the progress and the location of the snapshot.
	// +optional
	// +kubebuilder:default={phase: "Pending", conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for its cluster to be reconciled", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status EtcdSnapshotStatus `json:"status,omitzero"`
}

// EtcdSnapshotList is a list of EtcdSnapshots.
//
// +kubebuilder:object:root=true
type EtcdSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdSnapshot `json:"items"`
}

// EtcdSnapshotSpec identifies the cluster whose etcd is backed up.
type EtcdSnapshotSpec struct {
	// clusterRef refers to the cluster whose etcd is backed up.
	ClusterRef EtcdClusterRef `json:"clusterRef"`
}

// EtcdClusterKind is a kind of object that defines a cluster whose etcd can be backed up and restored.
//
// +kubebuilder:validation:Enum=ClusterInstallation;DroverCluster
type EtcdClusterKind string

// Kinds of objects that define a cluster.
const (
	// EtcdOfInstallation refers to a k3s or RKE2 cluster on Hosts.
	EtcdOfInstallation EtcdClusterKind = "ClusterInstallation"
	// EtcdOfDroverCluster refers to a kubeadm cluster that Cluster API creates on Hosts.
	EtcdOfDroverCluster EtcdClusterKind = "DroverCluster"
)

// EtcdClusterRef refers to a cluster in the same namespace.
type EtcdClusterRef struct {
	// kind is ClusterInstallation for a k3s or RKE2 cluster, or DroverCluster for a kubeadm cluster that Cluster API
	// creates on Hosts.
	Kind EtcdClusterKind `json:"kind"`
	// name is the name of the ClusterInstallation or DroverCluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`
}

// EtcdSnapshotPhase is the phase of a snapshot.
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

// EtcdSnapshotStatus is the observed state of a snapshot.
type EtcdSnapshotStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains Ready. If the snapshot failed, it also contains Stalled, because a failed snapshot is not
	// retried. For a DroverCluster, it also contains Saved, which is True once the file is on the host.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is the phase of the snapshot.
	// +optional
	Phase EtcdSnapshotPhase `json:"phase,omitempty"`
	// host is the name of the Host that takes the snapshot.
	// +optional
	Host string `json:"host,omitempty"`
	// snapshot is the prefix of the file name. The distribution appends the node's name and the time. The file is stored
	// on the host in server/db/snapshots under the data directory, and also in the bucket if spec.etcd.s3 is set. For a
	// DroverCluster, snapshot is the full file name, and the file is stored in /var/lib/drover/etcd/snapshots on the host.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
	// s3 is the location of the snapshot's copy in a bucket. It is set only for a DroverCluster that sets spec.etcd.s3.
	// +optional
	S3 *EtcdS3Object `json:"s3,omitempty"`
	// configuration is the spec of the ClusterInstallation at the time of the snapshot. An EtcdRestore whose configuration
	// field is Restore applies this spec.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Configuration *runtime.RawExtension `json:"configuration,omitempty"`
}

// Labels, annotations and conditions on a DroverCluster's EtcdSnapshots.
const (
	// LabelScheduled with the value "true" marks an EtcdSnapshot that the provisioner created according to the schedule of
	// the DroverCluster that owns it. The oldest of these snapshots are removed when their number exceeds the retention.
	LabelScheduled = Group + "/scheduled"
	// AnnotationScheduledFor contains the scheduled time of an EtcdSnapshot, in RFC 3339 format.
	AnnotationScheduledFor = Group + "/scheduled-for"
	// ConditionSaved on a DroverCluster's EtcdSnapshot is True once the file is on the host's disk, even if copying the
	// file to a bucket fails.
	ConditionSaved = "Saved"
)

// Reasons of the Ready condition of an EtcdSnapshot.
const (
	// ReasonWaiting means that the snapshot has not started. The message says why.
	ReasonWaiting = "Waiting"
	// ReasonRunning means that a host is taking the snapshot.
	ReasonRunning = "Running"
	// ReasonSucceeded means that the snapshot has been taken.
	ReasonSucceeded = "Succeeded"
	// ReasonFailed means that the snapshot failed. The snapshot is not retried. The object becomes Stalled.
	ReasonFailed = "Failed"
)
