// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

// write writes the statuses of all snapshots and restores, and removes the finalizer from restores that have ended.
func (r *Reconciler) write(ctx context.Context, w *Wanted, p progress.All) error {
	var errs []error
	for _, o := range w.Snapshots {
		if how, known := p.Snapshots[o.UID]; known {
			errs = append(errs, r.writeSnapshot(ctx, o, how))
		}
	}
	for _, o := range w.Restores {
		if how, known := p.Restores[o.UID]; known {
			errs = append(errs, r.writeRestore(ctx, o, how))
		}
	}
	return errors.Join(errs...)
}

func (r *Reconciler) writeSnapshot(ctx context.Context, o *provisionv1.EtcdSnapshot, p progress.Snapshot) error {
	update := status.Begin(o)
	p.Fill(o)
	failed := p.Phase == provisionv1.SnapshotFailed
	status.Readiness{
		Ready: p.Phase == provisionv1.SnapshotSucceeded, Stalled: failed, Reason: p.Reason(), Message: p.Message,
	}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	if p.Ended() {
		update.Event(status.Event{Warning: failed, Reason: string(p.Phase), Action: "Snapshot", Message: protocol.Cut(p.Message, 512)})
	}
	return client.IgnoreNotFound(update.Commit(ctx, r.Client, r.Recorder))
}

func (r *Reconciler) writeRestore(ctx context.Context, o *provisionv1.EtcdRestore, p progress.Restore) error {
	if !progress.RestoreEnded(o.Status.Phase) { // an outcome never changes
		update, before := status.Begin(o), o.Status.Phase
		p.Fill(o)
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
	if !progress.RestoreEnded(o.Status.Phase) {
		return nil
	}
	return setFinalizer(ctx, r.Client, o, controllerutil.RemoveFinalizer)
}

// observe sets the observed generation in the status of a restore that has ended. After that, only spec.cancel can
// change, and it no longer has any effect.
func (r *Reconciler) observe(ctx context.Context, o *provisionv1.EtcdRestore) error {
	ready := meta.FindStatusCondition(o.Status.Conditions, provisionv1.ConditionReady)
	if ready == nil || o.Status.ObservedGeneration == o.Generation {
		return nil
	}
	update := status.Begin(o)
	succeeded := o.Status.Phase == provisionv1.RestoreSucceeded
	status.Readiness{Ready: succeeded, Stalled: !succeeded, Reason: ready.Reason, Message: ready.Message}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	return client.IgnoreNotFound(update.Commit(ctx, r.Client, r.Recorder))
}

// setFinalizer patches only the finalizer. The status is written elsewhere.
func setFinalizer(ctx context.Context, c client.Client, restore *provisionv1.EtcdRestore,
	change func(client.Object, string) bool) error {
	return owned.SetFinalizer(ctx, c, restore, provisionv1.FinalizerRestore, change)
}
