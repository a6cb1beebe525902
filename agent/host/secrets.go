// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/agent/host/instructions"
)

// secrets implements identity.Secrets with files that only root can read. An agent in a cluster stores the same data in
// Secrets.
type secrets struct {
	folder string
	mu     sync.Mutex // held while a file is being read or written
}

func (s *secrets) path(name string) string { return filepath.Join(s.folder, name+".json") }

// Get reads a Secret.
func (s *secrets) Get(_ context.Context, name string) (*corev1.Secret, error) {
	raw, err := os.ReadFile(s.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	} else if err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	if err := json.Unmarshal(raw, &secret.Data); err != nil {
		// The cause is omitted, because it may quote the file.
		return nil, fmt.Errorf("%s cannot be read: run the join command again", s.path(name))
	}
	secret.Name = name
	return secret, nil
}

// Create creates a Secret.
func (s *secrets) Create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.Get(ctx, secret.Name); err == nil {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "secrets"}, secret.Name)
	}
	return s.write(secret)
}

// Update replaces a Secret. It does not check for conflicts, because no other process writes the Secret's file.
func (s *secrets) Update(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.Get(ctx, secret.Name); err != nil {
		return nil, err
	}
	return s.write(secret)
}

func (s *secrets) write(secret *corev1.Secret) (*corev1.Secret, error) {
	raw, err := json.Marshal(secret.Data)
	if err == nil {
		err = instructions.WriteDurably(s.path(secret.Name), raw)
	}
	return secret, err
}

// Watch sends one event for an existing Secret. This is sufficient, because the agent is restarted whenever a file
// changes. An agent whose identity was refused therefore finds the token from a later join command.
func (s *secrets) Watch(ctx context.Context, name string) (watch.Interface, error) {
	w := watch.NewFakeWithChanSize(1, false)
	if secret, err := s.Get(ctx, name); err == nil {
		w.Add(secret)
	}
	return w, nil
}

// same reports whether a Secret with this data exists.
func (s *secrets) same(name string, data map[string][]byte) bool {
	secret, err := s.Get(context.Background(), name)
	return err == nil && maps.EqualFunc(secret.Data, data, bytes.Equal)
}

// remove removes the Secrets with the given names.
func (s *secrets) remove(names ...string) error {
	var errs []error
	for _, name := range slices.Sorted(slices.Values(names)) {
		if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
