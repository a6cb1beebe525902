// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// input contains the state of one DroverCluster and of the snapshots and restores that refer to it.
type input struct {
	*Reconciler
	name types.NamespacedName
	// objects contains all snapshots and restores. snapshots contains the unfinished snapshots. restores contains the
	// unfinished restores, and the finished restores that still have their finalizer.
	objects   etcd.Objects
	snapshots []*provisionv1.EtcdSnapshot
	restores  []*provisionv1.EtcdRestore
	// scheduled contains the snapshots that the schedule has created. The newest snapshot is first.
	scheduled []*provisionv1.EtcdSnapshot
	// cluster is nil if the DroverCluster does not exist.
	cluster *infrav1.DroverCluster
	// machines contains the control plane machines.
	machines []infrav1.DroverMachine
	// owner is the Cluster API Cluster. If it does not exist, owner is nil and problem says so.
	owner   *clusterapi.Cluster
	problem string
	// hopeless is true if the problem is permanent.
	hopeless bool
	decide   kubeadm.Input
	decided  kubeadm.Decision
}

// refTo returns the reference that EtcdSnapshots and EtcdRestores use for a DroverCluster.
func refTo(name string) provisionv1.EtcdClusterRef {
	return provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: name}
}

// active returns the restore that is in progress. If no restore is in progress, it returns the next restore, or nil if
// there is none.
func (in *input) active() *provisionv1.EtcdRestore {
	if len(in.restores) == 0 {
		return nil
	}
	return in.restores[0]
}

// advance performs the next steps for all snapshots and restores, and returns their progress.
func (in *input) advance(ctx context.Context) (progress.All, error) {
	if in.problem != "" {
		return in.refuse(), nil
	}
	active := in.active()
	held := active == nil || slices.Contains(active.Finalizers, provisionv1.FinalizerRestore)
	if !held && active.DeletionTimestamp.IsZero() {
		return progress.NewAll(), in.hold(ctx, active) // the write triggers another reconcile
	}
	in.decided = kubeadm.Decide(in.decide)
	how := progress.NewAll()
	for _, o := range in.snapshots {
		p := in.decided.Snapshots[string(o.UID)]
		p.File = fileOf(o)
		how.Snapshots[o.UID] = p
	}
	for i, o := range in.restores {
		how.Restores[o.UID] = in.decided.Restore
		if i > 0 {
			how.Restores[o.UID] = progress.Restore{
				Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting,
				Message: "waits for the EtcdRestore " + active.Name + " to end",
			}
		}
	}
	return how, errors.Join(in.pause(ctx, active, in.decided), in.give(ctx, in.decided))
}

// refuse returns the progress of all snapshots and restores of a cluster that does not exist. The machines of such a
// cluster are gone or have no tasks.
func (in *input) refuse() progress.All {
	how := progress.NewAll()
	for _, o := range in.snapshots {
		p := progress.Snapshot{Phase: provisionv1.SnapshotPending, Host: o.Status.Host, Message: in.problem, File: fileOf(o)}
		if in.hopeless {
			p.Phase = provisionv1.SnapshotFailed
		}
		how.Snapshots[o.UID] = p
	}
	for _, o := range in.restores {
		p := progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Message: in.problem}
		switch {
		case o.Spec.Cancel, !o.DeletionTimestamp.IsZero():
			p.Phase, p.Reason = provisionv1.RestoreCanceled, provisionv1.ReasonCanceled
		case in.hopeless:
			p.Phase, p.Reason = provisionv1.RestoreFailed, provisionv1.ReasonSourceInvalid
		}
		how.Restores[o.UID] = p
	}
	return how
}

// settle creates and deletes scheduled snapshots after the statuses have been written. It returns the time until the
// next reconcile, or 0 to wait for a change. If something is in progress, the next reconcile follows soon. Otherwise,
// it follows at the next scheduled time.
func (in *input) settle(ctx context.Context) (time.Duration, error) {
	err := in.expire(ctx, in.decided)
	next, scheduled := in.followSchedule(ctx)
	err = errors.Join(err, scheduled)
	switch {
	case len(in.snapshots) > 0 || len(in.restores) > 0:
		return lookAgain, err
	case next.IsZero():
		return 0, err
	}
	return max(next.Sub(in.Now()), time.Millisecond), err
}
