// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch keeps the agent's data about objects in the member up to date.
//
// A client-go reflector fills a store that holds only the few fields that are used, not whole objects. An informer
// would hold each object twice, and would not contain the agent's own writes until the corresponding events arrive. See
// docs/design/0015-how-the-agent-applies.md.
package watch

import (
	"cmp"
	"context"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// pageSize is the default of Collection.Page.
const pageSize = 500

// Accept headers for requests that read only the metadata of objects. The content of the objects may be large or
// secret.
const (
	metadataEvents = runtime.ContentTypeProtobuf +
		";as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataLists = runtime.ContentTypeProtobuf +
		";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// Collection describes objects in the member's API that can be listed and watched together.
type Collection struct {
	// Client sends the requests and decodes the objects.
	Client rest.Interface
	// Path is the API path, such as "/api/v1/nodes".
	Path string
	// User is the user to impersonate when reading the objects. If it is empty, the agent reads them as itself.
	User string
	// Labels and Fields are selectors. Empty selectors match all objects.
	Labels, Fields string
	// Optional means that the collection counts as known even if the API server does not serve the kind or forbids
	// reading the objects.
	Optional bool
	// Page is the maximum number of objects per page if the API server cannot stream lists as a watch. It defaults to
	// 500.
	Page int64
	// OnError is called for each failed request, which is then retried. It may be nil.
	OnError func(error)
	Log     logr.Logger
}

// Follow keeps the store up to date with a collection until ctx is done. The reflector's own log is disabled, because
// it would repeat errors that are logged here.
func (s *Store[O, T]) Follow(ctx context.Context, c Collection) {
	silent := logr.Discard()
	ctx = logr.NewContext(ctx, silent)
	f := follower[O, T]{Collection: c, store: s}
	source := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	// The expected type is nil, because the store checks the types of objects.
	reflector := cache.NewReflectorWithOptions(source, nil, s, cache.ReflectorOptions{Name: c.Path, Logger: &silent})
	reflector.WatchListPageSize = cmp.Or(c.Page, pageSize)
	reflector.RunWithContext(ctx)
}

// follower connects a collection to its store.
type follower[O Object, T any] struct {
	Collection
	store *Store[O, T]
}

// list reads a page and keeps only the stored fields of each object, so the whole list is never in memory. It requests
// the newest version. API servers would answer a request for version 0 from their cache. The cache may lack the agent's
// last writes, and responses from it ignore the page size.
func (f follower[O, T]) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion = ""
	}
	list, err := f.request(&options, metadataLists).Do(ctx).Get()
	if err != nil {
		f.failed(err)
		return nil, err
	}
	page, err := meta.ListAccessor(list)
	if err != nil {
		return nil, err
	}
	out := &metav1.List{ListMeta: metav1.ListMeta{
		ResourceVersion: page.GetResourceVersion(), Continue: page.GetContinue(),
		RemainingItemCount: page.GetRemainingItemCount(),
	}}
	err = meta.EachListItem(list, func(obj runtime.Object) error {
		e, err := f.store.entryOf(obj)
		out.Items = append(out.Items, runtime.RawExtension{Object: e})
		return err
	})
	return out, err
}

func (f follower[O, T]) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	events, err := f.request(&options, metadataEvents).Watch(ctx)
	if err != nil {
		if !streamRefused(options, err) {
			f.failed(err)
		}
		return nil, err
	}
	return events, nil
}

func (f follower[O, T]) request(options *metav1.ListOptions, metadata string) *rest.Request {
	options.LabelSelector, options.FieldSelector = f.Labels, f.Fields
	request := f.Client.Get().AbsPath(f.Path).VersionedParams(options, metav1.ParameterCodec)
	if f.User != "" {
		request.SetHeader("Impersonate-User", f.User)
	}
	var sample O
	if _, only := any(sample).(*metav1.PartialObjectMetadata); only {
		request.SetHeader("Accept", metadata)
	}
	return request
}

// streamRefused reports whether an API server refused a request only because it cannot stream a list as a watch. In
// that case, the reflector sends a list request instead.
func streamRefused(options metav1.ListOptions, err error) bool {
	return options.SendInitialEvents != nil && (apierrors.IsInvalid(err) || apierrors.IsBadRequest(err))
}

func (f follower[O, T]) failed(err error) {
	f.Log.V(1).Info("cannot watch", "path", f.Path, "error", err.Error())
	if apierrors.IsNotFound(err) {
		f.store.invalidate()
	}
	if f.Optional && (apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err)) {
		f.store.setKnown()
	}
	if f.OnError != nil {
		f.OnError(err)
	}
}
