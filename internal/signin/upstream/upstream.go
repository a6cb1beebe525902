// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upstream defines the types of AuthProviders, and caches a connector for each AuthProvider.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
)

// Errors that explain why an AuthProvider cannot be queried.
var (
	ErrSecret  = errors.New("a Secret cannot be used")
	ErrInvalid = errors.New("the spec cannot be used")
)

// Connectors caches the connector of each AuthProvider. It is safe for concurrent use.
type Connectors struct {
	// Reader reads Secrets in Namespace from a cache.
	Reader    client.Reader
	Namespace string
	// Now returns the time for connectors that check tokens. The default is time.Now.
	Now func() time.Time
	// Types are the allowed types. The default is Types().
	Types []Type

	mu    sync.Mutex // guards known
	known map[string]known
}

// known holds a connector, or the error that occurred when the connector was built. The other fields identify the
// inputs.
type known struct {
	uid        types.UID
	generation int64
	secret     string // the UID and resource version
	connector  connector.Connector
	err        error
}

// Get returns the connector of a provider. It builds a connector only if the provider or its Secret has changed. The
// error for an invalid spec is also cached. Otherwise, the spec's expressions would be compiled again for each token,
// while all other logins wait.
func (c *Connectors) Get(ctx context.Context, p *v1.AuthProvider) (connector.Connector, error) {
	kind, err := c.TypeOf(p)
	if err != nil {
		return nil, err
	}
	secret, value := &corev1.Secret{}, []byte(nil)
	if reference := kind.Secret(p); reference != nil {
		if secret, value, err = c.read(ctx, *reference); err != nil {
			return nil, err
		}
	}
	next := known{uid: p.UID, generation: p.Generation, secret: string(secret.UID) + "/" + secret.ResourceVersion}
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.known[p.Name]
	if ok && last.uid == next.uid && last.generation == next.generation && last.secret == next.secret {
		return last.connector, last.err
	}
	if next.connector, err = kind.Build(c.parts(p, value)); err != nil {
		next.connector, next.err = nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if c.known == nil {
		c.known = map[string]known{}
	}
	c.known[p.Name] = next
	return next.connector, next.err
}

// TypeOf returns the type of a provider. It returns ErrInvalid for a type that is not in Types.
func (c *Connectors) TypeOf(p *v1.AuthProvider) (Type, error) {
	types := c.Types
	if types == nil {
		types = Types()
	}
	var names []string
	for _, t := range types {
		if t.Is(p) {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Type{}, fmt.Errorf("%w: it has no type that this version supports: %s",
		ErrInvalid, strings.Join(names, ", "))
}

func (c *Connectors) parts(p *v1.AuthProvider, secret []byte) Parts {
	now := c.Now
	if now == nil {
		now = time.Now
	}
	return Parts{
		Provider: p, Secret: string(secret), Now: now,
		ReadSecret: func(ctx context.Context, r v1.ProviderSecret) (string, error) {
			_, value, err := c.read(ctx, r)
			return string(value), err
		},
	}
}

// Forget removes the connector of a provider that has been deleted.
func (c *Connectors) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}

// read returns a value from a Secret that administrators labeled for providers. The values of other Secrets, such as
// the Secret with the hub's keys, must not be sent to an upstream.
func (c *Connectors) read(ctx context.Context, r v1.ProviderSecret) (*corev1.Secret, []byte, error) {
	secret := &corev1.Secret{}
	if err := c.Reader.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: r.Name},
		secret); apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s does not exist", ErrSecret, c.Namespace, r.Name)
	} else if err != nil {
		return nil, nil, fmt.Errorf("read a Secret of a provider: %w", err)
	}
	if secret.Labels[v1.LabelSecretKind] != v1.SecretKindProvider {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s lacks the label %s: %s", ErrSecret, c.Namespace, r.Name,
			v1.LabelSecretKind, v1.SecretKindProvider)
	}
	if len(secret.Data[r.Key]) == 0 {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s has no key %s", ErrSecret, c.Namespace, r.Name, r.Key)
	}
	return secret, secret.Data[r.Key], nil
}
