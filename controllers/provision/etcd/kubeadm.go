// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// lookAgain is the interval at which work in progress is checked. Cluster API objects are not watched.
const lookAgain = 3 * time.Second

// Kubeadm is the Backend for DroverClusters. It gets decisions from internal/provision/kubeadm, gives tasks to
// DroverMachines, pauses Cluster API, and creates snapshots according to a cluster's schedule.
type Kubeadm struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Now      func() time.Time
}

// kubeadmCluster implements Cluster for a DroverCluster.
type kubeadmCluster struct {
	Kubeadm
	name types.NamespacedName
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

// Kind implements Backend.
func (Kubeadm) Kind() provisionv1.EtcdClusterKind { return provisionv1.EtcdOfDroverCluster }

// Wakes implements Backend. A cluster with a schedule is reconciled even if no snapshot or restore refers to it.
func (Kubeadm) Wakes(object client.Object) bool {
	cluster, is := object.(*infrav1.DroverCluster)
	return is && cluster.Spec.Etcd.Schedule != ""
}

// Read implements Backend.
func (b Kubeadm) Read(ctx context.Context, name types.NamespacedName) (Cluster, error) {
	in := &kubeadmCluster{Kubeadm: b, name: name}
	return in, in.gatherMachines(ctx)
}

// Advance implements Cluster.
func (in *kubeadmCluster) Advance(ctx context.Context, w *Wanted) (progress.All, error) {
	if err := in.gather(ctx, w); err != nil {
		return progress.All{}, err
	}
	if in.problem != "" {
		return in.refuse(w), nil
	}
	active := w.Active()
	if active != nil && !slices.Contains(active.Finalizers, provisionv1.FinalizerRestore) && active.DeletionTimestamp.IsZero() {
		return progress.All{Again: time.Millisecond}, in.hold(ctx, active)
	}
	in.decided = kubeadm.Decide(in.decide)
	how := progress.All{Snapshots: map[types.UID]progress.Snapshot{}, Restores: map[types.UID]progress.Restore{}}
	for _, o := range w.Snapshots {
		p := in.decided.Snapshots[string(o.UID)]
		p.File = fileOf(o)
		how.Snapshots[o.UID] = p
	}
	for i, o := range w.Restores {
		how.Restores[o.UID] = in.decided.Restore
		if i > 0 {
			how.Restores[o.UID] = progress.Restore{Phase: provisionv1.RestorePending, Reason: provisionv1.ReasonWaiting, Message: "waits for the EtcdRestore " + active.Name + " to end"}
		}
	}
	return how, errors.Join(in.pause(ctx, active, in.decided), in.give(ctx, in.decided))
}

// refuse returns the progress of all snapshots and restores of a cluster that does not exist. The machines of such a
// cluster are gone or have no tasks.
func (in *kubeadmCluster) refuse(w *Wanted) progress.All {
	how := progress.All{Snapshots: map[types.UID]progress.Snapshot{}, Restores: map[types.UID]progress.Restore{}}
	for _, o := range w.Snapshots {
		p := progress.Snapshot{Phase: provisionv1.SnapshotPending, Host: o.Status.Host, Message: in.problem, File: fileOf(o)}
		if in.hopeless {
			p.Phase = provisionv1.SnapshotFailed
		}
		how.Snapshots[o.UID] = p
	}
	for _, o := range w.Restores {
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

// Settle implements Cluster. It creates and deletes scheduled snapshots. It requests another reconcile soon if
// something is in progress, and otherwise at the next scheduled time.
func (in *kubeadmCluster) Settle(ctx context.Context, w *Wanted) (time.Duration, error) {
	err := in.expire(ctx, in.decided)
	next, scheduled := in.followSchedule(ctx, w)
	err = errors.Join(err, scheduled)
	switch {
	case len(w.Snapshots) > 0 || len(w.Restores) > 0:
		return lookAgain, err
	case next.IsZero():
		return 0, err
	}
	return max(next.Sub(in.Now()), time.Millisecond), err
}
