// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd carries out EtcdSnapshots and EtcdRestores of DroverClusters.
//
// It obtains decisions from internal/provision/kubeadm, gives tasks to DroverMachines, pauses Cluster API, and creates
// snapshots according to a cluster's schedule. The snapshots and restores of ClusterInstallations are carried out by
// their own controller, because all its other work must stop during a restore.
package etcd

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

// lookAgain is the interval at which work in progress is checked. Cluster API objects are not watched.
const lookAgain = 3 * time.Second

// Reconciler reconciles the EtcdSnapshots and EtcdRestores of DroverClusters. Each request contains the name of one
// DroverCluster.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Now      func() time.Time
}

// Reconcile performs the next step for all snapshots and restores of one cluster.
//
// It performs the step before it writes the statuses, and discards an outcome only once the status contains the
// outcome. If the provisioner is killed in between, Reconcile therefore makes the same decisions again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in := &input{Reconciler: r, name: req.NamespacedName}
	if err := in.gather(ctx); err != nil {
		return ctrl.Result{}, err
	}
	how, err := in.advance(ctx)
	if err != nil {
		return ctrl.Result{}, err
	}
	err = etcd.Write(ctx, status.Output{Client: r.Client, Recorder: r.Recorder}, in.objects, how)
	again, unsettled := in.settle(ctx) // last, because a failed cleanup must not delay the other steps
	return ctrl.Result{RequeueAfter: again}, errors.Join(err, unsettled)
}

// Handler enqueues the cluster that an EtcdSnapshot or EtcdRestore refers to. When any other object changes, Handler
// enqueues the clusters in the same namespace that have a snapshot or restore in progress. It also enqueues a changed
// DroverCluster with a schedule, even if no snapshot or restore refers to it.
func (r *Reconciler) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		switch o := object.(type) {
		case *provisionv1.EtcdSnapshot:
			return requests(o.Namespace, o.Spec.ClusterRef)
		case *provisionv1.EtcdRestore:
			return requests(o.Namespace, o.Spec.ClusterRef)
		}
		var refs []provisionv1.EtcdClusterRef
		if cluster, is := object.(*infrav1.DroverCluster); is && cluster.Spec.Etcd.Schedule != "" {
			refs = append(refs, refTo(cluster.Name))
		}
		snapshots, restores := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}
		if r.Client.List(ctx, snapshots, client.InNamespace(object.GetNamespace())) != nil || r.Client.List(ctx, restores, client.InNamespace(object.GetNamespace())) != nil {
			return nil // clusters are checked again anyway
		}
		for _, o := range snapshots.Items {
			if !progress.SnapshotEnded(o.Status.Phase) {
				refs = append(refs, o.Spec.ClusterRef)
			}
		}
		for _, o := range restores.Items {
			if !progress.RestoreEnded(o.Status.Phase) {
				refs = append(refs, o.Spec.ClusterRef)
			}
		}
		return requests(object.GetNamespace(), refs...)
	})
}

// requests returns a request for each DroverCluster.
func requests(namespace string, refs ...provisionv1.EtcdClusterRef) (all []reconcile.Request) {
	seen := map[string]bool{}
	for _, ref := range refs {
		if ref.Kind == provisionv1.EtcdOfDroverCluster && ref.Name != "" && !seen[ref.Name] {
			seen[ref.Name] = true
			name := types.NamespacedName{Namespace: namespace, Name: ref.Name}
			all = append(all, reconcile.Request{NamespacedName: name})
		}
	}
	return all
}
