// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// EtcdRestore brings the etcd of a ClusterInstallation, or of a cluster that kubeadm has made of Hosts, back to a
// snapshot: all servers are stopped, one restores it, and the others join that one anew. What the cluster has got since
// the snapshot is lost. To delete it before data is replaced cancels it.
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

	// spec says which snapshot is restored. It cannot be changed, but for cancel.
	Spec EtcdRestoreSpec `json:"spec"`

	// status says how far it is.
	// +optional
	// +kubebuilder:default={phase: "Pending", conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for its cluster to be reconciled", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status EtcdRestoreStatus `json:"status,omitempty"`
}

// EtcdRestoreList is a list of EtcdRestores.
//
// +kubebuilder:object:root=true
type EtcdRestoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EtcdRestore `json:"items"`
}

// EtcdRestoreSpec says which snapshot is restored.
//
// +kubebuilder:validation:XValidation:rule="self.clusterRef.kind == 'ClusterInstallation' || self.configuration == 'Keep'",message="configuration: Restore is for a clusterRef of the kind ClusterInstallation"
// +kubebuilder:validation:XValidation:rule="has(self.snapshotName) != has(self.file)",message="give snapshotName or file"
// +kubebuilder:validation:XValidation:rule="!has(self.host) || has(self.file)",message="host is for file"
// +kubebuilder:validation:XValidation:rule="self.configuration != 'Restore' || has(self.snapshotName)",message="configuration: Restore takes snapshotName: a file has no configuration"
// +kubebuilder:validation:XValidation:rule="has(self.snapshotName) == has(oldSelf.snapshotName) && has(self.host) == has(oldSelf.host)",message="spec cannot be changed, but for cancel: make another EtcdRestore"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.cancel) && oldSelf.cancel) || has(self.cancel) && self.cancel",message="cancel cannot be taken back: make another EtcdRestore"
type EtcdRestoreSpec struct {
	// clusterRef names the cluster whose etcd is restored.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, but for cancel: make another EtcdRestore"
	ClusterRef EtcdClusterRef `json:"clusterRef"`

	// snapshotName names an EtcdSnapshot of the same namespace that has succeeded. The host that made it restores it, from
	// its disk. Of a DroverCluster another host fetches it from its bucket, if that host or the file is gone.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, but for cancel: make another EtcdRestore"
	SnapshotName string `json:"snapshotName,omitempty"`

	// file is the name of a snapshot's file, such as one of the schedule. It is in server/db/snapshots of the data
	// directory of host, or without host in the bucket of spec.etcd.s3 of the installation or DroverCluster. Of a
	// DroverCluster it is in /var/lib/drover/etcd/snapshots of host.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, but for cancel: make another EtcdRestore"
	File string `json:"file,omitempty"`
	// host whose disk has the file. It restores it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, but for cancel: make another EtcdRestore"
	Host string `json:"host,omitempty"`

	// configuration is Restore to have the spec of the installation written back, too, as it was when the snapshot was
	// made, with its version. Pools and the counts of rotations stay as they are. Default Keep.
	// +optional
	// +kubebuilder:default=Keep
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="spec cannot be changed, but for cancel: make another EtcdRestore"
	Configuration RestoredConfiguration `json:"configuration,omitempty"`

	// cancel ends the restore while no data was replaced yet. After that it is too late, and the status says so. It cannot
	// be taken back.
	// +optional
	Cancel bool `json:"cancel,omitempty"`
}

// RestoredConfiguration is what a restore does with the spec of an installation.
//
// +kubebuilder:validation:Enum=Keep;Restore
type RestoredConfiguration string

// What a restore does with the spec of an installation.
const (
	// ConfigurationKeep leaves it as it is.
	ConfigurationKeep RestoredConfiguration = "Keep"
	// ConfigurationRestore writes it back as it was when the snapshot was made.
	ConfigurationRestore RestoredConfiguration = "Restore"
)

// EtcdRestorePhase is how far a restore is.
//
// +kubebuilder:validation:Enum=Pending;Stopping;Restoring;Joining;Succeeded;Failed;Canceled
type EtcdRestorePhase string

// Phases of a restore.
const (
	// RestorePending: nothing was stopped yet. The message says what it waits for.
	RestorePending EtcdRestorePhase = "Pending"
	// RestoreStopping: the servers are being stopped.
	RestoreStopping EtcdRestorePhase = "Stopping"
	// RestoreRestoring: all servers are stopped, and one replaces its data. It cannot be canceled any more.
	RestoreRestoring EtcdRestorePhase = "Restoring"
	// RestoreJoining: that one is started, and the others join it.
	RestoreJoining EtcdRestorePhase = "Joining"
	// RestoreSucceeded: all servers are up.
	RestoreSucceeded EtcdRestorePhase = "Succeeded"
	// RestoreFailed: the message says what has failed, on which host.
	RestoreFailed EtcdRestorePhase = "Failed"
	// RestoreCanceled: no data was replaced, and servers that were stopped are started again.
	RestoreCanceled EtcdRestorePhase = "Canceled"
)

// EtcdRestoreStatus is what is known of a restore.
type EtcdRestoreStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, and Stalled if it has failed or was canceled, since it is not tried again, or while a person
	// must act.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// phase is how far it is.
	// +optional
	Phase EtcdRestorePhase `json:"phase,omitempty"`
	// host that restores it, or has restored it.
	// +optional
	Host string `json:"host,omitempty"`
	// snapshot is the name of its file, or what that begins with.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`
}

// Reasons of the condition Ready of an EtcdRestore, beside Pending, Waiting, Succeeded and Failed, which are those of
// an EtcdSnapshot.
const (
	// ReasonSourceInvalid: there is no such snapshot, or it cannot be restored. The message says why. Stalled.
	ReasonSourceInvalid = "SourceInvalid"
	// ReasonHostAway: the message names a host that is not connected. Nothing was stopped for it yet.
	ReasonHostAway = "HostAway"
	// ReasonStopping: the servers are being stopped.
	ReasonStopping = "Stopping"
	// ReasonRestoring: a host replaces its data. Of a ClusterInstallation: an EtcdRestore is under way, and nothing else
	// is changed.
	ReasonRestoring = "Restoring"
	// ReasonJoining: servers are started, one after another.
	ReasonJoining = "Joining"
	// ReasonCanceled: it was canceled before data was replaced. Stalled.
	ReasonCanceled = "Canceled"
)

// FinalizerRestore is on an EtcdRestore of a DroverCluster until it has ended: to delete it before data is replaced
// cancels it.
const FinalizerRestore = "provision.cluster.drover.dev/restore"
