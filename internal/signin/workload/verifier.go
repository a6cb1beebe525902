// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload verifies tokens that other issuers issue to workloads, such as tokens from GitHub Actions, GitLab
// CI, and ServiceAccounts in another cluster.
package workload

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/oidc"
)

const (
	// Max is the maximum length of a token, in bytes.
	Max = 16 << 10
	// skew is the maximum accepted difference between the clocks of the issuer and the hub.
	skew = 30 * time.Second
	// defaultLifetime is the default maximum lifetime of tokens.
	defaultLifetime = time.Hour
	maxKeyID        = 256
)

// Verifier verifies the tokens of one provider. Create one with New. It is safe for concurrent use.
type Verifier struct {
	provider string
	spec     v1.JWTProvider
	lifetime time.Duration
	keys     *issuer
	rules    rules
	now      func() time.Time
}

var _ connector.Connector = (*Verifier)(nil)

// User is the user that a token identifies.
type User struct {
	// Name, UID and Groups do not contain the provider's prefix.
	Name, UID string
	Groups    []string
	// Audiences are the token's audiences. At least one of them is an audience that the provider accepts.
	Audiences []string
	// ID is the token's ID, or empty if the token has none.
	ID string
	// Expiry is the time when the token expires.
	Expiry time.Time
	// Key and Print identify the key that signed the token.
	Key, Print string
}

// New returns the verifier for a provider. It compiles the expressions, but does not query the issuer.
func New(provider string, spec v1.JWTProvider, roots *x509.CertPool, now func() time.Time) (*Verifier, error) {
	if len(spec.Issuer.Audiences) == 0 || slices.Contains(spec.Issuer.Audiences, "") {
		return nil, errors.New("issuer.audiences is empty, or has an empty entry")
	}
	compiled, err := compile(spec)
	if err != nil {
		return nil, err
	}
	discovery := spec.Issuer.DiscoveryURL
	if discovery == "" {
		discovery = strings.TrimSuffix(spec.Issuer.URL, "/") + "/.well-known/openid-configuration"
	}
	v := &Verifier{provider: provider, spec: spec, lifetime: defaultLifetime, rules: compiled, now: now}
	if spec.MaxTokenLifetime != nil {
		v.lifetime = spec.MaxTokenLifetime.Duration
	}
	v.keys = &issuer{url: spec.Issuer.URL, discovery: discovery, client: oidc.HTTPClient(roots), now: now}
	return v, nil
}

// Lifetime returns the maximum lifetime of tokens for the provider.
func (v *Verifier) Lifetime() time.Duration { return v.lifetime }

// Check reports whether the issuer publishes keys.
func (v *Verifier) Check(ctx context.Context) error { return v.keys.ask(ctx) }

// Takes reports whether a provider is responsible for tokens with the given issuer and audiences in their claims.
func Takes(spec *v1.JWTProvider, issuer string, audiences []string) bool {
	return issuer != "" && spec.Issuer.URL == issuer &&
		slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(spec.Issuer.Audiences, a) })
}

// Holds reports whether the issuer still publishes the key that signed a user's token, according to the hub's cache.
func (v *Verifier) Holds(u User) bool {
	keys, count := v.keys.look(u.Key)
	return count && slices.ContainsFunc(keys, func(key jose.JSONWebKey) bool { return thumbprint(key) == u.Print })
}

// algorithms are the accepted signature algorithms. They all use a private key that only the issuer has.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Verify returns the user of a token that is currently valid. It returns connector.ErrRefused for an invalid token.
// Other errors mean that the issuer could not be queried.
func (v *Verifier) Verify(ctx context.Context, raw string) (User, error) {
	standard, claims, u, err := v.signed(ctx, raw)
	if err != nil {
		return User{}, err
	}
	if err := v.current(standard); err != nil {
		return User{}, fmt.Errorf("%w: %w", connector.ErrRefused, err)
	}
	found, err := v.rules.user(ctx, v.provider, claims)
	if err != nil {
		return User{}, fmt.Errorf("%w: %w", connector.ErrRefused, err)
	}
	found.Key, found.Print, found.Expiry, found.ID, found.Audiences = u.Key, u.Print, standard.Expiry.Time(), standard.ID, standard.Audience
	return found, nil
}

// signed returns the claims of a token if the issuer signed it. by identifies the key that signed the token.
func (v *Verifier) signed(ctx context.Context, raw string) (standard jwt.Claims, claims map[string]any, by User,
	err error) {
	refuse := func(why string) (jwt.Claims, map[string]any, User, error) {
		return jwt.Claims{}, nil, User{}, fmt.Errorf("%w: %s", connector.ErrRefused, why)
	}
	if len(raw) > Max {
		return refuse(fmt.Sprintf("the token is longer than %d bytes", Max))
	}
	parsed, err := jwt.ParseSigned(raw, algorithms)
	if err != nil || len(parsed.Headers) != 1 {
		return refuse("the token is malformed, or has an algorithm that is not accepted")
	}
	header := parsed.Headers[0]
	if kind, given := header.ExtraHeaders[jose.HeaderType]; given {
		if text, ok := kind.(string); !ok || !strings.EqualFold(text, "JWT") {
			return refuse("the token's type is not JWT")
		}
	}
	if header.KeyID == "" || len(header.KeyID) > maxKeyID {
		return refuse("the token names no key")
	}
	keys, err := v.keys.withID(ctx, header.KeyID)
	if err != nil {
		return jwt.Claims{}, nil, User{}, err
	}
	why := "the token's algorithm does not match its key"
	for _, key := range keys {
		if key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if parsed.Claims(key.Key, &standard, &claims) == nil { // claim names must be exact and unique
			return standard, claims, User{Key: header.KeyID, Print: thumbprint(key)}, nil
		}
		why = "the token's signature does not verify, or its claims are malformed"
	}
	return refuse(why)
}

// current returns an error that explains why a token is currently not valid for the hub.
func (v *Verifier) current(c jwt.Claims) error {
	now := v.now()
	switch {
	case !Takes(&v.spec, c.Issuer, c.Audience):
		return errors.New("the token comes from another issuer, or is for another audience")
	case c.IssuedAt == nil || c.Expiry == nil || c.Subject == "":
		return errors.New("the token lacks sub, iat or exp")
	case !now.Before(c.Expiry.Time()):
		return errors.New("the token has expired")
	case now.Add(skew).Before(c.IssuedAt.Time()), c.NotBefore != nil && now.Add(skew).Before(c.NotBefore.Time()):
		return errors.New("the token was issued in the future; compare the clocks of the issuer and of the hub")
	case c.Expiry.Time().Sub(c.IssuedAt.Time()) > v.lifetime:
		return fmt.Errorf("the token lives for longer than %s", v.lifetime)
	}
	return nil
}
