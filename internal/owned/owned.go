// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package owned identifies the Secrets that Drover created, and writes objects only if they have not changed since they
// were read.
//
// The manager has more rights than most users. If a user replaces an object between the manager's read and its write,
// the result must be a conflict, not a write with the manager's rights. For server-side apply, a resourceVersion alone
// is not enough, because the request would recreate an object that has been deleted.
package owned

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the manager's field manager for objects on the hub. A controller that shares the fields of an object
// with another controller uses its own field manager.
const FieldOwner = client.FieldOwner("drover")

// Marks are the properties that identify a Secret as created by Drover.
type Marks struct {
	Type   corev1.SecretType
	Labels map[string]string
	// Owner is the UID of an object that must be one of the Secret's owners. If it is empty, any owner is accepted.
	Owner types.UID
}

// Has reports whether a Secret has all of the marks.
func (m Marks) Has(secret *corev1.Secret) bool {
	for label, value := range m.Labels {
		if secret.Labels[label] != value {
			return false
		}
	}
	return secret.Type == m.Type && (m.Owner == "" || By(secret, m.Owner))
}

// By reports whether an object has an owner with the given UID.
func By(object metav1.Object, owner types.UID) bool {
	for _, ref := range object.GetOwnerReferences() {
		if owner != "" && ref.UID == owner {
			return true
		}
	}
	return false
}

// ReadSecret returns a Secret, or nil if it does not exist.
func ReadSecret(ctx context.Context, reader client.Reader, name types.NamespacedName) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, name, secret); apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	}
	return secret, nil
}

// WriteSecret creates a Secret if the read argument is nil. Otherwise, it applies the configuration to the Secret that
// was read. The error is AlreadyExists or Conflict if the Secret has changed in the meantime.
func WriteSecret(ctx context.Context, hub client.Writer, read *corev1.Secret, want *corev1ac.SecretApplyConfiguration,
) error {
	if read == nil {
		return hub.Create(ctx, NewSecret(want), FieldOwner)
	}
	want = want.WithUID(read.UID).WithResourceVersion(read.ResourceVersion)
	return hub.Apply(ctx, want, FieldOwner, client.ForceOwnership)
}

// NewSecret returns the Secret that an apply configuration describes. New Secrets are created rather than applied,
// because a create request is much cheaper for the API server.
func NewSecret(want *corev1ac.SecretApplyConfiguration) *corev1.Secret {
	secret := &corev1.Secret{Type: *want.Type, Data: want.Data}
	secret.Namespace, secret.Name = *want.Namespace, *want.Name
	secret.Labels, secret.Annotations = want.Labels, want.Annotations
	for _, owner := range want.OwnerReferences {
		secret.OwnerReferences = append(secret.OwnerReferences, metav1.OwnerReference{
			APIVersion: *owner.APIVersion, Kind: *owner.Kind, Name: *owner.Name, UID: *owner.UID,
		})
	}
	return secret
}

// Part returns an apply configuration for an object that was read. It contains only the object's identity and version.
// The caller adds the content.
func Part(read metav1.Object, kind schema.GroupVersionKind) *unstructured.Unstructured {
	part := &unstructured.Unstructured{}
	part.SetGroupVersionKind(kind)
	part.SetNamespace(read.GetNamespace())
	part.SetName(read.GetName())
	part.SetUID(read.GetUID())
	part.SetResourceVersion(read.GetResourceVersion())
	return part
}

// Apply applies a configuration that was created with Part. The error is a Conflict if the object was deleted, replaced
// or changed since it was read. Apply replaces the content of part with the API server's response.
func Apply(ctx context.Context, hub client.Writer, part *unstructured.Unstructured, by client.FieldOwner) error {
	if part.GetUID() == "" {
		return fmt.Errorf("apply %s %s: it was not read before", part.GetKind(), client.ObjectKeyFromObject(part))
	}
	return hub.Apply(ctx, client.ApplyConfigurationFromUnstructured(part), by, client.ForceOwnership)
}

// SetFinalizer adds or removes a finalizer of an object that was read. The change argument is
// controllerutil.AddFinalizer or RemoveFinalizer. SetFinalizer patches only the finalizers, because the status is
// written elsewhere. If the object has been deleted, it returns no error. If the object has changed, it returns a
// Conflict.
func SetFinalizer(ctx context.Context, hub client.Writer, read client.Object, finalizer string,
	change func(client.Object, string) bool) error {
	patched, is := read.DeepCopyObject().(client.Object)
	if !is || !change(patched, finalizer) {
		return nil
	}
	lock := client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{})
	return client.IgnoreNotFound(hub.Patch(ctx, patched, lock))
}

// Delete deletes an object that was read. If the object has already been deleted, it returns no error. If the object
// has been replaced or changed, it returns a Conflict.
func Delete(ctx context.Context, hub client.Writer, read client.Object) error {
	uid, version := read.GetUID(), read.GetResourceVersion()
	return client.IgnoreNotFound(hub.Delete(ctx, read, client.Preconditions{UID: &uid, ResourceVersion: &version}))
}
