// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package clusterapi

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/owned"
)

// KubeadmControlPlane is the kind of the control planes that kubeadm sets up.
const KubeadmControlPlane = "KubeadmControlPlane"

var controlPlanes = schema.GroupVersion{Group: "controlplane.cluster.x-k8s.io", Version: GroupVersion.Version}

// annotationPausedBy is an annotation on Clusters that Drover has paused. Its value is the UID of the object that
// required the pause. Clusters that a user paused do not have the annotation.
const annotationPausedBy = "cluster.drover.dev/paused-by"

// PausedBy returns the UID of the object that required Drover to pause a Cluster, or "" if Drover has not paused the
// Cluster.
func PausedBy(cluster *Cluster) string { return cluster.Annotations[annotationPausedBy] }

// The drover-provisioner-cluster-api policy restricts writes to Clusters to pausing and resuming them. KubeadmConfigs
// are read because an in-place update passes their patches and ignored errors to kubeadm.
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;patch
// +kubebuilder:rbac:groups=controlplane.cluster.x-k8s.io,resources=kubeadmcontrolplanes,verbs=get
// +kubebuilder:rbac:groups=bootstrap.cluster.x-k8s.io,resources=kubeadmconfigs,verbs=get

// SetPaused pauses a Cluster, or resumes it if by is empty. The by parameter is the UID of the object that requires the
// pause. SetPaused writes only spec.paused and the annotation, and only if the Cluster has not changed since it was
// read.
func SetPaused(ctx context.Context, hub client.Client, cluster *Cluster, by string) error {
	before := &unstructured.Unstructured{}
	before.SetGroupVersionKind(GroupVersion.WithKind("Cluster"))
	before.SetNamespace(cluster.Namespace)
	before.SetName(cluster.Name)
	patch := fmt.Appendf(nil, `{"metadata": {"uid": %q, "resourceVersion": %q, "annotations": {%q: %q}}, "spec": {"paused": true}}`, cluster.UID, cluster.ResourceVersion, annotationPausedBy, by)
	if by == "" {
		patch = fmt.Appendf(nil, `{"metadata": {"uid": %q, "resourceVersion": %q, "annotations": {%q: null}}, "spec": {"paused": null}}`, cluster.UID, cluster.ResourceVersion, annotationPausedBy)
	}
	if err := hub.Patch(ctx, before, client.RawPatch(types.MergePatchType, patch), owned.FieldOwner); err != nil {
		return fmt.Errorf("pause or resume Cluster %s/%s of Cluster API: %w", cluster.Namespace, cluster.Name, err)
	}
	return nil
}

// ControlPlanePaused reports whether the controller of a Cluster's control plane has observed the pause.
func ControlPlanePaused(ctx context.Context, reader client.Reader, cluster *Cluster) (bool, error) {
	if !cluster.Spec.Paused {
		return false, nil
	}
	var object struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	name := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Spec.ControlPlaneRef.Name}
	if err := read(ctx, reader, name, controlPlanes.WithKind(KubeadmControlPlane), &object); apierrors.IsNotFound(err) {
		return true, nil // a control plane that does not exist has no active controller
	} else if err != nil {
		return false, err
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Paused" {
			return condition.Status == metav1.ConditionTrue, nil
		}
	}
	return false, nil
}
