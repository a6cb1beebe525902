// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package progress says how far hosts are with their instructions, and how far snapshots and restores of etcd are,
// whatever makes the cluster.
//
// It is pure. The packages k3s and kubeadm read how far hosts are and return how far snapshots and restores are, which
// controllers/provision/etcd writes into statuses.
package progress

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// Snapshot is how far a snapshot is.
type Snapshot struct {
	Phase         provisionv1.EtcdSnapshotPhase
	Host, Message string
	// File is the name of its file, or what that begins with.
	File string
	// Saved reports that its file is on the host.
	Saved bool
	// S3 is its copy, nil for none.
	S3 *provisionv1.EtcdS3Object
	// Configuration is the spec of the cluster that a restore can write back, nil if there is none to keep.
	Configuration []byte
}

// Restore is how far a restore is.
type Restore struct {
	Phase                 provisionv1.EtcdRestorePhase
	Reason, Message, Host string
	// File that is restored, or what its name begins with. It is empty while that is not known.
	File string
	// Stuck reports that a person must act.
	Stuck bool
}

// Ended reports whether a snapshot is over.
func (p Snapshot) Ended() bool { return SnapshotEnded(p.Phase) }

// Ended reports whether a restore is over.
func (p Restore) Ended() bool { return RestoreEnded(p.Phase) }

// SnapshotEnded reports whether a snapshot of that phase is over.
func SnapshotEnded(phase provisionv1.EtcdSnapshotPhase) bool {
	return phase == provisionv1.SnapshotSucceeded || phase == provisionv1.SnapshotFailed
}

// RestoreEnded reports whether a restore of that phase is over.
func RestoreEnded(phase provisionv1.EtcdRestorePhase) bool {
	return phase == provisionv1.RestoreSucceeded || phase == provisionv1.RestoreFailed || phase == provisionv1.RestoreCanceled
}

// Older compares two objects by their age, and those of the same second by their names.
func Older(a, b metav1.Object) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), cmp.Compare(a.GetName(), b.GetName()))
}

// Reason is the reason of the condition Ready of a snapshot.
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

// Fill sets what a status says beside the conditions Ready and Stalled. What is known once stays.
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

// Fill sets what a status says beside the conditions Ready and Stalled. What is known once stays.
func (p Restore) Fill(o *provisionv1.EtcdRestore) {
	s := &o.Status
	s.Phase, s.Host, s.Snapshot = p.Phase, cmp.Or(p.Host, s.Host), cmp.Or(p.File, s.Snapshot)
}

// All is how far everything is that is wanted of a cluster, by the UIDs of the EtcdSnapshots and EtcdRestores. What is
// not in it stays as its status has it.
type All struct {
	Snapshots map[types.UID]Snapshot
	Restores  map[types.UID]Restore
	// Again is when to look again, 0 for when something changes.
	Again time.Duration
}
