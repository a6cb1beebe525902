// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/installation"
	"github.com/drover-dev/drover/internal/status"
)

// gatherSnapshots reads the EtcdSnapshots of an installation, the oldest first.
func (r *Reconciler) gatherSnapshots(ctx context.Context, in *input) (*status.Readiness, error) {
	list := &provisionv1.EtcdSnapshotList{}
	if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if snap := &list.Items[i]; snap.Spec.InstallationName == in.installation.Name {
			in.snapshots = append(in.snapshots, snap)
		}
	}
	slices.SortFunc(in.snapshots, func(a, b *provisionv1.EtcdSnapshot) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for _, snap := range in.snapshots {
		in.decide.Snapshots = append(in.decide.Snapshots, installation.Snapshot{ID: string(snap.UID), Name: fileOf(snap)})
	}
	return nil, nil
}

// fileOf is what the name of a snapshot's file begins with: another one for each, also after it was deleted and made again.
func fileOf(snap *provisionv1.EtcdSnapshot) string {
	return snap.Name + "-" + string(snap.UID)[:8]
}

// writeSnapshots writes the status of each EtcdSnapshot.
func (r *Reconciler) writeSnapshots(ctx context.Context, in *input, d installation.Decision) error {
	var errs []error
	for _, snap := range in.snapshots {
		snap = snap.DeepCopy()
		update := status.Begin(snap)
		if snap.Status.Configuration == nil && d.SnapshotOn(string(snap.UID)) != "" {
			spec, err := json.Marshal(in.installation.Spec)
			if err != nil {
				return err
			}
			snap.Status.Configuration = &runtime.RawExtension{Raw: spec}
		}
		if judgeSnapshot(snap, d) {
			phase := snap.Status.Phase
			update.Event(status.Event{Warning: phase == provisionv1.SnapshotFailed, Reason: string(phase), Action: "Snapshot", Message: meta.FindStatusCondition(snap.Status.Conditions, provisionv1.ConditionReady).Message})
		}
		errs = append(errs, update.Commit(ctx, r.Client, r.Recorder))
	}
	return errors.Join(errs...)
}

// judgeSnapshot says in a snapshot's status how far it is, and reports whether it has just ended.
func judgeSnapshot(snap *provisionv1.EtcdSnapshot, d installation.Decision) bool {
	s, before := &snap.Status, snap.Status.Phase
	s.Snapshot = fileOf(snap)
	outcome, ended := d.Stored.Outcomes[string(snap.UID)]
	reason, message := provisionv1.ReasonWaiting, "waits for a server with etcd that is up, and has nothing else to do"
	s.Phase, s.Host = provisionv1.SnapshotPending, outcome.Host
	switch host := d.SnapshotOn(string(snap.UID)); {
	case ended && outcome.Problem != "":
		s.Phase, reason, message = provisionv1.SnapshotFailed, provisionv1.ReasonFailed, "make another EtcdSnapshot to try again: host "+outcome.Host+": "+outcome.Problem
	case ended:
		s.Phase, reason, message = provisionv1.SnapshotSucceeded, provisionv1.ReasonSucceeded, "host "+outcome.Host+" has made it"
	case host != "":
		s.Phase, s.Host, reason, message = provisionv1.SnapshotRunning, host, provisionv1.ReasonRunning, "host "+host+" makes it"
	}
	status.Readiness{
		Ready: s.Phase == provisionv1.SnapshotSucceeded, Stalled: s.Phase == provisionv1.SnapshotFailed, Reason: reason, Message: message,
	}.Write(snap.Generation, &s.ObservedGeneration, &s.Conditions)
	return ended && s.Phase != before
}
