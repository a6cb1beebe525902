// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// verifyLimit limits how long a request waits for the issuer of its token.
	verifyLimit = 5 * time.Second
	// maxCredentialID is the maximum length of a token ID in audit logs, in bytes.
	maxCredentialID = 256
	// maxVerified is the maximum number of verified tokens in the cache.
	maxVerified = 8192
	// credentialID is the extra field in which API servers record a user's credential.
	credentialID = "authentication.kubernetes.io/credential-id"
)

// Authenticator authenticates workloads with their tokens. It is safe for concurrent use.
type Authenticator struct {
	// Cache lists AuthProviders.
	Cache    client.Reader
	Accounts *account.Accounts
	// Connector returns the connector of an AuthProvider.
	Connector func(context.Context, *v1.AuthProvider) (connector.Connector, error)
	Audiences identity.Audiences
	Now       func() time.Time
	Log       *quietlog.Log

	verified *cache.LRUExpireCache // values of type verified, by the digest of the token
}

// NewAuthenticator returns an Authenticator with the given settings.
func NewAuthenticator(a Authenticator) *Authenticator {
	a.verified = cache.NewLRUExpireCache(maxVerified)
	return &a
}

// verified is a token that was accepted by a provider's verifier. The other fields identify the version of the
// provider.
type verified struct {
	User
	provider   string
	uid        types.UID
	generation int64
}

// unverified holds the claims that determine a token's provider. They are read before the token is verified.
type unverified struct {
	Issuer   string           `json:"iss"`
	Audience jwt.Audience     `json:"aud"`
	Expiry   *jwt.NumericDate `json:"exp"`
}

// Identify returns the user of a workload's token, and reports whether an AuthProvider is responsible for the token.
// Such a token must not be sent to a TokenReview. The hub's API server may trust the same issuer, but would return a
// different user name.
func (a *Authenticator) Identify(
	r *http.Request, raw string, sum [sha256.Size]byte,
) (id identity.Identity, ours bool, err error) {
	ctx := r.Context()
	if known, ok := a.verified.Get(sum); ok {
		t := known.(verified) // only values of this type are added
		if p, v, err := a.verifier(ctx, t.provider); err != nil {
			return identity.Identity{}, true, err
		} else if p.UID == t.uid && p.Generation == t.generation && a.Now().Before(t.Expiry) && v.Holds(t.User) {
			id, err := a.admit(r, p.Name, t.User)
			return id, true, err
		}
		a.verified.Remove(sum)
	}
	var claims unverified
	if untrusted.Claims(raw, &claims, untrusted.Small()) != nil {
		return identity.Identity{}, false, nil
	}
	name, err := a.provider(ctx, claims)
	if name == "" && err == nil {
		return identity.Identity{}, false, nil
	}
	if err == nil {
		id, err = a.verify(r, name, raw, sum, claims)
	}
	return id, true, err
}

// provider returns the name of the AuthProvider for a token's issuer and audience, or "" if there is none. Tokens from
// the hub's own API server have an audience that no provider should accept. Even if a provider accepts that audience,
// it refuses the token, because its issuer does not publish the key that signed the token.
func (a *Authenticator) provider(ctx context.Context, claims unverified) (string, error) {
	var all v1.AuthProviderList
	if err := a.Cache.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return "", refusal.Unavailable(
			"the hub cannot look up the token's provider at the moment; try again").Because(err)
	}
	found := ""
	for i := range all.Items {
		p := &all.Items[i]
		switch {
		case p.Spec.JWT == nil || !Takes(p.Spec.JWT, claims.Issuer, claims.Audience):
		case found != "":
			return "", refusal.Unauthorized(fmt.Sprintf("AuthProviders %s and %s both accept tokens of the issuer for "+
				"the audience; give them different audiences", found, p.Name))
		default:
			found = p.Name
		}
	}
	return found, nil
}

