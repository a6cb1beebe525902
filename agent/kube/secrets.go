// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

// Secrets reads and writes the Secrets in one namespace. It wraps the API server's errors.
type Secrets struct {
	client    *Client
	namespace string
}

// Secrets returns access to the Secrets in a namespace.
func (c *Client) Secrets(namespace string) *Secrets {
	return &Secrets{client: c, namespace: namespace}
}

// Get reads a Secret.
func (s *Secrets) Get(ctx context.Context, name string) (*corev1.Secret, error) {
	out := &corev1.Secret{}
	err := s.client.REST.Get().Namespace(s.namespace).Resource("secrets").Name(name).Do(ctx).Into(out)
	return out, s.wrap("read", name, err)
}

// Create creates a Secret and returns the stored object.
func (s *Secrets) Create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	out := &corev1.Secret{}
	err := s.client.REST.Post().Namespace(s.namespace).Resource("secrets").Body(secret).Do(ctx).Into(out)
	return out, s.wrap("create", secret.Name, err)
}

// Update replaces a Secret, unless it has changed since it was read, and returns the stored object.
func (s *Secrets) Update(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	out := &corev1.Secret{}
	err := s.client.REST.Put().Namespace(s.namespace).Resource("secrets").Name(secret.Name).Body(secret).Do(ctx).Into(out)
	return out, s.wrap("update", secret.Name, err)
}

// List returns the Secrets of the given type.
func (s *Secrets) List(ctx context.Context, kind corev1.SecretType) ([]corev1.Secret, error) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("type", string(kind)).String()}
	out := &corev1.SecretList{}
	err := s.client.REST.Get().Namespace(s.namespace).Resource("secrets").VersionedParams(&options,
		metav1.ParameterCodec).Do(ctx).Into(out)
	return out.Items, s.wrap("list type "+string(kind)+" of", "", err)
}

// Delete deletes a Secret. A missing Secret is an error.
func (s *Secrets) Delete(ctx context.Context, name string) error {
	return s.wrap("delete", name,
		s.client.REST.Delete().Namespace(s.namespace).Resource("secrets").Name(name).Do(ctx).Error())
}

// Watch watches a single Secret. The first event contains the current state of the Secret. The caller must stop the
// watch.
func (s *Secrets) Watch(ctx context.Context, name string) (watch.Interface, error) {
	options := metav1.ListOptions{Watch: true, FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	w, err := s.client.REST.Get().Namespace(s.namespace).Resource("secrets").
		VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	return w, s.wrap("watch", name, err)
}

func (s *Secrets) wrap(operation, name string, err error) error {
	return named(err, operation, "Secret", s.namespace, name)
}

// plainSize is the size, in bytes, up to which data is stored uncompressed. Compressing less data would save little.
const plainSize = 4 << 10

// Pack compresses data for a Secret if the data is larger than plainSize.
func Pack(raw []byte) ([]byte, error) {
	if len(raw) <= plainSize {
		return raw, nil
	}
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(raw); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Unpack reverses Pack. It returns at most limit bytes.
func Unpack(raw []byte, limit int64) ([]byte, error) {
	if !bytes.HasPrefix(raw, []byte{0x1f, 0x8b}) {
		return raw, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	if raw, err = io.ReadAll(io.LimitReader(r, limit)); err != nil {
		return nil, fmt.Errorf("unpack: %w", err)
	}
	return raw, nil
}
