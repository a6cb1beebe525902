// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	pathPlans      = "/apis/" + v1.Group + "/v1/plans"
	pathNodes      = "/api/v1/nodes"
	pathNamespaces = "/api/v1/namespaces"
	pathSecrets    = pathNamespaces + "/" + v1.PlansNamespace + "/secrets"
	pathAllPods    = "/api/v1/pods"
	pathPods       = pathNamespaces + "/" + v1.PlansNamespace + "/pods"
	pathEvents     = pathNamespaces + "/" + v1.PlansNamespace + "/events"
	pathJobs       = "/apis/batch/v1/namespaces/" + v1.PlansNamespace + "/jobs"

	// fieldManager is the field manager for this package's writes.
	fieldManager = protocol.PlanManager
	// pageSize is the maximum number of objects in a page of a list.
	pageSize = 500
	// logLines and logBytes limit the part of a log that is read. A status contains an even smaller part.
	logLines, logBytes = 10, 4096

	jsonType = runtime.ContentTypeJSON
)

// apiClient calls the member's API server. Its errors come from the API server and name the object.
type apiClient struct{ rest rest.Interface }

func planPath(namespace, name string) string {
	return "/apis/" + v1.Group + "/v1/namespaces/" + namespace + "/plans/" + name
}

// patchNode changes a Node with a merge patch. The patch contains the version of the Node that the change is based
// on.
func (m apiClient) patchNode(ctx context.Context, name string, patch []byte) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node,
		m.rest.Patch(types.MergePatchType).AbsPath(pathNodes, name).Param("fieldManager",
			fieldManager).Body(patch).Do(ctx).Into(node)
}

func (m apiClient) node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, m.rest.Get().AbsPath(pathNodes, name).Do(ctx).Into(node)
}

func (m apiClient) createJob(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	made := &batchv1.Job{}
	return made, m.rest.Post().AbsPath(pathJobs).Param("fieldManager", fieldManager).Body(job).Do(ctx).Into(made)
}

func (m apiClient) job(ctx context.Context, name string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	return job, m.rest.Get().AbsPath(pathJobs, name).Do(ctx).Into(job)
}

// deleteJob deletes the Job with the given UID. The deletion completes when its pods have terminated.
func (m apiClient) deleteJob(ctx context.Context, name string, uid types.UID) error {
	return m.remove(ctx, pathJobs+"/"+name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationForeground),
	})
}

func (m apiClient) remove(ctx context.Context, path string, options metav1.DeleteOptions) error {
	return m.rest.Delete().AbsPath(path).Body(&options).Do(ctx).Error()
}

// pods lists the pods under a path that match the selectors.
func (m apiClient) pods(ctx context.Context, path string, options metav1.ListOptions) (*corev1.PodList, error) {
	pods := &corev1.PodList{}
	return pods, m.rest.Get().AbsPath(path).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pods)
}

// watchPods watches the pods in all namespaces that match the selectors. The caller must stop the watch.
func (m apiClient) watchPods(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return m.rest.Get().AbsPath(pathAllPods).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}

// log returns the end of the log of a pod's single container.
func (m apiClient) log(ctx context.Context, pod string) (string, error) {
	stream, err := m.rest.Get().AbsPath(pathPods, pod, "log").
		Param("tailLines", strconv.Itoa(logLines)).Param("limitBytes", strconv.Itoa(logBytes)).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // an error does not matter after the log has been read
	text, err := io.ReadAll(io.LimitReader(stream, logBytes))
	return string(text), err
}

// applyStatus applies the status of a Plan.
func (m apiClient) applyStatus(ctx context.Context, plan *v1.Plan) (*v1.Plan, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "Plan", "status": plan.Status,
		"metadata": map[string]any{"name": plan.Name, "namespace": plan.Namespace, "uid": plan.UID},
	})
	if err != nil {
		return nil, fmt.Errorf("encode status of Plan %s: %w", plan.Name, err)
	}
	written := &v1.Plan{}
	return written,
		m.rest.Patch(types.ApplyPatchType).AbsPath(planPath(plan.Namespace, plan.Name), "status").SetHeader("Accept",
			jsonType).
			Param("fieldManager", fieldManager).Param("force", "true").Body(body).Do(ctx).Into(written)
}

// claimed reports whether any node has a plan's claim annotation.
func (m apiClient) claimed(ctx context.Context, claims func(map[string]string) bool) (bool, error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page := &metav1.PartialObjectMetadataList{}
		err := m.rest.Get().AbsPath(pathNodes).SetHeader("Accept",
			jsonType+";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
			VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(page)
		if err != nil {
			return false, err
		}
		for i := range page.Items {
			if claims(page.Items[i].Annotations) {
				return true, nil
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return false, nil
		}
	}
}
