// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd carries out EtcdSnapshots and EtcdRestores, and is the only writer of their statuses.
//
// It is reconciled by the name of the cluster that they refer to. There is one Reconciler for each kind of cluster,
// with the Backend that knows the kind: Kubeadm for a DroverCluster, whose machines it gives their tasks, and
// Installations for a ClusterInstallation, whose own controller does what is to be done.
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

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Backend knows the clusters of one kind.
type Backend interface {
	// Kind is the kind by which EtcdSnapshots and EtcdRestores refer to a cluster.
	Kind() provisionv1.EtcdClusterKind
	// Read reads a cluster before the objects that refer to it are read: a cluster forgets how something has ended only
	// after its status says so, so what has ended is never taken for new.
	Read(ctx context.Context, name types.NamespacedName) (Cluster, error)
	// Wakes reports whether a change of an object, which is none of those that refer to clusters, wakes for the cluster
	// of its name even while nothing is wanted of it.
	Wakes(object client.Object) bool
}

// Cluster is one cluster, as it was read.
type Cluster interface {
	// Advance has the next steps taken of all that is wanted, and says how far each is.
	Advance(ctx context.Context, w *Wanted) (progress.All, error)
	// Settle does what is left when the statuses say what Advance has returned. It returns when to look again, 0 for
	// when something changes.
	Settle(ctx context.Context, w *Wanted) (time.Duration, error)
}

// Wanted is all that refers to a cluster.
type Wanted struct {
	// Snapshots and Restores have not ended, or their finalizer is still there. The oldest is first.
	Snapshots []*provisionv1.EtcdSnapshot
	Restores  []*provisionv1.EtcdRestore
	// All are all snapshots, also those that have ended.
	All []*provisionv1.EtcdSnapshot
}

// Active is the restore that is under way, or next; nil for none.
func (w *Wanted) Active() *provisionv1.EtcdRestore {
	if len(w.Restores) == 0 {
		return nil
	}
	return w.Restores[0]
}

// Reconciler reconciles what EtcdSnapshots and EtcdRestores want of the clusters of one kind.
type Reconciler struct {
	// Client reads from the cache and writes; Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Backend  Backend
}

// Reconcile takes the next step of all that is wanted of one cluster.
//
// What is done is done before the status is written, and forgotten only when the status says how it has ended. So a hub
// that is killed between decides the same again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster, err := r.Backend.Read(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	w, err := r.wanted(ctx, req.NamespacedName)
	if err != nil {
		return ctrl.Result{}, err
	}
	how, err := cluster.Advance(ctx, w)
	if err != nil {
		return ctrl.Result{}, err
	}
	err = r.write(ctx, w, how)
	again, unsettled := cluster.Settle(ctx, w) // last, so that a cleanup that fails keeps nothing from ending
	if how.Again > 0 && (again == 0 || how.Again < again) {
		again = how.Again
	}
	return ctrl.Result{RequeueAfter: again}, errors.Join(err, unsettled)
}

// wanted reads what refers to a cluster, and has statuses of restores that have ended name their generation.
func (r *Reconciler) wanted(ctx context.Context, name types.NamespacedName) (*Wanted, error) {
	snapshots, restores := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}
	for _, list := range []client.ObjectList{snapshots, restores} {
		if err := r.Live.List(ctx, list, client.InNamespace(name.Namespace)); err != nil {
			return nil, err
		}
	}
	ref, w := provisionv1.EtcdClusterRef{Kind: r.Backend.Kind(), Name: name.Name}, &Wanted{}
	for i := range snapshots.Items {
		o := &snapshots.Items[i]
		if o.Spec.ClusterRef != ref || !o.DeletionTimestamp.IsZero() {
			continue
		}
		w.All = append(w.All, o)
		if !progress.SnapshotEnded(o.Status.Phase) {
			w.Snapshots = append(w.Snapshots, o)
		}
	}
	for i := range restores.Items {
		o := &restores.Items[i]
		switch ended := progress.RestoreEnded(o.Status.Phase); {
		case o.Spec.ClusterRef != ref:
		case !ended, slices.Contains(o.Finalizers, provisionv1.FinalizerRestore):
			w.Restores = append(w.Restores, o)
		default:
			if err := r.observe(ctx, o); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(w.Snapshots, func(a, b *provisionv1.EtcdSnapshot) int { return progress.Older(a, b) })
	slices.SortFunc(w.Restores, func(a, b *provisionv1.EtcdRestore) int { return progress.Older(a, b) })
	return w, nil
}

// Handler wakes for the cluster of an EtcdSnapshot or EtcdRestore, and when a machine or host changes for the clusters
// of its namespace that have something under way.
func (r *Reconciler) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		switch o := object.(type) {
		case *provisionv1.EtcdSnapshot:
			return r.requests(o.Namespace, o.Spec.ClusterRef)
		case *provisionv1.EtcdRestore:
			return r.requests(o.Namespace, o.Spec.ClusterRef)
		}
		var refs []provisionv1.EtcdClusterRef
		if r.Backend.Wakes(object) {
			refs = append(refs, provisionv1.EtcdClusterRef{Kind: r.Backend.Kind(), Name: object.GetName()})
		}
		snapshots, restores := &provisionv1.EtcdSnapshotList{}, &provisionv1.EtcdRestoreList{}
		if r.Client.List(ctx, snapshots, client.InNamespace(object.GetNamespace())) != nil || r.Client.List(ctx, restores, client.InNamespace(object.GetNamespace())) != nil {
			return nil // it is looked at again in any case
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
		return r.requests(object.GetNamespace(), refs...)
	})
}

// requests wakes for the clusters of the backend's kind, once each.
func (r *Reconciler) requests(namespace string, refs ...provisionv1.EtcdClusterRef) (all []reconcile.Request) {
	seen := map[string]bool{}
	for _, ref := range refs {
		if ref.Kind == r.Backend.Kind() && ref.Name != "" && !seen[ref.Name] {
			seen[ref.Name] = true
			all = append(all, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name}})
		}
	}
	return all
}
