// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// metadataJSON is the Accept header for requests that read only an object's metadata. The content of the object is
// not needed, and may be large or secret.
const metadataJSON = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// readTimeout is the timeout for reading one object.
const readTimeout = 15 * time.Second

// Objects accesses objects of any kind by their path in the API, such as "/api/v1/namespaces/web". Errors come from
// the API server and name the object.
type Objects struct{ client rest.Interface }

// Objects returns access to the objects in the member.
func (c *Client) Objects() *Objects { return &Objects{client: c.REST} }

// Apply applies an object with server-side apply. It takes over fields that other field managers own.
func (o *Objects) Apply(
	ctx context.Context, path, manager string, object []byte,
) (*metav1.PartialObjectMetadata, error) {
	return metadata(o.client.Patch(types.ApplyPatchType).AbsPath(path).SetHeader("Accept", metadataJSON).
		Param("fieldManager", manager).Param("force", "true").Body(object).Do(ctx))
}

// ApplyWhole is like Apply, but takes over fields from other field managers only if force is true. It also returns
// the whole stored object as JSON.
func (o *Objects) ApplyWhole(
	ctx context.Context, path, manager string, force bool, object []byte,
) (*metav1.PartialObjectMetadata, []byte, error) {
	result := o.client.Patch(types.ApplyPatchType).AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).
		Param("fieldManager", manager).Param("force", strconv.FormatBool(force)).Body(object).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, nil, err
	}
	meta := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(raw, meta); err != nil {
		return nil, nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return meta, raw, nil
}

// Meta reads an object's metadata.
func (o *Objects) Meta(ctx context.Context, path string) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return metadata(o.client.Get().AbsPath(path).SetHeader("Accept", metadataJSON).Do(ctx))
}

func metadata(result rest.Result) (*metav1.PartialObjectMetadata, error) {
	meta := &metav1.PartialObjectMetadata{}
	if err := result.Into(meta); err != nil {
		return nil, err
	}
	return meta, nil
}

// Whole reads a whole object and decodes its JSON into out. out must be a pointer.
func (o *Objects) Whole(ctx context.Context, path string, out any) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	result := o.client.Get().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).Do(ctx)
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// Delete deletes the object with the given UID, unless its resource version has changed.
func (o *Objects) Delete(ctx context.Context, path string, uid types.UID, version string) error {
	return o.client.Delete().AbsPath(path).Body(&metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	}).Do(ctx).Error()
}
