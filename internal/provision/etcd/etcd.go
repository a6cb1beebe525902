// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd reads the EtcdSnapshots and EtcdRestores of a cluster, and writes their statuses.
//
// Each object belongs to one cluster, and only the controller for this cluster writes the status of the object.
package etcd

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

// Objects contains all snapshots and restores that refer to a cluster, including finished ones. The oldest object is
// first.
type Objects struct {
	Snapshots []*provisionv1.EtcdSnapshot
	Restores  []*provisionv1.EtcdRestore
}

// Read reads the snapshots and restores that refer to a cluster in a namespace.
func Read(ctx context.Context, from client.Reader, namespace string, ref provisionv1.EtcdClusterRef) (Objects, error) {
	snapshots, restores, all := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}, Objects{}
	for _, list := range []client.ObjectList{snapshots, restores} {
		if err := from.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return Objects{}, err
		}
	}
	for i := range snapshots.Items {
		if o := &snapshots.Items[i]; o.Spec.ClusterRef == ref {
			all.Snapshots = append(all.Snapshots, o)
		}
	}
	for i := range restores.Items {
		if o := &restores.Items[i]; o.Spec.ClusterRef == ref {
			all.Restores = append(all.Restores, o)
		}
	}
	slices.SortFunc(all.Snapshots, func(a, b *provisionv1.EtcdSnapshot) int { return progress.Older(a, b) })
	slices.SortFunc(all.Restores, func(a, b *provisionv1.EtcdRestore) int { return progress.Older(a, b) })
	return all, nil
}

// InProgress reports whether any snapshot or restore has not ended, or any restore that has ended still has its
// finalizer.
func (all Objects) InProgress() bool {
	return slices.ContainsFunc(all.Snapshots, func(o *provisionv1.EtcdSnapshot) bool {
		return !progress.SnapshotEnded(o.Status.Phase)
	}) || slices.ContainsFunc(all.Restores, func(o *provisionv1.EtcdRestore) bool {
		return !progress.RestoreEnded(o.Status.Phase) || slices.Contains(o.Finalizers, provisionv1.FinalizerRestore)
	})
}

// Write writes the progress of snapshots and restores to their statuses, and removes the finalizer from restores that
// have ended. Write never changes an outcome. It does not change the status of an object whose progress is not in p.
// The objects must have been read from the API server if any is in progress.
func Write(ctx context.Context, out status.Output, all Objects, p progress.All) error {
	var errs []error
	for _, o := range all.Snapshots {
		how, known := p.Snapshots[o.UID]
		if known && !progress.SnapshotEnded(o.Status.Phase) && o.DeletionTimestamp.IsZero() {
			errs = append(errs, writeSnapshot(ctx, out, o, how))
		}
	}
	for _, o := range all.Restores {
		how, known := p.Restores[o.UID]
		var err error
		if progress.RestoreEnded(o.Status.Phase) {
			err = observe(ctx, out, o)
		} else if known {
			err = writeRestore(ctx, out, o, how)
		}
		if err == nil && progress.RestoreEnded(o.Status.Phase) {
			remove := controllerutil.RemoveFinalizer
			err = owned.SetFinalizer(ctx, out.Client, o, provisionv1.FinalizerRestore, remove)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func writeSnapshot(ctx context.Context, out status.Output, o *provisionv1.EtcdSnapshot, p progress.Snapshot) error {
	update := status.Begin(o)
	p.Fill(o)
	failed := p.Phase == provisionv1.SnapshotFailed
	status.Readiness{
		Ready: p.Phase == provisionv1.SnapshotSucceeded, Stalled: failed, Reason: p.Reason(), Message: p.Message,
	}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	if p.Ended() {
		update.Event(status.Event{
			Warning: failed, Reason: string(p.Phase), Action: "Snapshot", Message: protocol.Cut(p.Message, 512),
		})
	}
	return update.Commit(ctx, out.Client, out.Recorder)
}

func writeRestore(ctx context.Context, out status.Output, o *provisionv1.EtcdRestore, p progress.Restore) error {
	update, before := status.Begin(o), o.Status.Phase
	p.Fill(o)
	succeeded := p.Phase == provisionv1.RestoreSucceeded
	status.Readiness{
		Ready: succeeded, Stalled: p.Stuck || p.Ended() && !succeeded, Reason: p.Reason, Message: p.Message,
	}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	if p.Phase != before && p.Phase != provisionv1.RestorePending {
		update.Event(status.Event{
			Warning: p.Phase == provisionv1.RestoreFailed, Reason: string(p.Phase), Action: "Restore",
			Message: protocol.Cut(p.Message, 512),
		})
	}
	return update.Commit(ctx, out.Client, out.Recorder)
}

// observe sets the observed generation in the status of a restore that has ended. After that, only spec.cancel can
// change, and it no longer has any effect.
func observe(ctx context.Context, out status.Output, o *provisionv1.EtcdRestore) error {
	ready := meta.FindStatusCondition(o.Status.Conditions, provisionv1.ConditionReady)
	if ready == nil || o.Status.ObservedGeneration == o.Generation {
		return nil
	}
	update, succeeded := status.Begin(o), o.Status.Phase == provisionv1.RestoreSucceeded
	status.Readiness{
		Ready: succeeded, Stalled: !succeeded, Reason: ready.Reason, Message: ready.Message,
	}.Write(o.Generation, &o.Status.ObservedGeneration, &o.Status.Conditions)
	return update.Commit(ctx, out.Client, out.Recorder)
}
