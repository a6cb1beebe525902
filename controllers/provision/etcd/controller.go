// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package etcd carries out EtcdSnapshots and EtcdRestores.
//
// No other controller writes the statuses of these objects.
//
// Each reconcile request contains the name of one cluster. Each kind of cluster has its own Reconciler with a Backend.
// The Kubeadm backend gives tasks to the machines of a DroverCluster. The Installations backend relies on the
// controller for ClusterInstallations, because that controller does the work itself.
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

// Backend handles the clusters of one kind.
type Backend interface {
	// Kind is the kind that EtcdSnapshots and EtcdRestores use to refer to a cluster of this backend.
	Kind() provisionv1.EtcdClusterKind
	// Read reads a cluster. It must be called before the objects that refer to the cluster are read, so that a finished
	// object is never mistaken for a new one: a cluster keeps the outcome of an operation until the status of the
	// corresponding object contains it.
	Read(ctx context.Context, name types.NamespacedName) (Cluster, error)
	// Wakes reports whether a change to an object triggers a reconcile of the cluster with the object's name, even if
	// no snapshot or restore refers to the cluster. The object is never an EtcdSnapshot or EtcdRestore.
	Wakes(object client.Object) bool
}

// Cluster is the state of one cluster. Backend.Read returns it.
type Cluster interface {
	// Advance performs the next steps for all snapshots and restores, and returns their progress.
	Advance(ctx context.Context, w *Wanted) (progress.All, error)
	// Settle does the remaining work after the progress from Advance has been written to the statuses. It returns the time
	// after which to check again, or 0 to wait for a change.
	Settle(ctx context.Context, w *Wanted) (time.Duration, error)
}

// Wanted contains all snapshots and restores that refer to a cluster.
type Wanted struct {
	// Snapshots and Restores contain the objects that have not ended or that still have their finalizer. The oldest
	// object is first.
	Snapshots []*provisionv1.EtcdSnapshot
	Restores  []*provisionv1.EtcdRestore
	// All contains all snapshots, including finished snapshots.
	All []*provisionv1.EtcdSnapshot
}

// Active returns the restore that is in progress. If no restore is in progress, it returns the next restore, or nil if
// there is none.
func (w *Wanted) Active() *provisionv1.EtcdRestore {
	if len(w.Restores) == 0 {
		return nil
	}
	return w.Restores[0]
}

// Reconciler reconciles the EtcdSnapshots and EtcdRestores of the clusters of one kind.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	Backend  Backend
}

// Reconcile performs the next step for all snapshots and restores of one cluster.
//
// It performs the step before it writes the statuses, and it discards an outcome only after the status contains the
// outcome. If the provisioner is killed in between, Reconcile therefore makes the same decisions again.
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
	again, unsettled := cluster.Settle(ctx, w) // last, because a failed cleanup must not delay the other steps
	if how.Again > 0 && (again == 0 || how.Again < again) {
		again = how.Again
	}
	return ctrl.Result{RequeueAfter: again}, errors.Join(err, unsettled)
}

// wanted reads the objects that refer to a cluster. For restores that have ended, it sets the observed generation.
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

// Handler enqueues the cluster that an EtcdSnapshot or EtcdRestore refers to. When a machine or host changes, Handler
// enqueues the clusters in the same namespace that have a snapshot or restore in progress.
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
		return r.requests(object.GetNamespace(), refs...)
	})
}

// requests returns a request for each cluster of the backend's kind.
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
