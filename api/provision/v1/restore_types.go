// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdRestore restores the etcd of a ClusterInstallation, or of a kubeadm cluster on Hosts, from a snapshot. All
// servers are stopped. One of them restores the snapshot, and then the others join it with empty data directories. All
// changes to the cluster since the snapshot was taken are lost. To cancel the restore, delete the EtcdRestore before
// any data is replaced.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=erestore
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.clusterRef.kind`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.host`
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.status.snapshot`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type EtcdRestore struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec identifies the snapshot to restore. Only the cancel field can be changed.
	Spec EtcdRestoreSpec `json:"spec"`

	// status describes the progress of the restore.
	// +optional
	// +kubebuilder:default={phase: "Pending", conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for its cluster to be reconciled", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status EtcdRestoreStatus `json:"status,omitzero"`
}

// EtcdRestoreList is a list of EtcdRestores.
//
// +kubebuilder:object:root=true
type EtcdRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdRestore `json:"items"`
}

// EtcdRestoreSpec identifies the snapshot to restore.
//
// +kubebuilder:validation:XValidation:rule="self.clusterRef.kind == 'ClusterInstallation' || self.configuration == 'Keep'",message="configuration: Restore requires a clusterRef to a ClusterInstallation"
// +kubebuilder:validation:XValidation:rule="has(self.snapshotName) != has(self.file)",message="set exactly one of snapshotName and file"
// +kubebuilder:validation:XValidation:rule="!has(self.host) || has(self.file)",message="host requires file"
// +kubebuilder:validation:XValidation:rule="self.configuration != 'Restore' || has(self.snapshotName)",message="configuration: Restore requires snapshotName, because a file has no configuration"
// +kubebuilder:validation:XValidation:rule="has(self.snapshotName) == has(oldSelf.snapshotName) && has(self.host) == has(oldSelf.host)",message="spec cannot be changed, except for cancel: create another EtcdRestore"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.cancel) && oldSelf.cancel) || has(self.cancel) && self.cancel",message="cancel cannot be set back to false: create another EtcdRestore"
type EtcdRestoreSpec struct {
	// clusterRef refers to the cluster whose etcd is restored.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, except for cancel: create another EtcdRestore"
	ClusterRef EtcdClusterRef `json:"clusterRef"`

	// snapshotName is the name of a successful EtcdSnapshot in the same namespace. The host that took the snapshot
	// restores it from its disk. If the host or the file no longer exists, the restore works only for a DroverCluster. In
	// that case, another host downloads the snapshot from the bucket.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, except for cancel: create another EtcdRestore"
	SnapshotName string `json:"snapshotName,omitempty"`

	// file is the file name of a snapshot, such as a scheduled snapshot. If host is set, the file is in
	// server/db/snapshots under that host's data directory or, for a DroverCluster, in /var/lib/drover/etcd/snapshots. If
	// host is not set, the file is in the bucket specified in spec.etcd.s3 of the ClusterInstallation or DroverCluster.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, except for cancel: create another EtcdRestore"
	File string `json:"file,omitempty"`
	// host is the name of the Host that has the file on its disk and restores the snapshot.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, except for cancel: create another EtcdRestore"
	Host string `json:"host,omitempty"`

	// configuration defines whether the spec of the ClusterInstallation is restored too. With Keep, the default, the
	// spec is not changed. With Restore, the spec, including the version, is set to its state at the time of the
	// snapshot. Pools and rotation counters are never restored.
	// +optional
	// +kubebuilder:default=Keep
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, except for cancel: create another EtcdRestore"
	Configuration RestoredConfiguration `json:"configuration,omitempty"`

	// cancel cancels the restore if no data has been replaced yet. Otherwise, it has no effect, and the status says so.
	// cancel cannot be set back to false. The default is false.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
}

// RestoredConfiguration defines whether a restore changes the spec of an installation.
//
// +kubebuilder:validation:Enum=Keep;Restore
type RestoredConfiguration string

// Effects of a restore on an installation's spec.
const (
	// ConfigurationKeep means that the spec is left unchanged.
	ConfigurationKeep RestoredConfiguration = "Keep"
	// ConfigurationRestore means that the spec is set to its state at the time of the snapshot.
	ConfigurationRestore RestoredConfiguration = "Restore"
)

// EtcdRestorePhase is the phase of a restore.
//
// +kubebuilder:validation:Enum=Pending;Stopping;Restoring;Joining;Succeeded;Failed;Canceled
type EtcdRestorePhase string

// Phases of a restore.
const (
	// RestorePending means that no server has been stopped yet. The condition's message says why.
	RestorePending EtcdRestorePhase = "Pending"
	// RestoreStopping means that the servers are being stopped.
	RestoreStopping EtcdRestorePhase = "Stopping"
	// RestoreRestoring means that all servers are stopped, and one of them is replacing its data. The restore can no
	// longer be canceled.
	RestoreRestoring EtcdRestorePhase = "Restoring"
	// RestoreJoining means that the restored server is running, and the others are joining it.
	RestoreJoining EtcdRestorePhase = "Joining"
	// RestoreSucceeded means that all servers are running.
	RestoreSucceeded EtcdRestorePhase = "Succeeded"
	// RestoreFailed means that the restore failed. The condition's message names the step and the host.
	RestoreFailed EtcdRestorePhase = "Failed"
	// RestoreCanceled means that no data was replaced. The servers that had been stopped are started again.
	RestoreCanceled EtcdRestorePhase = "Canceled"
)

// EtcdRestoreStatus is the observed state of a restore.
type EtcdRestoreStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains Ready. It also contains Stalled while manual action is required. A restore that failed or was
	// canceled is also Stalled, because it is not retried.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is the phase of the restore.
	// +optional
	Phase EtcdRestorePhase `json:"phase,omitempty"`
	// host is the name of the Host that restores the snapshot.
	// +optional
	Host string `json:"host,omitempty"`
	// snapshot is the file name of the snapshot, or a prefix of the file name.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
}

// Reasons of an EtcdRestore's Ready condition, in addition to Pending, Waiting, Succeeded and Failed.
const (
	// ReasonSourceInvalid means that the snapshot does not exist or cannot be restored. The message says why. The
	// object becomes Stalled.
	ReasonSourceInvalid = "SourceInvalid"
	// ReasonHostAway means that a host is not connected. The message names the host. No server has been stopped yet.
	ReasonHostAway = "HostAway"
	// ReasonStopping means that the servers are being stopped.
	ReasonStopping = "Stopping"
	// ReasonRestoring means that a host is replacing its data. On a ClusterInstallation, this reason means that an
	// EtcdRestore is in progress, and that no other changes are made in the meantime.
	ReasonRestoring = "Restoring"
	// ReasonJoining means that the servers are being started one after another.
	ReasonJoining = "Joining"
	// ReasonCanceled means that the restore was canceled before data was replaced. The object becomes Stalled.
	ReasonCanceled = "Canceled"
)

// FinalizerRestore prevents the removal of a deleted EtcdRestore of a DroverCluster until the restore has finished.
const FinalizerRestore = "provision.cluster.drover.dev/restore"
