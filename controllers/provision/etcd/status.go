// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/kubeadmetcd"
	"github.com/drover-dev/drover/internal/status"
)

// write writes the status of all that is wanted, and lets a restore go that has ended.
func (r *Reconciler) write(ctx context.Context, in *input, d kubeadmetcd.Decision) error {
	var errs []error
	for _, o := range in.snapshots {
		errs = append(errs, r.writeSnapshot(ctx, o, d.Snapshots[string(o.UID)]))
	}
	for i, o := range in.restores {
		p := d.Restore
		if i > 0 {
			p = kubeadmetcd.RestoreProgress{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Message: "waits for the EtcdRestore " + in.restores[0].Name + " to end"}
		}
		errs = append(errs, r.writeRestore(ctx, o, p))
	}
	return errors.Join(errs...)
}

// refuse says of all that is wanted that there is no cluster that it could be of. Nothing was given to any machine for it, or the machines are gone.
func (r *Reconciler) refuse(ctx context.Context, in *input) error {
	var errs []error
	for _, o := range in.snapshots {
		p := kubeadmetcd.SnapshotProgress{Phase: provisionv1.SnapshotPending, Host: o.Status.Host, Message: in.problem}
		if in.hopeless {
			p.Phase = provisionv1.SnapshotFailed
		}
		errs = append(errs, r.writeSnapshot(ctx, o, p))
	}
	for _, o := range in.restores {
		p := kubeadmetcd.RestoreProgress{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Message: in.problem, Host: o.Status.Host}
		switch {
		case o.Spec.Cancel, !o.DeletionTimestamp.IsZero():
			p.Phase, p.Reason = provisionv1.RestoreCanceled, provisionv1.ReasonCanceled
		case in.hopeless:
			p.Phase, p.Reason = provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid
		}
		errs = append(errs, r.writeRestore(ctx, o, p))
	}
	return errors.Join(errs...)
}

func (r *Reconciler) writeSnapshot(ctx context.Context, o *provisionv1.EtcdSnapshot, p kubeadmetcd.SnapshotProgress) error {
	reasons := map[provisionv1.EtcdSnapshotPhase]string{
		provisionv1.SnapshotPending: provisionv1.ReasonWaiting, provisionv1.SnapshotRunning: provisionv1.ReasonRunning,
		provisionv1.SnapshotSucceeded: provisionv1.ReasonSucceeded, provisionv1.SnapshotFailed: provisionv1.ReasonFailed,
	}
	update := status.Begin(o)
	o.Status.Phase, o.Status.Host, o.Status.Snapshot = p.Phase, p.Host, fileOf(o)
	if p.S3 != nil {
		o.Status.S3 = p.S3.DeepCopy()
	}
	if p.Saved {
		meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{
			Type: provisionv1.ConditionSaved, Status: metav1.ConditionTrue, Reason: provisionv1.ConditionSaved, Message: "the file is on host " + p.Host, ObservedGeneration: o.Generation})
	}
	failed := p.Phase == provisionv1.SnapshotFailed
	status.Readiness{
		Ready: p.Phase == provisionv1.SnapshotSucceeded, Stalled: failed, Reason: reasons[p.Phase], Message: p.Message,
	}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	if snapshotEnded(o) {
		update.Event(status.Event{Warning: failed, Reason: string(p.Phase), Action: "Snapshot", Message: protocol.Cut(p.Message, 512)})
	}
	return client.IgnoreNotFound(update.Commit(ctx, r.Client, r.Recorder))
}

func (r *Reconciler) writeRestore(ctx context.Context, o *provisionv1.EtcdRestore, p kubeadmetcd.RestoreProgress) error {
	if !restoreEnded(o) { // what is written stays
		update := status.Begin(o)
		before := o.Status.Phase
		o.Status.Phase = p.Phase
		if p.Host != "" {
			o.Status.Host = p.Host
		}
		if o.Spec.File != "" {
			o.Status.Snapshot = o.Spec.File
		}
		succeeded := p.Phase == provisionv1.RestoreSucceeded
		status.Readiness{
			Ready: succeeded, Stalled: p.Stuck || p.Ended() && !succeeded, Reason: p.Reason, Message: p.Message,
		}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
		if p.Phase != before && p.Phase != provisionv1.RestorePending {
			update.Event(status.Event{Warning: p.Phase == provisionv1.RestoreFailed, Reason: string(p.Phase), Action: "Restore", Message: protocol.Cut(p.Message, 512)})
		}
		if err := update.Commit(ctx, r.Client, r.Recorder); err != nil {
			return client.IgnoreNotFound(err)
		}
	}
	if !restoreEnded(o) {
		return nil
	}
	return r.setFinalizer(ctx, o, controllerutil.RemoveFinalizer)
}
