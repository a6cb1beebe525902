// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// fieldManager is the name of the field manager with which the agent writes its own objects.
const fieldManager = "drover-agent"

// Deployment reads and changes one Deployment. It wraps the API server's errors.
type Deployment struct{ object }

// Deployment returns the Deployment with the given namespace and name. Its pods have the same name in the label
// app.kubernetes.io/name.
func (c *Client) Deployment(namespace, name string) *Deployment {
	return &Deployment{c.object("Deployment", "apps", "deployments", namespace, name)}
}

// Get reads the Deployment.
func (d *Deployment) Get(ctx context.Context) (*appsv1.Deployment, error) {
	out := &appsv1.Deployment{}
	return out, d.wrap("read", d.at(d.rest.Get()).Do(ctx).Into(out))
}

// Patch applies a JSON patch to the Deployment.
func (d *Deployment) Patch(ctx context.Context, patch []byte) error {
	req := d.at(d.rest.Patch(types.JSONPatchType)).Param("fieldManager", fieldManager).Body(patch)
	return d.wrap("change", req.Do(ctx).Error())
}

// Annotate sets an annotation of the Deployment, or removes it if value is empty.
func (d *Deployment) Annotate(ctx context.Context, key, value string) error {
	annotations := map[string]any{key: value}
	if value == "" {
		annotations[key] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return fmt.Errorf("make patch: %w", err)
	}
	req := d.at(d.rest.Patch(types.MergePatchType)).Param("fieldManager", fieldManager).Body(patch)
	return d.wrap("annotate", req.Do(ctx).Error())
}

// Watch watches the Deployment. The first event contains the current state of the Deployment. The caller must stop
// the watch.
func (d *Deployment) Watch(ctx context.Context) (watch.Interface, error) {
	options := metav1.ListOptions{Watch: true,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", d.name).String()}
	w, err := d.rest.Get().AbsPath(d.collection).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	return w, d.wrap("watch", err)
}

// Pods lists the pods of the Deployment.
func (d *Deployment) Pods(ctx context.Context) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + d.name}
	out := &corev1.PodList{}
	err := d.rest.Get().Namespace(d.namespace).Resource("pods").VersionedParams(&options,
		metav1.ParameterCodec).Do(ctx).Into(out)
	return out.Items, d.wrap("list pods of", err)
}

// DaemonSet applies and deletes one DaemonSet. It wraps the API server's errors.
type DaemonSet struct{ object }

// DaemonSet returns the DaemonSet with the given namespace and name.
func (c *Client) DaemonSet(namespace, name string) *DaemonSet {
	return &DaemonSet{c.object("DaemonSet", "apps", "daemonsets", namespace, name)}
}

// Apply applies the DaemonSet with server-side apply. The DaemonSet must be encoded as JSON. Apply returns the stored
// object.
func (d *DaemonSet) Apply(ctx context.Context, object []byte) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	req := d.at(d.rest.Patch(types.ApplyPatchType)).Param("fieldManager", fieldManager).Param("force",
		"true").Body(object)
	return out, d.wrap("apply", req.Do(ctx).Into(out))
}

// Delete deletes the DaemonSet and its pods. A missing DaemonSet is an error.
func (d *DaemonSet) Delete(ctx context.Context) error {
	return d.wrap("delete", d.at(d.rest.Delete()).Do(ctx).Error())
}

// Lease reads, writes and deletes one Lease. It wraps the API server's errors.
type Lease struct{ object }

// Lease returns the Lease with the given namespace and name.
func (c *Client) Lease(namespace, name string) *Lease {
	return &Lease{c.object("Lease", "coordination.k8s.io", "leases", namespace, name)}
}

// Get reads the Lease.
func (l *Lease) Get(ctx context.Context) (*coordinationv1.Lease, error) {
	return l.do(ctx, "read", l.at(l.rest.Get()))
}

// Create creates the Lease.
func (l *Lease) Create(ctx context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	return l.do(ctx, "create", l.rest.Post().AbsPath(l.collection).Body(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: l.name,
			Labels: map[string]string{protocol.LabelName: protocol.AgentName, v1.LabelManagedBy: v1.ManagedBy},
		},
		Spec: spec,
	}))
}

// Update replaces the Lease, unless it has changed since it was read.
func (l *Lease) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, "update", l.at(l.rest.Put()).Body(lease))
}

// Delete deletes the Lease. A missing Lease is an error.
func (l *Lease) Delete(ctx context.Context) error {
	return l.wrap("delete", l.at(l.rest.Delete()).Do(ctx).Error())
}

func (l *Lease) do(ctx context.Context, operation string, req *rest.Request) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := req.Do(ctx).Into(lease); err != nil {
		return nil, l.wrap(operation, err)
	}
	return lease, nil
}
