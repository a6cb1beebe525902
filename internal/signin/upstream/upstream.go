// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upstream makes the connectors of AuthProviders, and principals of what they say.
package upstream

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/github"
	"github.com/drover-dev/drover/internal/signin/ldap"
	"github.com/drover-dev/drover/internal/signin/oidc"
	"github.com/drover-dev/drover/internal/signin/workload"
)

// Errors of an AuthProvider that cannot be asked.
var (
	ErrSecret  = errors.New("a Secret cannot be used")
	ErrInvalid = errors.New("the spec cannot be used")
)

// Connectors keeps the connector of each AuthProvider. It may be used concurrently.
type Connectors struct {
	// Reader reads Secrets of Namespace from a cache.
	Reader    client.Reader
	Namespace string
	// Now tells the time to connectors that check tokens. Nil means time.Now.
	Now func() time.Time

	mu    sync.Mutex // guards known
	known map[string]known
}

// known is a connector, or why there is none, and what it was made of.
type known struct {
	uid        types.UID
	generation int64
	secret     string // with its version
	connector  connector.Refresher
	err        error
}

// Of returns the connector of a provider: the one before, unless its spec or its Secret has changed. A spec that cannot be used is not tried again until then either:
// whoever sends a token would have its expressions compiled while all other logins wait.
func (c *Connectors) Of(ctx context.Context, p *v1.AuthProvider) (connector.Refresher, error) {
	reference := Secret(p)
	if reference == nil && p.Spec.JWT == nil {
		return nil, fmt.Errorf("%w: it has no type that this version knows", ErrInvalid)
	}
	secret, value, err := &corev1.Secret{}, []byte(nil), error(nil)
	if reference != nil {
		secret, value, err = c.read(ctx, *reference)
	}
	if err != nil {
		return nil, err
	}
	next := known{uid: p.UID, generation: p.Generation, secret: string(secret.UID) + "/" + secret.ResourceVersion}
	c.mu.Lock()
	defer c.mu.Unlock()
	if last, ok := c.known[p.Name]; ok && last.uid == next.uid && last.generation == next.generation && last.secret == next.secret {
		return last.connector, last.err
	}
	if next.connector, err = c.make(p, string(value)); err != nil {
		next.connector, next.err = nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if c.known == nil {
		c.known = map[string]known{}
	}
	c.known[p.Name] = next
	return next.connector, next.err
}

func (c *Connectors) clock() func() time.Time {
	if c.Now == nil {
		return time.Now
	}
	return c.Now
}

// Forget drops the connector of a provider that was deleted.
func (c *Connectors) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.known, name)
}

// read returns a key of a Secret that administrators meant for providers. Any other, such as the one with the hub's keys, must not reach an upstream.
func (c *Connectors) read(ctx context.Context, r v1.ProviderSecret) (*corev1.Secret, []byte, error) {
	secret := &corev1.Secret{}
	if err := c.Reader.Get(ctx, types.NamespacedName{Namespace: c.Namespace, Name: r.Name}, secret); apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s does not exist", ErrSecret, c.Namespace, r.Name)
	} else if err != nil {
		return nil, nil, fmt.Errorf("read a Secret of a provider: %w", err)
	}
	if secret.Labels[v1.LabelSecretKind] != v1.SecretKindProvider {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s lacks the label %s: %s", ErrSecret, c.Namespace, r.Name, v1.LabelSecretKind, v1.SecretKindProvider)
	}
	if len(secret.Data[r.Key]) == 0 {
		return nil, nil, fmt.Errorf("%w: Secret %s/%s has no key %s", ErrSecret, c.Namespace, r.Name, r.Key)
	}
	return secret, secret.Data[r.Key], nil
}

// Secret returns what names the Secret of a provider, nil if it has no type that is known.
func Secret(p *v1.AuthProvider) *v1.ProviderSecret {
	switch {
	case p.Spec.OIDC != nil:
		return &p.Spec.OIDC.ClientSecret
	case p.Spec.LDAP != nil:
		return &p.Spec.LDAP.Bind.PasswordSecret
	case p.Spec.GitHub != nil:
		return &p.Spec.GitHub.ClientSecret
	}
	return nil
}

// Type returns OIDC, LDAP, GitHub or JWT.
func Type(p *v1.AuthProvider) string {
	switch {
	case p.Spec.OIDC != nil:
		return "OIDC"
	case p.Spec.LDAP != nil:
		return "LDAP"
	case p.Spec.GitHub != nil:
		return "GitHub"
	case p.Spec.JWT != nil:
		return "JWT"
	}
	return ""
}

// make makes the connector of a provider whose Secret has a value.
func (c *Connectors) make(p *v1.AuthProvider, secret string) (connector.Refresher, error) {
	switch {
	case p.Spec.OIDC != nil:
		o := p.Spec.OIDC
		roots, err := pool(o.CABundle)
		if err != nil {
			return nil, err
		}
		return oidc.New(oidc.Config{
			URL: o.URL, ClientID: o.ClientID, ClientSecret: secret, Roots: roots, Scopes: o.Scopes, NameClaim: o.NameClaim, GroupsClaim: o.GroupsClaim,
			AllowedGroups: o.AllowedGroups, Prompt: o.Prompt, LowercaseNames: o.LowercaseNames,
		})
	case p.Spec.LDAP != nil:
		return c.makeLDAP(p.Spec.LDAP)
	case p.Spec.JWT != nil:
		roots, err := pool(p.Spec.JWT.Issuer.CertificateAuthority)
		if err != nil {
			return nil, err
		}
		return workload.New(p.Name, *p.Spec.JWT, roots, c.clock())
	}
	g := p.Spec.GitHub
	roots, err := pool(g.CABundle)
	if err != nil {
		return nil, err
	}
	return github.New(github.Config{
		URL: g.URL, ClientID: g.ClientID, ClientSecret: secret, Roots: roots, Organizations: g.Organizations, Teams: g.Teams, AnyUser: g.AnyUser,
	})
}

func (c *Connectors) makeLDAP(l *v1.LDAPProvider) (connector.Refresher, error) {
	roots, err := pool(l.CABundle)
	if err != nil {
		return nil, err
	}
	name := l.GroupSearch.NameAttribute
	if name == "" {
		name = "cn"
	}
	return ldap.New(ldap.Config{
		Servers: l.Servers, Roots: roots, BindDN: l.Bind.DN, AllowedGroups: l.AllowedGroups,
		BindPassword: func(ctx context.Context) (string, error) {
			_, value, err := c.read(ctx, l.Bind.PasswordSecret)
			return string(value), err
		},
		Users: ldap.Users{Base: l.UserSearch.Base, Filter: l.UserSearch.Filter, ID: l.UserSearch.IDAttribute, Name: l.UserSearch.NameAttribute},
		Groups: ldap.Groups{Source: ldap.Source(l.GroupSearch.Source), Base: l.GroupSearch.Base, Filter: l.GroupSearch.Filter, Name: name,
			Depth: int(l.GroupSearch.Depth)},
	})
}

// pool returns the authorities of a bundle, nil if there is none.
func pool(bundle string) (*x509.CertPool, error) {
	var roots *x509.CertPool
	if bundle == "" {
		return roots, nil
	}
	roots = x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(bundle)) {
		return nil, errors.New("the certificate authorities have no certificate in PEM")
	}
	return roots, nil
}
