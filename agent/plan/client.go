// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/footprint"
)

const (
	pathPlans      = "/apis/" + v1.Group + "/v1/plans"
	pathNodes      = "/api/v1/nodes"
	pathNamespaces = "/api/v1/namespaces"
	pathSecrets    = pathNamespaces + "/" + v1.PlansNamespace + "/secrets"
	pathAllPods    = "/api/v1/pods"
	pathPods       = pathNamespaces + "/" + v1.PlansNamespace + "/pods"
	pathJobs       = "/apis/batch/v1/namespaces/" + v1.PlansNamespace + "/jobs"

	// fieldManager owns what this package writes.
	fieldManager = footprint.PlanManager
	// pageSize is how many objects a page of a list has.
	pageSize = 500
	// logLines and logBytes bound what is read of a log. A status keeps less.
	logLines, logBytes = 10, 4096

	jsonType = runtime.ContentTypeJSON
)

// member is the API of the member. Errors are those of the API server, which name the object.
type member struct{ rest rest.Interface }

// planPath returns the API path of a Plan.
func planPath(namespace, name string) string {
	return "/apis/" + v1.Group + "/v1/namespaces/" + namespace + "/plans/" + name
}

// patchNode changes a Node by a merge patch, which holds the version that the decision was based on.
func (m member) patchNode(ctx context.Context, name string, patch []byte) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, m.rest.Patch(types.MergePatchType).AbsPath(pathNodes, name).Param("fieldManager", fieldManager).Body(patch).Do(ctx).Into(node)
}

func (m member) node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, m.rest.Get().AbsPath(pathNodes, name).Do(ctx).Into(node)
}

func (m member) createJob(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	body, err := json.Marshal(job)
	if err != nil {
		return nil, fmt.Errorf("encode Job %s: %w", job.Name, err)
	}
	made := &batchv1.Job{}
	return made, m.rest.Post().AbsPath(pathJobs).SetHeader("Content-Type", jsonType).Param("fieldManager", fieldManager).Body(body).Do(ctx).Into(made)
}

func (m member) job(ctx context.Context, name string) (*batchv1.Job, error) {
	job := &batchv1.Job{}
	return job, m.rest.Get().AbsPath(pathJobs, name).Do(ctx).Into(job)
}

// deleteJob deletes the Job of that UID when its pods have ended.
func (m member) deleteJob(ctx context.Context, name string, uid types.UID) error {
	return m.remove(ctx, pathJobs+"/"+name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid}, PropagationPolicy: new(metav1.DeletePropagationForeground),
	})
}

// remove deletes the object at a path.
func (m member) remove(ctx context.Context, path string, options metav1.DeleteOptions) error {
	options.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	body, err := json.Marshal(options)
	if err != nil {
		return fmt.Errorf("encode options: %w", err)
	}
	return m.rest.Delete().AbsPath(path).SetHeader("Content-Type", jsonType).Body(body).Do(ctx).Error()
}

// pods lists the pods of a collection that selectors select.
func (m member) pods(ctx context.Context, path string, options metav1.ListOptions) (*corev1.PodList, error) {
	pods := &corev1.PodList{}
	return pods, m.rest.Get().AbsPath(path).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(pods)
}

// watchPods follows the pods of all namespaces that selectors select. The caller stops the watch.
func (m member) watchPods(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return m.rest.Get().AbsPath(pathAllPods).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}

// log returns the end of the log of a pod's only container.
func (m member) log(ctx context.Context, pod string) (string, error) {
	stream, err := m.rest.Get().AbsPath(pathPods, pod, "log").
		Param("tailLines", strconv.Itoa(logLines)).Param("limitBytes", strconv.Itoa(logBytes)).Stream(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = stream.Close() }() // it was read, or could not be
	text, err := io.ReadAll(io.LimitReader(stream, logBytes))
	return string(text), err
}

// applyStatus applies the status of a Plan.
func (m member) applyStatus(ctx context.Context, plan *v1.Plan) (*v1.Plan, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1.GroupVersion.String(), "kind": "Plan", "status": plan.Status,
		"metadata": map[string]any{"name": plan.Name, "namespace": plan.Namespace, "uid": plan.UID},
	})
	if err != nil {
		return nil, fmt.Errorf("encode status of Plan %s: %w", plan.Name, err)
	}
	written := &v1.Plan{}
	return written, m.rest.Patch(types.ApplyPatchType).AbsPath(planPath(plan.Namespace, plan.Name), "status").SetHeader("Accept", jsonType).
		Param("fieldManager", fieldManager).Param("force", "true").Body(body).Do(ctx).Into(written)
}

// claimed reports whether any node has the annotation of a plan.
func (m member) claimed(ctx context.Context, claims func(map[string]string) bool) (bool, error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page := &metav1.PartialObjectMetadataList{}
		err := m.rest.Get().AbsPath(pathNodes).SetHeader("Accept", jsonType+";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
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

// feed keeps a store up to date with a collection.
type feed struct {
	rest   rest.Interface
	path   string
	field  string // field selector
	sample runtime.Object
	list   func() runtime.Object
	store  cache.TransformingStore
	failed func(error) // called with the error of a list; may be nil
	log    logr.Logger
}

// run follows the collection until ctx ends. The reflector's own log is off: it repeats what is logged here.
func (f feed) run(ctx context.Context) {
	silent := logr.Discard()
	ctx = logr.NewContext(ctx, silent)
	source := &cache.ListWatch{ListWithContextFunc: f.getList, WatchFuncWithContext: f.watch}
	reflector := cache.NewReflectorWithOptions(source, f.sample, f.store, cache.ReflectorOptions{Name: f.path, Logger: &silent})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(ctx)
}

func (f feed) getList(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = f.field
	if options.ResourceVersion == "0" { // from a cache that may be behind what was just written
		options.ResourceVersion = ""
	}
	list := f.list()
	if err := f.rest.Get().AbsPath(f.path).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list); err != nil {
		f.log.V(1).Info("cannot list", "path", f.path, "error", err.Error())
		if f.failed != nil {
			f.failed(err)
		}
		return nil, err
	}
	return list, nil
}

func (f feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = f.field
	options.Watch = true
	w, err := f.rest.Get().AbsPath(f.path).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		f.log.V(1).Info("cannot watch", "path", f.path, "error", err.Error())
	}
	return w, err
}
