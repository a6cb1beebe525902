// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/util/retry"

	"github.com/drover-dev/drover/internal/protocol"
)

// conflicts limits the retries of an update that conflicts with writes of other replicas.
var conflicts = wait.Backoff{Steps: 10, Duration: 10 * time.Millisecond, Factor: 1, Jitter: 1}

// errReplaced is returned if the key in the Secret is not the key that the caller expects.
var errReplaced = errors.New("the agent's key was replaced meanwhile")

// store reads and writes the identity. It is safe for concurrent use, including use by several replicas.
type store struct {
	secrets Secrets
}

// Secrets provides access to the Secrets that contain a Keeper's identity and join token. In a cluster, they are
// objects in the agent's namespace. On a host, they are files. Errors are of the types that an API server returns.
type Secrets interface {
	Get(ctx context.Context, name string) (*corev1.Secret, error)
	Create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	Update(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error)
	Watch(ctx context.Context, name string) (watch.Interface, error)
}

// ensure returns the identity, and creates one with a new key if there is none. If several replicas call ensure at
// the same time, one of them creates the key, and all of them return that key.
func (s *store) ensure(ctx context.Context) (*identity, error) {
	secret, err := s.secrets.Get(ctx, protocol.IdentitySecret)
	if apierrors.IsNotFound(err) {
		secret, err = s.create(ctx)
	}
	return stored(secret, err)
}

// get returns the identity, or an error if there is none.
func (s *store) get(ctx context.Context) (*identity, error) {
	return stored(s.secrets.Get(ctx, protocol.IdentitySecret))
}

// stored decodes the identity in a Secret.
func stored(secret *corev1.Secret, err error) (*identity, error) {
	if err != nil {
		return nil, fmt.Errorf("read identity: %w", err)
	}
	id, err := decode(secret.Data)
	if err != nil {
		return nil, fmt.Errorf("read identity from Secret %s: %w", protocol.IdentitySecret, err)
	}
	return id, nil
}

func (s *store) create(ctx context.Context) (*corev1.Secret, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	data, err := encode(&identity{Key: key})
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
			Labels: protocol.AgentLabels(),
		},
		Type: corev1.SecretTypeOpaque,
		Data: data,
	}
}

// joined stores the Cluster that the agent has joined as. It returns errReplaced if the agent's key has been replaced
// in the meantime.
func (s *store) joined(ctx context.Context, joined *identity) error {
	return s.update(ctx, func(stored *identity) error {
		if !stored.Key.Equal(joined.Key) {
			return errReplaced
		}
		*stored = *joined
		return nil
	})
}

func (s *store) put(ctx context.Context, id *identity) error {
	err := s.update(ctx, func(stored *identity) error {
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

// setSettings stores the settings that the hub announced, and the fingerprint of the manifest that was in force at
// the time.
func (s *store) setSettings(ctx context.Context, settings protocol.Settings, after string) error {
	return s.update(ctx, func(stored *identity) error {
		stored.Settings, stored.After = &settings, after
		return nil
	})
}

func (s *store) update(ctx context.Context, change func(*identity) error) error {
	if err := retry.RetryOnConflict(conflicts, func() error { return s.tryUpdate(ctx, change) }); err != nil {
		return fmt.Errorf("store identity: %w", err)
	}
	return nil
}

func (s *store) tryUpdate(ctx context.Context, change func(*identity) error) error {
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
