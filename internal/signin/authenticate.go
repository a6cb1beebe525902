// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/sha256"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
)

// Authenticate returns a function that authenticates requests with script tokens, access tokens from this issuer, and
// workload tokens. It calls next for all other tokens. Tokens that are meant for this hub are never passed to next,
// because a TokenReview would return different user names.
func (s *Server) Authenticate(
	next func(*http.Request) (identity.Identity, error),
) func(*http.Request) (identity.Identity, error) {
	return func(r *http.Request) (identity.Identity, error) {
		raw, err := identity.Token(r)
		if err != nil {
			return identity.Identity{}, err
		}
		if scripttoken.Is(raw) {
			return s.scriptTokens.Identify(r, raw)
		}
		sum := sha256.Sum256([]byte(raw))
		if s.accessTokens.Claims(raw, sum) {
			return s.accessTokens.Identify(r, raw, sum)
		}
		if id, ours, err := s.workloads.Identify(r, raw, sum); ours {
			return id, err
		}
		return next(r)
	}
}

// Authorize returns a function that calls next unless the user is disabled. A request in progress may outlive its
// token, but not the user's right to sign in.
func (s *Server) Authorize(
	next func(context.Context, identity.Identity, types.NamespacedName) error,
) func(context.Context, identity.Identity, types.NamespacedName) error {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) error {
		if !strings.HasPrefix(id.User, identity.HubPrefix) {
			if err := s.accounts.Admit(ctx, id); err != nil {
				return err
			}
		}
		return next(ctx, id, cluster)
	}
}
