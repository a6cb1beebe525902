// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// Rivals returns the fields that could not be applied because other field managers own them.
func Rivals(err error) []string {
	var names []string
	for _, cause := range causes(err) {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			names = append(names, fmt.Sprintf("%s: %s", cause.Field, cause.Message))
		}
	}
	return names
}

// Replaced reports whether an update failed because no object with the given UID exists. Either the object is gone, or
// another object now has its name.
func Replaced(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsInvalid(err) &&
		slices.ContainsFunc(causes(err), func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" })
}

// InvalidFields returns the fields that the API server rejects, without their values.
func InvalidFields(err error) string {
	var all []string
	for _, cause := range causes(err) {
		all = append(all, cause.Field+" ("+string(cause.Type)+")")
	}
	return cmp.Or(strings.Join(all, ", "), "it does not name a field")
}

// causes returns the causes of an error from the API server.
func causes(err error) []metav1.StatusCause {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	return status.Status().Details.Causes
}

// Mark returns a hash of the fields that a field manager owns and of the time when it last applied them. The mark is 0
// if the manager has applied no fields. A client that changes one of these fields becomes the field's owner, so the
// mark changes, too. Changes that leave the mark the same, such as a change to a quota's status, are not drift.
//
// Mark also returns the last other field manager that wrote the object, or "" if there is none.
func Mark(managed []metav1.ManagedFieldsEntry, manager string) (mark uint64, other string) {
	var latest time.Time
	for i := range managed {
		f := &managed[i]
		switch {
		case f.Manager == manager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "":
			mark = markOf(f)
		case f.Subresource == "" && (f.Time == nil || !f.Time.Time.Before(latest)):
			other = f.Manager
			if f.Time != nil {
				latest = f.Time.Time
			}
		}
	}
	return mark, other
}

func markOf(f *metav1.ManagedFieldsEntry) uint64 {
	hash := sha256.New()
	if f.FieldsV1 != nil {
		_, _ = hash.Write(f.FieldsV1.GetRawBytes()) // writing to a hash never fails
	}
	if f.Time != nil {
		_, _ = hash.Write([]byte(f.Time.UTC().Format(time.RFC3339)))
	}
	return binary.BigEndian.Uint64(hash.Sum(nil)) | 1
}
