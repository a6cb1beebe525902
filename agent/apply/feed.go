// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	v1 "github.com/drover-dev/drover/api/v1"
)

// pageSize is how many objects a page of a list has.
const pageSize = 500

// feed keeps the cache up to date with one kind, by metadata only. It is a cache.TransformingStore.
type feed struct {
	kind   kind
	client Objects
	cache  *objectCache
	log    logr.Logger
	ready  chan struct{} // closed when all objects of the kind are known, or the kind cannot be read
	once   sync.Once
}

func newFeed(k kind, client Objects, cached *objectCache, log logr.Logger) *feed {
	return &feed{kind: k, client: client, cache: cached, log: log, ready: make(chan struct{})}
}

// run follows the kind until ctx ends.
func (f *feed) run(ctx context.Context) {
	silent := logr.Discard()
	ctx = logr.NewContext(ctx, silent)
	source := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	reflector := cache.NewReflectorWithOptions(source, &metav1.PartialObjectMetadata{}, f, cache.ReflectorOptions{Name: f.kind.resource, Logger: &silent})
	reflector.WatchListPageSize = pageSize
	reflector.RunWithContext(ctx)
}

// selector returns the label selector of the watch. All namespaces are watched: one that leaves a project no longer has a label.
func (f *feed) selector() string {
	if f.kind.name == kindNamespace {
		return ""
	}
	return v1.LabelSet
}

func (f *feed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.LabelSelector = f.selector()
	if options.ResourceVersion == "0" { // from a cache that may be behind what was just written
		options.ResourceVersion = ""
	}
	list, err := f.client.List(ctx, f.kind.collection(""), options)
	if err != nil {
		f.failed(err)
		return nil, err
	}
	return list, nil
}

func (f *feed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.LabelSelector = f.selector()
	w, err := f.client.Watch(ctx, f.kind.collection(""), options)
	if err != nil {
		if options.SendInitialEvents == nil || !apierrors.IsInvalid(err) { // otherwise the reflector lists instead
			f.failed(err)
		}
		return nil, err
	}
	return w, nil
}

// failed records that a kind cannot be read. If the API server does not have it or forbids it, no object of it was delivered.
func (f *feed) failed(err error) {
	f.log.V(1).Info("cannot watch a kind", "kind", f.kind.name, "error", err.Error())
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		f.once.Do(func() { close(f.ready) })
	}
}

func (f *feed) refOf(obj any) (ref, *metav1.ObjectMeta, error) {
	o, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return ref{}, nil, fmt.Errorf("watch %s: got %T", f.kind.resource, obj)
	}
	return ref{kind: f.kind.name, namespace: o.Namespace, name: o.Name}, &o.ObjectMeta, nil
}

// Transformer changes nothing.
func (f *feed) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return obj, nil }
}

// Add stores an object.
func (f *feed) Add(obj any) error { return f.Update(obj) }

// Update stores an object.
func (f *feed) Update(obj any) error {
	r, meta, err := f.refOf(obj)
	if err == nil {
		f.cache.observe(r, meta)
	}
	return err
}

// Delete records that an object is gone, or has lost the label that selects it.
func (f *feed) Delete(obj any) error {
	r, meta, err := f.refOf(obj)
	if err == nil {
		f.cache.vanish(r, number(meta.ResourceVersion))
	}
	return err
}

// Replace stores all objects of the kind.
func (f *feed) Replace(objs []any, version string) error {
	metas := make(map[ref]*metav1.ObjectMeta, len(objs))
	for _, obj := range objs {
		r, meta, err := f.refOf(obj)
		if err != nil {
			return err
		}
		metas[r] = meta
	}
	f.cache.replace(f.kind.name, metas, number(version))
	f.once.Do(func() { close(f.ready) })
	return nil
}

// Resync does nothing.
func (f *feed) Resync() error { return nil }
