// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// fieldManager is the field manager of the agent's own objects.
const fieldManager = "drover-agent"

// Deployment reads and changes one Deployment. Errors are those of the API server, wrapped.
type Deployment struct{ object }

// Deployment of a namespace. Its pods have its name as the label app.kubernetes.io/name.
func (c *Client) Deployment(namespace, name string) *Deployment {
	return &Deployment{c.object("Deployment", "apps", "deployments", namespace, name)}
}

// Get reads the Deployment.
func (d *Deployment) Get(ctx context.Context) (*appsv1.Deployment, error) {
	out := &appsv1.Deployment{}
	return out, d.wrap("read", d.at(d.rest.Get()).Do(ctx).Into(out))
}

// Patch applies a JSON patch to it.
func (d *Deployment) Patch(ctx context.Context, patch []byte) error {
	req := d.at(d.rest.Patch(types.JSONPatchType)).Param("fieldManager", fieldManager).Body(patch)
	return d.wrap("change", req.Do(ctx).Error())
}

// Watch follows it. What it is now comes first. The caller stops the watch.
func (d *Deployment) Watch(ctx context.Context) (watch.Interface, error) {
	options := metav1.ListOptions{Watch: true,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", d.name).String()}
	w, err := d.rest.Get().AbsPath(d.collection).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	return w, d.wrap("watch", err)
}

// Pods lists its pods.
func (d *Deployment) Pods(ctx context.Context) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + d.name}
	out := &corev1.PodList{}
	err := d.rest.Get().Namespace(d.namespace).Resource("pods").VersionedParams(&options,
		metav1.ParameterCodec).Do(ctx).Into(out)
	return out.Items, d.wrap("list pods of", err)
}

// DaemonSet applies and deletes one DaemonSet. Errors are those of the API server, wrapped.
type DaemonSet struct{ object }

// DaemonSet of a namespace.
func (c *Client) DaemonSet(namespace, name string) *DaemonSet {
	return &DaemonSet{c.object("DaemonSet", "apps", "daemonsets", namespace, name)}
}

// Apply applies it, as JSON, by server-side apply, and returns it as stored.
func (d *DaemonSet) Apply(ctx context.Context, object []byte) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	req := d.at(d.rest.Patch(types.ApplyPatchType)).Param("fieldManager", fieldManager).Param("force",
		"true").Body(object)
	return out, d.wrap("apply", req.Do(ctx).Into(out))
}

// Delete deletes it with its pods. One that is not there is an error.
func (d *DaemonSet) Delete(ctx context.Context) error {
	return d.wrap("delete", d.at(d.rest.Delete()).Do(ctx).Error())
}
