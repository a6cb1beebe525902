// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/token"
)

// revocation ends the session of a token (RFC 7009). Whoever has a token may end its session: a token that was found is one that is to end.
func (s *Server) revocation(w http.ResponseWriter, r *http.Request) {
	if err := s.end(w, r); err != nil {
		s.writeProblem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "no-store", struct{}{}) // also for a token that is not valid, as the RFC says
}

func (s *Server) end(w http.ResponseWriter, r *http.Request) error {
	fields, err := form(w, r)
	if err != nil {
		return err
	}
	if err := checkClient(r, fields); err != nil {
		return err
	}
	if fields.Get("token") == "" {
		return invalid("token is required")
	}
	current, err := s.keys(r.Context())
	if err != nil {
		return err
	}
	if given, ok := refresh.Parse(fields.Get("token")); ok {
		return s.endByRefreshToken(r.Context(), given)
	}
	claims, _, err := token.Verify(fields.Get("token"), current.set, s.issuer, lifetimeAtHub)
	if err != nil {
		return nil //nolint:nilerr // there is nothing to end
	}
	if (verified{Claims: claims}).cluster() != "" { // whoever it was given to has less than the session
		return &protocolError{"unsupported_token_type", "a token of one cluster ends no session; revoke one of the session"}
	}
	audit.From(r.Context()).Identified(audit.User{Name: claims.Subject, UID: claims.UID}, nil)
	session := &corev1.Secret{}
	err = s.client.Get(r.Context(), s.name(SessionPrefix+claims.Session), session)
	if err == nil && len(session.Data[keyRevoked]) > 0 || apierrors.IsNotFound(err) && s.now().Sub(claims.IssuedAt.Time()) > settle {
		return nil // it has ended: a token that comes again and again writes nothing
	}
	return s.revoke(r.Context(), claims.Session)
}

// endByRefreshToken ends the session of a refresh token, also of one that was rotated away.
func (s *Server) endByRefreshToken(ctx context.Context, given refresh.Token) error {
	session, err := s.sessionOf(ctx, given)
	if errors.Is(err, errRefresh) || err == nil && len(session.Data[keyRevoked]) > 0 {
		return nil // there is nothing to end
	} else if err != nil {
		return err
	}
	audit.From(ctx).Identified(audit.User{Name: principalOf(session), UID: string(session.Data[keyUID])}, nil)
	return s.revoke(ctx, given.Session)
}
