// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/signin/workload"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// verifyLimit bounds how long a request waits for the issuer of its token.
	verifyLimit = 5 * time.Second
	// maxCredentialID bounds the ID of a token in audit logs.
	maxCredentialID = 256
)

// workloadUser is the user of a token that a provider's verifier has accepted, with what it was checked against.
type workloadUser struct {
	workload.User
	provider   string
	uid        types.UID
	generation int64
}

// said is what a token says of itself.
type said struct {
	Issuer   string           `json:"iss"`
	Audience jwt.Audience     `json:"aud"`
	Expiry   *jwt.NumericDate `json:"exp"`
}

// byWorkload returns the user of a token of an AuthProvider of workloads, and reports whether it is one. Such a token never goes on to the TokenReview: the hub's
// API server may trust the same issuer, and would give its user another name.
func (s *Server) byWorkload(r *http.Request, raw string, sum [sha256.Size]byte) (id identity.Identity, ours bool, err error) {
	ctx := r.Context()
	if known, ok := s.workloads.known.Get(sum); ok {
		m := known.(workloadUser) // only these are ever added
		if p, v, err := s.verifierOf(ctx, m.provider); err != nil {
			return identity.Identity{}, true, err
		} else if p.UID == m.uid && p.Generation == m.generation && s.now().Before(m.Expiry) && v.Holds(m.User) {
			id, err := s.asWorkload(r, p.Name, m.User)
			return id, true, err
		}
		s.workloads.known.Remove(sum)
	}
	claims, ok := unverified(raw)
	if !ok {
		return identity.Identity{}, false, nil
	}
	name, err := s.providerOf(ctx, claims)
	if name == "" && err == nil {
		return identity.Identity{}, false, nil
	}
	if err == nil {
		id, err = s.verifyWorkload(r, name, raw, sum, claims)
	}
	return id, true, err
}

// unverified returns what a token says of itself. It is worth nothing yet.
func unverified(raw string) (c said, ok bool) {
	parts := strings.Split(raw, ".")
	if len(parts) != 3 {
		return c, false
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || untrusted.JSON(payload, &c, untrusted.Small()) != nil {
		return said{}, false
	}
	return c, true
}

// providerOf returns the name of the AuthProvider whose issuer and audience a token names, and none if there is no such one. Those of the hub's own API server
// have another audience than any provider takes, whatever their issuer is called; one that a provider does take is refused, since its key is none of that issuer's.
func (s *Server) providerOf(ctx context.Context, claims said) (string, error) {
	var all v1.AuthProviderList
	if err := s.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return "", refusal.Unavailable("the hub cannot look up the token's provider at the moment; try again").Because(err)
	}
	found := ""
	for i := range all.Items {
		p := &all.Items[i]
		switch {
		case p.Spec.JWT == nil || !workload.Takes(p.Spec.JWT, claims.Issuer, claims.Audience):
		case found != "":
			return "", refusal.Unauthorized(fmt.Sprintf("AuthProviders %s and %s both take tokens of the issuer for the audience; give them different audiences", found, p.Name))
		default:
			found = p.Name
		}
	}
	return found, nil
}

// verifierOf returns a provider that is there and not disabled, and its verifier.
func (s *Server) verifierOf(ctx context.Context, name string) (*v1.AuthProvider, *workload.Verifier, error) {
	p, err := s.provider(ctx, s.client, name)
	if errors.Is(err, errStanding) {
		return nil, nil, refusal.Unauthorized("the provider " + name + " is disabled or no longer exists; ask an administrator of the hub")
	}
	if err == nil {
		var made connector.Refresher
		if made, err = s.providers.connectors.Of(ctx, p); err == nil {
			if v, ok := made.(*workload.Verifier); ok {
				return p, v, nil
			}
			return nil, nil, refusal.Unauthorized("the provider " + name + " takes no tokens of workloads")
		}
	}
	s.complain(err, "token of a workload not checked")
	return nil, nil, refusal.Unavailable("the hub cannot check tokens of the provider " + name + " at the moment; its condition says why").Because(err)
}

// verifyWorkload checks a token for the first time, or again after its provider has changed.
func (s *Server) verifyWorkload(r *http.Request, name, raw string, sum [sha256.Size]byte, claims said) (identity.Identity, error) {
	p, v, err := s.verifierOf(r.Context(), name)
	if err != nil {
		return identity.Identity{}, err
	}
	if claims.Expiry != nil && s.now().After(claims.Expiry.Time().Add(v.Lifetime())) { // no issuer is asked about the user again: what is open would go on for good
		return identity.Identity{}, refusal.Unauthorized("the token expired long ago").Because(identity.ErrEnded)
	}
	ctx, cancel := context.WithTimeout(r.Context(), verifyLimit)
	defer cancel()
	u, err := v.Verify(ctx, raw)
	switch {
	case errors.Is(err, connector.ErrRefused):
		return identity.Identity{}, refusal.Unauthorized("the hub does not accept the token of the provider " + name + ": " + err.Error()).Because(err)
	case err != nil:
		s.complain(err, "token of a workload not checked")
		return identity.Identity{}, refusal.Unavailable("the hub cannot ask the issuer of the token for its keys at the moment; try again").Because(err)
	}
	id, err := s.asWorkload(r, name, u)
	if err != nil {
		return identity.Identity{}, err
	}
	s.workloads.known.Add(sum, workloadUser{User: u, provider: name, uid: p.UID, generation: p.Generation}, u.Expiry.Sub(s.now()))
	return id, nil
}

// asWorkload makes a user of what a token says, if they are not switched off and the token is good for the request. Bindings may have changed since it was verified.
func (s *Server) asWorkload(r *http.Request, provider string, u workload.User) (identity.Identity, error) {
	unusable := func(err error) (identity.Identity, error) {
		return identity.Identity{}, refusal.Unauthorized("the token's user has a name that the hub can't pass on: " + err.Error()).Because(err)
	}
	principal, err := upstream.Principal(provider, u.Name)
	if err != nil {
		return unusable(err)
	}
	groups, err := s.providers.named(upstream.Groups(provider, u.Groups))
	if err != nil {
		return identity.Identity{}, refusal.Unavailable("the hub cannot look up bindings at the moment; try again").Because(err)
	}
	id, err := identity.Principal(principal, u.UID, fitting(groups)...)
	if err != nil {
		return unusable(err)
	}
	if u.ID != "" && len(u.ID) <= maxCredentialID && identity.HeaderSafe(u.ID) {
		credential := []string{"JTI=" + u.ID} // as API servers write it
		id.Extra, id.Hub.Extra = map[string][]string{identity.HubPrefix + credentialID: credential}, map[string]authenticationExtra{credentialID: credential}
	}
	if err := s.admit(r.Context(), id); err != nil {
		return identity.Identity{}, err
	}
	if err := s.workloads.audiences.Narrow(r, u.Audiences); err != nil {
		return identity.Identity{}, err
	}
	return id, nil
}
