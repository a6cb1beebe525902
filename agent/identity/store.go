// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// maxConflicts is how often an update is tried when other replicas write at the same time.
const maxConflicts = 10

// ErrReplaced says that the key in the Secret is no longer the one that the caller knew.
var ErrReplaced = errors.New("the agent's key was replaced meanwhile")

// Secrets is what Store needs of the API server. Its errors work with k8s.io/apimachinery/pkg/api/errors.
type Secrets interface {
	Get(ctx context.Context, name string) (*corev1.Secret, error)
	Create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
}

// Store reads and writes the identity. All methods may be called concurrently, by several replicas too.
type Store struct {
	secrets Secrets
}

// NewStore makes a Store.
func NewStore(secrets Secrets) *Store { return &Store{secrets: secrets} }

// Ensure returns the identity and makes one with a new key if there is none. Of replicas that do so at once, one makes the key and all get it.
func (s *Store) Ensure(ctx context.Context) (*Identity, error) {
	secret, err := s.secrets.Get(ctx, protocol.IdentitySecret)
	if apierrors.IsNotFound(err) {
		secret, err = s.create(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	id, err := decode(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("read identity from Secret %s: %w", protocol.IdentitySecret, err)
	}
	return id, nil
}

func (s *Store) create(ctx context.Context) (*corev1.Secret, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	data, err := encode(&Identity{Key: key})
	if err != nil {
		return nil, err
	}
	created, err := s.secrets.Create(ctx, secretOf(data))
	if apierrors.IsAlreadyExists(err) {
		return s.secrets.Get(ctx, protocol.IdentitySecret)
	}
	return created, err
}

func secretOf(data map[string][]byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:   protocol.IdentitySecret,
			Labels: map[string]string{"app.kubernetes.io/name": protocol.AgentName, "app.kubernetes.io/managed-by": "drover"},
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

// Joined stores that the agent with this key has become a Cluster. It returns ErrReplaced if the key is another one by now.
func (s *Store) Joined(ctx context.Context, joined *Identity) error {
	return s.update(ctx, func(stored *Identity) error {
		if !stored.Key.Equal(joined.Key) {
			return ErrReplaced
		}
		*stored = *joined
		return nil
	})
}

// Put stores the identity in place of the one that is there.
func (s *Store) Put(ctx context.Context, id *Identity) error {
	err := s.update(ctx, func(stored *Identity) error {
		*stored = *id
		return nil
	})
	if !apierrors.IsNotFound(err) {
		return err
	}
	data, err := encode(id)
	if err != nil {
		return err
	}
	if _, err = s.secrets.Create(ctx, secretOf(data)); err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	return nil
}

// SetSettings stores what the hub announced and under which manifest it came.
func (s *Store) SetSettings(ctx context.Context, settings protocol.Settings, after string) error {
	return s.update(ctx, func(stored *Identity) error {
		stored.Settings, stored.After = &settings, after
		return nil
	})
}

func (s *Store) update(ctx context.Context, change func(*Identity) error) error {
	var err error
	for range maxConflicts {
		if err = s.tryUpdate(ctx, change); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	return nil
}

func (s *Store) tryUpdate(ctx context.Context, change func(*Identity) error) error {
	secret, err := s.secrets.Get(ctx, protocol.IdentitySecret)
	if err != nil {
		return err
	}
	id, err := decode(secret.Data)
	if err != nil {
		return err
	}
	if err := change(id); err != nil {
		return err
	}
	if secret.Data, err = encode(id); err != nil {
		return err
	}
	_, err = s.secrets.Update(ctx, secret)
	return err
}
