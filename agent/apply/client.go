// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// Objects is the client for the member's API. Its errors are those of k8s.io/apimachinery/pkg/api/errors.
type Objects interface {
	// Apply applies an object server-side, and reports whether that created it. force takes fields over from other field managers.
	Apply(ctx context.Context, path, manager string, force bool, object []byte) (*metav1.PartialObjectMetadata, bool, error)
	// Meta reads an object's metadata.
	Meta(ctx context.Context, path string) (*metav1.PartialObjectMetadata, error)
	// Whole reads an object and decodes its JSON into out, a pointer.
	Whole(ctx context.Context, path string, out any) error
	// Delete deletes the object of that UID, unless its version is another.
	Delete(ctx context.Context, path string, uid types.UID, version string) error
	// List lists the metadata of a collection.
	List(ctx context.Context, path string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	// Watch follows the metadata of a collection.
	Watch(ctx context.Context, path string, options metav1.ListOptions) (watch.Interface, error)
}
