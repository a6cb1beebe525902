// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// MaxSecretData is the maximum size, in bytes, of the data of a Secret that is copied into members. It is a quarter of
// the size that an API server accepts. Without this limit, users who can create Secrets in a workspace could fill the
// manager's memory.
const MaxSecretData = 256 << 10

// maxRemembered is the maximum total size of the Secret content that is cached between uses, in bytes.
const maxRemembered = 16 << 20

// keySize is the key of StringData in which SecretOutline stores the size of the data. The API server never sends
// StringData, so only SecretOutline can have set the key.
const keySize = "size"

// SecretOutline is a cache transform. It keeps the fields of a Secret that decisions depend on, and the size of its
// data. A Secret that has already been reduced is returned unchanged.
func SecretOutline(object any) (any, error) {
	secret, ok := object.(*corev1.Secret)
	if !ok || secret.StringData[keySize] != "" {
		return object, nil
	}
	outline := &corev1.Secret{
		TypeMeta: secret.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Namespace: secret.Namespace, Name: secret.Name, UID: secret.UID, ResourceVersion: secret.ResourceVersion,
			CreationTimestamp: secret.CreationTimestamp, DeletionTimestamp: secret.DeletionTimestamp,
			Labels: map[string]string{},
		},
		Type:       secret.Type,
		StringData: map[string]string{keySize: strconv.Itoa(size(secret))},
	}
	for _, key := range choosing() {
		if value, ok := secret.Labels[key]; ok {
			outline.Labels[key] = value
		}
	}
	return outline, nil
}

// choosing returns the labels that determine whether a Secret is copied into members: the labels that request copies,
// and the label that prevents them.
func choosing() []string { return []string{v1.LabelProject, v1.LabelPlansUse, v1.LabelSecretKind} }

// sameChoice reports whether two objects are versions of the same Secret that have the same values for the labels that
// determine copying.
func sameChoice(outline, secret *corev1.Secret) bool {
	return secret.UID == outline.UID && !slices.ContainsFunc(choosing(), func(key string) bool {
		return secret.Labels[key] != outline.Labels[key]
	})
}

// size returns the size of a Secret's content, in bytes. The size includes the labels, because they are also copied and
// their size is not limited elsewhere.
func size(secret *corev1.Secret) int {
	total := len(secret.Annotations[v1.AnnotationExceptNamespaces])
	for key, value := range secret.Data {
		total += len(key) + len(value)
	}
	for key, value := range secret.Labels {
		total += len(key) + len(value)
	}
	return total
}

// SecretTooLargeError is returned when a Secret has too much data to be copied.
type SecretTooLargeError struct {
	// Size is the size of the data, in bytes.
	Size int
}

// Error returns a message that contains the size and the limit.
func (e *SecretTooLargeError) Error() string {
	return fmt.Sprintf("it has %d KiB of data and labels, but at most %d KiB can be copied: split it",
		e.Size>>10, MaxSecretData>>10)
}

// SecretReader reads the Secrets that users label for projects and plans. List returns Secrets from the cache, without
// their content. Get returns a Secret with its content. If the content is too large, Get returns a SecretTooLargeError.
type SecretReader struct {
	// Reader is a cache whose transform is SecretOutline.
	client.Reader
	// Live reads directly from the API server.
	Live client.Reader

	mu       sync.Mutex // guards the fields below
	contents map[types.NamespacedName]*corev1.Secret
	held     int // total size of the kept content, in bytes
}

// Get implements client.Reader. It returns a NotFound error for a Secret that is not in the cache, because no user has
// labeled that Secret.
func (r *SecretReader) Get(
	ctx context.Context, name types.NamespacedName, object client.Object, options ...client.GetOption,
) error {
	outline := &corev1.Secret{}
	if err := r.Reader.Get(ctx, name, outline); err != nil {
		r.forget(name)
		return err
	}
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return fmt.Errorf("read %s: a reader of Secrets cannot read a %T", name, object)
	}
	if n, err := strconv.Atoi(outline.StringData[keySize]); err != nil || n > MaxSecretData {
		r.forget(name)
		return &SecretTooLargeError{Size: n}
	}
	if known := r.recall(name, outline.ResourceVersion); known != nil {
		known.DeepCopyInto(secret)
		return nil
	}
	if err := r.Live.Get(ctx, name, secret, options...); err != nil {
		return err
	}
	// The Secret has been replaced, or its labels have changed, since it was cached. The event for this change will
	// arrive soon.
	if !sameChoice(outline, secret) {
		r.forget(name)
		return apierrors.NewNotFound(corev1.Resource("secrets"), name.Name)
	}
	if n := size(secret); n > MaxSecretData { // the Secret has grown since it was cached
		return &SecretTooLargeError{Size: n}
	}
	r.remember(name, secret)
	return nil
}

func (r *SecretReader) recall(name types.NamespacedName, version string) *corev1.Secret {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.contents[name]; known != nil && known.ResourceVersion == version {
		return known
	}
	return nil
}

// remember caches content for the next use. If the cache becomes too large, it drops the content of other Secrets.
func (r *SecretReader) remember(name types.NamespacedName, secret *corev1.Secret) {
	r.forget(name)
	secret.ManagedFields = nil
	except, listed := secret.Annotations[v1.AnnotationExceptNamespaces]
	if secret.Annotations = nil; listed { // other annotations may contain a copy of the data
		secret.Annotations = map[string]string{v1.AnnotationExceptNamespaces: except}
	}
	kept := secret.DeepCopy()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.contents == nil {
		r.contents = map[types.NamespacedName]*corev1.Secret{}
	}
	r.contents[name] = kept
	r.held += size(kept)
	for other, content := range r.contents {
		if r.held <= maxRemembered {
			return
		}
		delete(r.contents, other)
		r.held -= size(content)
	}
}

func (r *SecretReader) forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.contents[name]; known != nil {
		r.held -= size(known)
		delete(r.contents, name)
	}
}
