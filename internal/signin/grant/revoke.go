// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
)

// revoke ends the session of a token (RFC 7009). Anyone who has a token may end its session. This is desirable even if
// the token was lost and another person found it.
func (s *Server) revoke(w http.ResponseWriter, r *http.Request) {
	serve(s, w, r, func(r *http.Request, fields url.Values) (struct{}, error) {
		return struct{}{}, s.end(r, fields) // RFC 7009 requires a success response for an invalid token
	})
}

func (s *Server) end(r *http.Request, fields url.Values) error {
	if fields.Get("token") == "" {
		return oauth.Invalid("token is required")
	}
	keys, err := s.Keyring.Current(r.Context())
	if err != nil {
		return err
	}
	if given, ok := refresh.Parse(fields.Get("token")); ok {
		return s.endByRefreshToken(r.Context(), given)
	}
	claims, _, err := token.Verify(fields.Get("token"), keys.Set, s.Issuer, accesstoken.Lifetime)
	if err != nil {
		return nil //nolint:nilerr // there is nothing to end
	}
	if accesstoken.ClusterOf(claims) != "" { // a token for one cluster has fewer rights than the session
		return &oauth.Error{Code: "unsupported_token_type",
			Description: "a token for one cluster cannot end the session; revoke a token of the session"}
	}
	audit.From(r.Context()).Identified(audit.User{Name: claims.Subject, UID: claims.UID}, nil)
	of, err := s.Sessions.Cached(r.Context(), claims.Session)
	settled := s.Now().Sub(claims.IssuedAt.Time()) > session.Settle
	if err == nil && of.Revoked() || apierrors.IsNotFound(err) && settled {
		return nil // repeated requests must not cause writes
	}
	return s.Sessions.Revoke(r.Context(), claims.Session)
}

// endByRefreshToken ends the session of a refresh token, even if the token has been rotated.
func (s *Server) endByRefreshToken(ctx context.Context, given refresh.Token) error {
	of, err := s.Sessions.Given(ctx, given)
	if errors.Is(err, session.ErrRefresh) || err == nil && of.Revoked() {
		return nil // there is nothing to end
	} else if err != nil {
		return err
	}
	audit.From(ctx).Identified(audit.User{Name: of.Principal(), UID: of.UID()}, nil)
	return s.Sessions.Revoke(ctx, given.Session)
}
