// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Of objects of any kind only the metadata is read: their content may be large, or secret, and is not needed.
const (
	metadataJSON     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	metadataProtobuf = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + metadataJSON
	metadataLists    = runtime.ContentTypeProtobuf + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// Objects reaches objects of any kind by their path in the API, such as "/api/v1/namespaces/web". Errors are those of the API server; they
// name the object.
type Objects struct{ client rest.Interface }

// Objects of the member.
func (c *Client) Objects() *Objects { return &Objects{client: c.REST} }

// Apply applies an object by server-side apply as a field manager, and reports whether that created it. force takes fields from other managers.
func (o *Objects) Apply(ctx context.Context, path, manager string, force bool, object []byte) (*metav1.PartialObjectMetadata, bool, error) {
	status := 0
	result := o.client.Patch(types.ApplyPatchType).AbsPath(path).SetHeader("Accept", metadataJSON).
		Param("fieldManager", manager).Param("force", strconv.FormatBool(force)).Body(object).Do(ctx).StatusCode(&status)
	meta, err := decode(result)
	return meta, status == http.StatusCreated, err
}

// Meta reads an object's metadata.
func (o *Objects) Meta(ctx context.Context, path string) (*metav1.PartialObjectMetadata, error) {
	return decode(o.client.Get().AbsPath(path).SetHeader("Accept", metadataJSON).Do(ctx))
}

func decode(result rest.Result) (*metav1.PartialObjectMetadata, error) {
	raw, err := result.Raw()
	if err != nil {
		if stated := result.Error(); stated != nil { // the API server's own words
			err = stated
		}
		return nil, err
	}
	meta := &metav1.PartialObjectMetadata{}
	if err := json.Unmarshal(raw, meta); err != nil {
		return nil, fmt.Errorf("decode metadata: %w", err)
	}
	return meta, nil
}

// Whole reads an object into out, a pointer to what its JSON decodes into.
func (o *Objects) Whole(ctx context.Context, path string, out any) error {
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

// Delete deletes the object of that UID, unless it has changed since the version.
func (o *Objects) Delete(ctx context.Context, path string, uid types.UID, version string) error {
	background := metav1.DeletePropagationBackground
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &version},
		PropagationPolicy: &background,
	})
	if err != nil {
		return fmt.Errorf("encode preconditions: %w", err)
	}
	return o.client.Delete().AbsPath(path).SetHeader("Accept", runtime.ContentTypeJSON).
		SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}

// List lists the metadata of a collection.
func (o *Objects) List(ctx context.Context, path string, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	out := &metav1.PartialObjectMetadataList{}
	err := o.client.Get().AbsPath(path).SetHeader("Accept", metadataLists).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(out)
	return out, err
}

// Watch follows the metadata of a collection. The caller stops the watch.
func (o *Objects) Watch(ctx context.Context, path string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return o.client.Get().AbsPath(path).SetHeader("Accept", metadataProtobuf).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}
