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
type Objects struct {
	client rest.Interface
	user   string // the user to impersonate; empty for the agent itself
}

// Objects returns access to the objects in the member.
func (c *Client) Objects() *Objects { return &Objects{client: c.REST} }

// As returns access to the same objects with the rights of a user, and without any group other than
// system:authenticated.
func (o *Objects) As(user string) *Objects { return &Objects{client: o.client, user: user} }

// HeaderUser is the header that makes the API server treat a request as if another user had sent it.
const HeaderUser = "Impersonate-User"

// to prepares a request for the object or collection at a path.
func (o *Objects) to(request *rest.Request, path, accept string) *rest.Request {
	if o.user != "" {
		request.SetHeader(HeaderUser, o.user)
	}
	return request.AbsPath(path).SetHeader("Accept", accept)
}

// Apply applies an object with server-side apply. It takes over fields that other field managers own.
func (o *Objects) Apply(
	ctx context.Context, path, manager string, object []byte,
) (*metav1.PartialObjectMetadata, error) {
	return metadata(o.to(o.client.Patch(types.ApplyPatchType), path, metadataJSON).
		Param("fieldManager", manager).Param("force", "true").Body(object).Do(ctx))
}

// ApplyWhole is like Apply, but takes over fields from other field managers only if force is true. It also returns
// the whole stored object as JSON.
func (o *Objects) ApplyWhole(
	ctx context.Context, path, manager string, force bool, object []byte,
) (*metav1.PartialObjectMetadata, []byte, error) {
	result := o.to(o.client.Patch(types.ApplyPatchType), path, runtime.ContentTypeJSON).
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
	return metadata(o.to(o.client.Get(), path, metadataJSON).Do(ctx))
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
	result := o.to(o.client.Get(), path, runtime.ContentTypeJSON).Do(ctx)
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}

// Delete deletes the object with the given UID, unless its resource version has changed. If version is empty, Delete
// deletes any version.
func (o *Objects) Delete(ctx context.Context, path string, uid types.UID, version string) error {
	preconditions := &metav1.Preconditions{UID: &uid}
	if version != "" {
		preconditions.ResourceVersion = &version
	}
	return o.to(o.client.Delete(), path, runtime.ContentTypeJSON).Body(&metav1.DeleteOptions{
		Preconditions: preconditions, PropagationPolicy: new(metav1.DeletePropagationBackground),
	}).Do(ctx).Error()
}

// MayList returns an error if the API server refuses to list the objects at a path, for example because the user lacks
// the right.
func (o *Objects) MayList(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return o.to(o.client.Get(), path, "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").
		Param("limit", "1").Do(ctx).Error()
}