// verifier returns the named AuthProvider and its verifier. It returns an error if the provider is disabled.
func (a *Authenticator) verifier(ctx context.Context, name string) (*v1.AuthProvider, *Verifier, error) {
	p, err := a.Accounts.Provider(ctx, a.Cache, name)
	if errors.Is(err, account.ErrNotStanding) {
		return nil, nil, refusal.Unauthorized("the provider " + name +
			" is disabled or no longer exists; ask an administrator of the hub")
	}
	if err == nil {
		var made connector.Connector
		if made, err = a.Connector(ctx, p); err == nil {
			if v, ok := made.(*Verifier); ok {
				return p, v, nil
			}
			return nil, nil, refusal.Unauthorized("the provider " + name + " does not accept tokens of workloads")
		}
	}
	a.Log.Complain(err, "token of a workload not checked")
	return nil, nil, refusal.Unavailable("the hub cannot check tokens of the provider " + name +
		" at the moment; its condition says why").Because(err)
}

// verify verifies a token for the first time, or again after the token's provider has changed.
func (a *Authenticator) verify(
	r *http.Request, name, raw string, sum [sha256.Size]byte, claims unverified,
) (identity.Identity, error) {
	p, v, err := a.verifier(r.Context(), name)
	if err != nil {
		return identity.Identity{}, err
	}
	if claims.Expiry != nil && a.Now().After(claims.Expiry.Time().Add(v.Lifetime())) {
		// The hub no longer queries the issuer for this user. Without ErrEnded, requests that are already open would
		// never end.
		return identity.Identity{}, refusal.Unauthorized("the token expired long ago").Because(identity.ErrEnded)
	}
	ctx, cancel := context.WithTimeout(r.Context(), verifyLimit)
	defer cancel()
	u, err := v.Verify(ctx, raw)
	switch {
	case errors.Is(err, connector.ErrRefused):
		return identity.Identity{}, refusal.Unauthorized(
			"the hub does not accept the token of the provider " + name + ": " + err.Error()).Because(err)
	case err != nil:
		a.Log.Complain(err, "token of a workload not checked")
		return identity.Identity{}, refusal.Unavailable(
			"the hub cannot get the keys of the token's issuer at the moment; try again").Because(err)
	}
	id, err := a.admit(r, name, u)
	if err != nil {
		return identity.Identity{}, err
	}
	a.verified.Add(sum, verified{u, name, p.UID, p.Generation}, u.Expiry.Sub(a.Now()))
	return id, nil
}

// admit returns the user of a verified token. It refuses a disabled user, and a token that is not valid for the
// request. It looks up the groups each time, because bindings may have changed since the token was verified.
func (a *Authenticator) admit(r *http.Request, provider string, u User) (identity.Identity, error) {
	unusable := func(err error) (identity.Identity, error) {
		return identity.Identity{}, refusal.Unauthorized(
			"the token's user has a name that the hub can't pass on: " + err.Error()).Because(err)
	}
	principal, err := account.Principal(provider, u.Name)
	if err != nil {
		return unusable(err)
	}
	groups, err := a.Accounts.Named(account.Groups(provider, u.Groups))
	if err != nil {
		return identity.Identity{},
			refusal.Unavailable("the hub cannot look up bindings at the moment; try again").Because(err)
	}
	id, err := identity.Principal(principal, u.UID, account.Fitting(groups)...)
	if err != nil {
		return unusable(err)
	}
	if u.ID != "" && len(u.ID) <= maxCredentialID && identity.HeaderSafe(u.ID) {
		credential := []string{"JTI=" + u.ID} // in the format that API servers use
		id.Extra = map[string][]string{identity.HubPrefix + credentialID: credential}
		id.Hub.Extra = map[string]authenticationv1.ExtraValue{credentialID: credential}
	}
	if err := a.Accounts.Admit(r.Context(), id); err != nil {
		return identity.Identity{}, err
	}
	if err := a.Audiences.Narrow(r, u.Audiences); err != nil {
		return identity.Identity{}, err
	}
	return id, nil
}
