// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd makes snapshots of the etcd of clusters that Cluster API makes of Hosts by kubeadm, and restores them.
//
// It is reconciled by the name of a DroverCluster: gathers, lets internal/provision/kubeadmetcd decide, gives DroverMachines their tasks, pauses Cluster API, and writes the status
// of each EtcdSnapshot and EtcdRestore.
package etcd

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/kubeadmetcd"
)

// lookAgain is how long what is under way is waited for: of Cluster API's objects none is watched.
const lookAgain = 3 * time.Second

// Reconciler reconciles what EtcdSnapshots and EtcdRestores want of a DroverCluster.
type Reconciler struct {
	// Client reads from the cache and writes; Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Now      func() time.Time
}

// input is what one reconcile has read.
type input struct {
	name types.NamespacedName
	// snapshots and restores of the cluster that have not ended, the oldest first.
	snapshots []*provisionv1.EtcdSnapshot
	restores  []*provisionv1.EtcdRestore
	// scheduled are the snapshots that the schedule has made, the newest first.
	scheduled []*provisionv1.EtcdSnapshot
	// cluster is nil if it is not there.
	cluster *infrav1.DroverCluster
	// machines of the control plane.
	machines []infrav1.DroverMachine
	// owner is the Cluster of Cluster API, nil if problem says that there is none.
	owner   *clusterapi.Cluster
	problem string
	// hopeless reports that the problem stays.
	hopeless bool
	decide   kubeadmetcd.Input
}

// active is the restore that is under way, or next; nil for none.
func (in *input) active() *provisionv1.EtcdRestore {
	if len(in.restores) == 0 {
		return nil
	}
	return in.restores[0]
}

// Reconcile takes the next step of all that is wanted of one cluster.
//
// What machines were given is written before the status, and taken away only when the status says how it has ended. So a hub that is killed between decides the same again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in := &input{name: req.NamespacedName}
	if err := r.gather(ctx, in); err != nil {
		return ctrl.Result{}, err
	}
	if in.problem != "" {
		err := r.refuse(ctx, in)
		next, scheduled := r.followSchedule(ctx, in)
		return r.again(in, next), errors.Join(err, scheduled)
	}
	if restore := in.active(); restore != nil && !slices.Contains(restore.Finalizers, provisionv1.FinalizerRestore) && restore.DeletionTimestamp.IsZero() {
		return ctrl.Result{RequeueAfter: time.Millisecond}, r.hold(ctx, restore)
	}
	decided := kubeadmetcd.Decide(in.decide)
	if err := errors.Join(r.pause(ctx, in, decided), r.give(ctx, in, decided)); err != nil {
		return ctrl.Result{}, err
	}
	err := errors.Join(r.write(ctx, in, decided), r.expire(ctx, in, decided)) // last, so that a cleanup that fails keeps nothing from ending
	next, scheduled := r.followSchedule(ctx, in)
	return r.again(in, next), errors.Join(err, scheduled)
}

// again returns when to look again: soon while something is under way, and at the next time of the schedule.
func (r *Reconciler) again(in *input, next time.Time) ctrl.Result {
	if len(in.snapshots) > 0 || len(in.restores) > 0 {
		return ctrl.Result{RequeueAfter: lookAgain}
	}
	if next.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(next.Sub(r.Now()), time.Millisecond)}
}

// Handler wakes for the cluster of an EtcdSnapshot or EtcdRestore, and when a machine or host changes for those of its namespace that have something under way.
func (r *Reconciler) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		switch o := object.(type) {
		case *provisionv1.EtcdSnapshot:
			return requests(o.Namespace, o.Spec.DroverClusterName)
		case *provisionv1.EtcdRestore:
			return requests(o.Namespace, o.Spec.DroverClusterName)
		case *infrav1.DroverCluster:
			if o.Spec.Etcd.Schedule == "" {
				return nil
			}
			return requests(o.Namespace, o.Name)
		}
		var names []string
		snapshots, restores := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}
		if r.Client.List(ctx, snapshots, client.InNamespace(object.GetNamespace())) != nil || r.Client.List(ctx, restores, client.InNamespace(object.GetNamespace())) != nil {
			return nil // it is looked at again in any case
		}
		for _, o := range snapshots.Items {
			if !snapshotEnded(&o) {
				names = append(names, o.Spec.DroverClusterName)
			}
		}
		for _, o := range restores.Items {
			if !restoreEnded(&o) {
				names = append(names, o.Spec.DroverClusterName)
			}
		}
		return requests(object.GetNamespace(), names...)
	})
}

func requests(namespace string, names ...string) (all []reconcile.Request) {
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if name != "" {
			all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}})
		}
	}
	return all
}

func snapshotEnded(o *provisionv1.EtcdSnapshot) bool {
	return o.Status.Phase == provisionv1.SnapshotSucceeded || o.Status.Phase == provisionv1.SnapshotFailed
}

func restoreEnded(o *provisionv1.EtcdRestore) bool {
	return kubeadmetcd.RestoreProgress{Phase: o.Status.Phase}.Ended()
}
