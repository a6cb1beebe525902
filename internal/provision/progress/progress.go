// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress describes the progress of hosts, etcd snapshots and etcd restores, independently of the tool that
// creates the cluster.
//
// The package has no side effects. The packages k3s and kubeadm use the progress of hosts to compute the progress of
// snapshots and restores. The package internal/provision/etcd writes the result to the status of the objects.
package progress

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// Snapshot is the progress of a snapshot.
type Snapshot struct {
	Phase         provisionv1.EtcdSnapshotPhase
	Host, Message string
	// File is the name of the snapshot's file, or a prefix of its name.
	File string
	// Saved reports whether the file is on the host.
	Saved bool
	// S3 describes the copy in S3. It is nil if there is no copy.
	S3 *provisionv1.EtcdS3Object
	// Configuration is the spec of the cluster at the time of the snapshot. A restore can write this spec back.
	// Configuration is nil if there is no spec to write back.
	Configuration []byte
}

// Restore is the progress of a restore.
type Restore struct {
	Phase                 provisionv1.EtcdRestorePhase
	Reason, Message, Host string
	// File is the name of the file that is restored, or a prefix of the name. It is empty while the file is unknown.
	File string
	// Stuck reports whether manual action is required.
	Stuck bool
}

// Ended reports whether the snapshot has ended.
func (p Snapshot) Ended() bool { return SnapshotEnded(p.Phase) }

// Ended reports whether the restore has ended.
func (p Restore) Ended() bool { return RestoreEnded(p.Phase) }

// SnapshotEnded reports whether a snapshot in this phase has ended.
func SnapshotEnded(phase provisionv1.EtcdSnapshotPhase) bool {
	return phase == provisionv1.SnapshotSucceeded || phase == provisionv1.SnapshotFailed
}

// RestoreEnded reports whether a restore in this phase has ended.
func RestoreEnded(phase provisionv1.EtcdRestorePhase) bool {
	return phase == provisionv1.RestoreSucceeded || phase == provisionv1.RestoreFailed || phase == provisionv1.RestoreCanceled
}

// Older compares the ages of two objects. If the objects were created in the same second, it compares their names.
func Older(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
}

// Reason returns the reason for a snapshot's Ready condition.
func (p Snapshot) Reason() string {
	switch p.Phase {
	case provisionv1.SnapshotRunning:
		return provisionv1.ReasonRunning
	case provisionv1.SnapshotSucceeded:
		return provisionv1.ReasonSucceeded
	case provisionv1.SnapshotFailed:
		return provisionv1.ReasonFailed
	}
	return provisionv1.ReasonWaiting
}

// Fill sets all status fields except for the Ready and Stalled conditions. It does not overwrite a known value with an
// empty one.
func (p Snapshot) Fill(o *provisionv1.EtcdSnapshot) {
	s := &o.Status
	s.Phase, s.Host, s.Snapshot = p.Phase, p.Host, cmp.Or(p.File, s.Snapshot)
	if p.S3 != nil {
		s.S3 = p.S3.DeepCopy()
	}
	if s.Configuration == nil && len(p.Configuration) > 0 {
		s.Configuration = &runtime.RawExtension{Raw: p.Configuration}
	}
	if p.Saved {
		meta.SetStatusCondition(&s.Conditions, metav1.Condition{
			Type: provisionv1.ConditionSaved, Status: metav1.ConditionTrue, Reason: provisionv1.ConditionSaved, Message: "the file is on host " + p.Host, ObservedGeneration: o.Generation})
	}
}

// Fill sets all status fields except for the Ready and Stalled conditions. It does not overwrite a known value with an
// empty one.
func (p Restore) Fill(o *provisionv1.EtcdRestore) {
	s := &o.Status
	s.Phase, s.Host, s.Snapshot = p.Phase, cmp.Or(p.Host, s.Host), cmp.Or(p.File, s.Snapshot)
}

// All contains the progress of the EtcdSnapshots and EtcdRestores of a cluster, by UID. The status of an object that is
// not in All is not changed.
type All struct {
	Snapshots map[types.UID]Snapshot
	Restores  map[types.UID]Restore
}

// NewAll returns an All without any object.
func NewAll() All { return All{Snapshots: map[types.UID]Snapshot{}, Restores: map[types.UID]Restore{}} }
