// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// pageSize is how many objects a page of a list has, where the API server cannot stream lists as a watch.
const pageSize = 500

// feed keeps a store up to date with a resource.
type feed struct {
	client    rest.Interface
	resource  string
	selector  string // field selector
	sample    runtime.Object
	store     cache.TransformingStore
	onFailure func(error) // called for each request that failed; the feed tries again by itself
}

// run follows the resource until ctx ends. The reflector's log is off: it repeats what onFailure gets, and logs an error when it is stopped.
func (f *feed) run(ctx context.Context) {
	silent := logr.Discard()
	ctx = logr.NewContext(ctx, silent)
	source := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	reflector := cache.NewReflectorWithOptions(source, f.sample, f.store, cache.ReflectorOptions{Name: f.resource, Logger: &silent})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(ctx)
}

// list gets a page and keeps its summaries only, so that the whole list is never in memory. Version 0 is asked as the newest: API servers
// answer it from their cache, where they ignore the page size.
func (f *feed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.FieldSelector = f.selector
	if options.ResourceVersion == "0" {
		options.ResourceVersion = ""
	}
	obj, err := f.client.Get().Resource(f.resource).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Get()
	if err != nil {
		f.onFailure(err)
		return nil, err
	}
	switch list := obj.(type) {
	case *corev1.PodList:
		return f.page(list.ListMeta, len(list.Items), func(i int) any { return &list.Items[i] })
	case *corev1.NodeList:
		return f.page(list.ListMeta, len(list.Items), func(i int) any { return &list.Items[i] })
	}
	return obj, nil
}

func (f *feed) page(meta metav1.ListMeta, n int, item func(int) any) (runtime.Object, error) {
	out := &metav1.List{ListMeta: meta, Items: make([]runtime.RawExtension, 0, n)}
	for i := range n {
		s, err := f.store.Transformer()(item(i))
		if err != nil {
			return nil, err
		}
		if obj, ok := s.(runtime.Object); ok {
			out.Items = append(out.Items, runtime.RawExtension{Object: obj})
		}
	}
	return out, nil
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = f.selector
	options.Watch = true
	w, err := f.client.Get().Resource(f.resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		if !streamRefused(options, err) {
			f.onFailure(err)
		}
		return nil, err
	}
	return w, nil
}

// streamRefused reports whether an API server only refused to stream a list as a watch; the reflector lists then.
func streamRefused(options metav1.ListOptions, err error) bool {
	return options.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err))
}
