// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package inventory publishes each Cluster as a ClusterProfile, for tools that find clusters through ClusterProfiles.
package inventory

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// Reconciler writes the profile of each Cluster. When a Cluster is deleted, the API server also deletes its profile.
type Reconciler struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Settings returns the hub's settings. They include the hub's addresses and CA.
	Settings func() protocol.Settings
	// Served reports whether the hub's API server serves the ClusterProfile kind. If it does not, Reconcile does
	// nothing.
	Served func() bool
}

// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=clusterprofiles,verbs=get;list;watch;create;patch
// +kubebuilder:rbac:groups=multicluster.x-k8s.io,resources=clusterprofiles/status,verbs=patch

// Reconcile writes the profile of one Cluster unless it is up to date.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	cluster, found := &v1.Cluster{}, &clusterprofile.ClusterProfile{}
	if !r.Served() {
		return ctrl.Result{}, nil
	}
	if err := r.Client.Get(ctx, req.NamespacedName, cluster); err != nil || !cluster.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	settings := r.Settings()
	if settings.CABundle == "" {
		return ctrl.Result{}, nil // the hub's CA is not loaded yet; loading it triggers a reconcile
	}
	if err := r.Client.Get(ctx, req.NamespacedName, found); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read ClusterProfile %s: %w", req.NamespacedName, err)
	}
	if other := found.Spec.ClusterManager.Name; found.UID != "" && other != Manager {
		return ctrl.Result{}, r.taken(ctx, cluster, other)
	}
	err := r.write(ctx, desired(cluster, settings, found.Status.Conditions), found)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		// this is not an error: the kind or the profile has just been removed
		return ctrl.Result{RequeueAfter: LookEvery}, nil
	}
	return ctrl.Result{}, err
}

// taken emits an event to explain that the Cluster has no profile because another manager owns a profile with its name.
func (r *Reconciler) taken(ctx context.Context, cluster *v1.Cluster, manager string) error {
	update := status.Begin(cluster)
	update.Event(status.Event{Warning: true, Reason: v1.ReasonProfileTaken, Action: "Publish",
		Message: fmt.Sprintf("ClusterProfile %s in this namespace belongs to the cluster manager %q;  delete it, or give the Cluster another name", cluster.Name, manager)})
	return update.Commit(ctx, r.Client, r.Recorder)
}

// write writes the parts of the profile that have changed.
func (r *Reconciler) write(ctx context.Context, want, found *clusterprofile.ClusterProfile) error {
	if err := r.apply(ctx, want, found); err != nil {
		return err
	}
	return r.applyStatus(ctx, want, found)
}

// apply writes the labels, the owner and the spec if any of them differs. It keeps labels and owners that other clients
// have set.
func (r *Reconciler) apply(ctx context.Context, want, found *clusterprofile.ClusterProfile) error {
	if sameLabels(want, found) && within(want.OwnerReferences, found.OwnerReferences) && want.Spec == found.Spec {
		return nil
	}
	read := want.DeepCopy()
	// if a profile with this name belongs to another manager, the write must fail, because a profile's manager is
	// immutable
	read.UID, read.ResourceVersion = found.UID, found.ResourceVersion
	object, err := configuration(read, "spec")
	if err != nil {
		return err
	}
	if err := r.Client.Apply(ctx, object, owned.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply ClusterProfile %s: %w", client.ObjectKeyFromObject(want), err)
	}
	return nil
}

// applyStatus writes the facts about the cluster if they have changed.
func (r *Reconciler) applyStatus(ctx context.Context, want, found *clusterprofile.ClusterProfile) error {
	if sameStatus(want.Status, found.Status) {
		return nil
	}
	bare := want.DeepCopy()
	bare.Labels, bare.OwnerReferences = nil, nil // the status is applied without this metadata
	object, err := configuration(bare, "status")
	if err != nil {
		return err
	}
	if err := r.Client.Status().Apply(ctx, object, owned.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply status of ClusterProfile %s: %w", client.ObjectKeyFromObject(want), err)
	}
	return nil
}

// configuration returns an apply configuration that contains the profile's metadata and one part of the profile.
func configuration(profile *clusterprofile.ClusterProfile, part string) (runtime.ApplyConfiguration, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(profile)
	if err != nil {
		return nil, fmt.Errorf("encode ClusterProfile %s: %w", client.ObjectKeyFromObject(profile), err)
	}
	for _, key := range []string{"spec", "status"} {
		if key != part {
			delete(content, key)
		}
	}
	unstructured.RemoveNestedField(content, "metadata", "creationTimestamp")
	return client.ApplyConfigurationFromUnstructured(&unstructured.Unstructured{Object: content}), nil
}
