// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/github"
	"github.com/drover-dev/drover/internal/signin/ldap"
	"github.com/drover-dev/drover/internal/signin/oidc"
	"github.com/drover-dev/drover/internal/signin/workload"
)

// Type describes a type of AuthProvider.
type Type struct {
	// Name is the value of status.type.
	Name string
	// Is reports whether a provider is of this type.
	Is func(*v1.AuthProvider) bool
	// Secret returns the reference to the Secret of a provider of this type, or nil if there is none.
	Secret func(*v1.AuthProvider) *v1.ProviderSecret
	// Connector is a nil pointer to a connector of this type. The interfaces that it implements determine how users sign
	// in.
	Connector connector.Connector
	// Build returns the connector of a provider.
	Build func(Parts) (connector.Connector, error)
}

// Parts holds the inputs for a connector.
type Parts struct {
	Provider *v1.AuthProvider
	// Secret is the value that Type.Secret refers to.
	Secret string
	// ReadSecret returns the current value of a Secret.
	ReadSecret func(context.Context, v1.ProviderSecret) (string, error)
	Now        func() time.Time
}

// Types returns the types of AuthProviders. A new type requires a field in the spec, a package with its connector, and
// an entry here.
func Types() []Type {
	return []Type{
		{
			Name:      "OIDC",
			Is:        func(p *v1.AuthProvider) bool { return p.Spec.OIDC != nil },
			Secret:    func(p *v1.AuthProvider) *v1.ProviderSecret { return &p.Spec.OIDC.ClientSecret },
			Connector: (*oidc.Connector)(nil), Build: buildOIDC,
		},
		{
			Name:      "LDAP",
			Is:        func(p *v1.AuthProvider) bool { return p.Spec.LDAP != nil },
			Secret:    func(p *v1.AuthProvider) *v1.ProviderSecret { return &p.Spec.LDAP.Bind.PasswordSecret },
			Connector: (*ldap.Connector)(nil), Build: buildLDAP,
		},
		{
			Name:      "GitHub",
			Is:        func(p *v1.AuthProvider) bool { return p.Spec.GitHub != nil },
			Secret:    func(p *v1.AuthProvider) *v1.ProviderSecret { return &p.Spec.GitHub.ClientSecret },
			Connector: (*github.Connector)(nil), Build: buildGitHub,
		},
		{
			Name:      "JWT",
			Is:        func(p *v1.AuthProvider) bool { return p.Spec.JWT != nil },
			Secret:    func(*v1.AuthProvider) *v1.ProviderSecret { return nil },
			Connector: (*workload.Verifier)(nil), Build: buildWorkload,
		},
	}
}

func buildOIDC(parts Parts) (connector.Connector, error) {
	o := parts.Provider.Spec.OIDC
	roots, err := pool(o.CABundle)
	if err != nil {
		return nil, err
	}
	return oidc.New(oidc.Config{
		URL: o.URL, ClientID: o.ClientID, ClientSecret: parts.Secret, Roots: roots, Scopes: o.Scopes,
		NameClaim: o.NameClaim, GroupsClaim: o.GroupsClaim, AllowedGroups: o.AllowedGroups, Prompt: o.Prompt,
		LowercaseNames: o.LowercaseNames,
	})
}

func buildGitHub(parts Parts) (connector.Connector, error) {
	g := parts.Provider.Spec.GitHub
	roots, err := pool(g.CABundle)
	if err != nil {
		return nil, err
	}
	return github.New(github.Config{
		URL: g.URL, ClientID: g.ClientID, ClientSecret: parts.Secret, Roots: roots, Organizations: g.Organizations,
		Teams: g.Teams, AnyUser: g.AnyUser,
	})
}

func buildWorkload(parts Parts) (connector.Connector, error) {
	spec := parts.Provider.Spec.JWT
	roots, err := pool(spec.Issuer.CertificateAuthority)
	if err != nil {
		return nil, err
	}
	return workload.New(parts.Provider.Name, *spec, roots, parts.Now)
}

func buildLDAP(parts Parts) (connector.Connector, error) {
	l := parts.Provider.Spec.LDAP
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
			return parts.ReadSecret(ctx, l.Bind.PasswordSecret)
		},
		Users: ldap.Users{
			Base: l.UserSearch.Base, Filter: l.UserSearch.Filter, ID: l.UserSearch.IDAttribute,
			Name: l.UserSearch.NameAttribute,
		},
		Groups: ldap.Groups{
			Source: ldap.Source(l.GroupSearch.Source), Base: l.GroupSearch.Base, Filter: l.GroupSearch.Filter,
			Name: name, Depth: int(l.GroupSearch.Depth),
		},
	})
}

// pool returns the certificate authorities in a bundle, or nil if the bundle is empty.
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
