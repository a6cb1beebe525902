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
	"k8s.io/client-go/rest"
)

// fieldManager is the field manager of the agent's own objects.
const fieldManager = "drover-agent"

// Deployment reads and changes one Deployment. Errors are those of the API server, wrapped.
type Deployment struct {
	client          *Client
	namespace, name string
}

// Deployment of a namespace. Its pods have its name as the label app.kubernetes.io/name.
func (c *Client) Deployment(namespace, name string) *Deployment {
	return &Deployment{client: c, namespace: namespace, name: name}
}

// Get reads the Deployment.
func (d *Deployment) Get(ctx context.Context) (*appsv1.Deployment, error) {
	out := &appsv1.Deployment{}
	return out, d.wrap("read", d.at(d.client.REST.Get()).Do(ctx).Into(out))
}

// Patch applies a JSON patch to it.
func (d *Deployment) Patch(ctx context.Context, patch []byte) error {
	req := d.at(d.client.REST.Patch(types.JSONPatchType)).Param("fieldManager", fieldManager).Body(patch)
	return d.wrap("change", req.Do(ctx).Error())
}

// Watch follows it. What it is now comes first. The caller stops the watch.
func (d *Deployment) Watch(ctx context.Context) (watch.Interface, error) {
	options := metav1.ListOptions{Watch: true,
		FieldSelector: fields.OneTermEqualSelector("metadata.name", d.name).String()}
	w, err := d.client.REST.Get().AbsPath(d.collection()).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	return w, d.wrap("watch", err)
}

// Pods lists its pods.
func (d *Deployment) Pods(ctx context.Context) ([]corev1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + d.name}
	out := &corev1.PodList{}
	err := d.client.REST.Get().Namespace(d.namespace).Resource("pods").VersionedParams(&options,
		metav1.ParameterCodec).Do(ctx).Into(out)
	return out.Items, d.wrap("list pods of", err)
}

func (d *Deployment) at(req *rest.Request) *rest.Request { return req.AbsPath(d.collection(), d.name) }

func (d *Deployment) collection() string {
	return "/apis/apps/v1/namespaces/" + d.namespace + "/deployments"
}

func (d *Deployment) wrap(operation string, err error) error {
	return named(err, operation, "Deployment", d.namespace, d.name)
}

// DaemonSet applies and deletes one DaemonSet. Errors are those of the API server, wrapped.
type DaemonSet struct {
	client          *Client
	namespace, name string
}

// DaemonSet of a namespace.
func (c *Client) DaemonSet(namespace, name string) *DaemonSet {
	return &DaemonSet{client: c, namespace: namespace, name: name}
}

// Apply applies it, as JSON, by server-side apply, and returns it as stored.
func (d *DaemonSet) Apply(ctx context.Context, object []byte) (*appsv1.DaemonSet, error) {
	out := &appsv1.DaemonSet{}
	req := d.at(d.client.REST.Patch(types.ApplyPatchType)).Param("fieldManager", fieldManager).Param("force",
		"true").Body(object)
	return out, named(req.Do(ctx).Into(out), "apply", "DaemonSet", d.namespace, d.name)
}

// Delete deletes it with its pods. One that is not there is an error.
func (d *DaemonSet) Delete(ctx context.Context) error {
	return named(d.at(d.client.REST.Delete()).Do(ctx).Error(), "delete", "DaemonSet", d.namespace, d.name)
}

func (d *DaemonSet) at(req *rest.Request) *rest.Request {
	return req.AbsPath("/apis/apps/v1/namespaces/"+d.namespace+"/daemonsets", d.name)
}
