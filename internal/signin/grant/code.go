// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
)

// refusedCode returns the same error for every problem with a code.
func refusedCode() error {
	return &oauth.Error{Code: "invalid_grant", Description: "the code is not valid, has expired or was used before, " +
		"or redirect_uri or code_verifier do not match it"}
}

// redeem issues tokens for a code.
func (s *Server) redeem(ctx context.Context, keys *keyring.Keys, fields url.Values) (Granted, error) {
	var c session.Code
	if keys.Open(keyring.PurposeCode, fields.Get("code"), &c) != nil {
		return Granted{}, refusedCode()
	}
	age, redirect := s.Now().Sub(c.At), fields.Get("redirect_uri")
	if age > session.CodeLifetime || age < -session.CodeLifetime || redirect != c.Redirect ||
		!proves(fields.Get("code_verifier"), c.Challenge) {
		return Granted{}, refusedCode()
	}
	audit.From(ctx).Identified(c.Audited(), nil)
	begun, refresh, err := s.Begin(ctx, keys, c)
	if err != nil {
		return Granted{}, err
	}
	return s.give(keys, begun, c.Nonce, refresh)
}

// proves reports whether a verifier matches a challenge (PKCE, RFC 7636).
func proves(verifier, challenge string) bool {
	foreign := func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~", c)
	}
	if len(verifier) < 43 || len(verifier) > 128 || strings.ContainsFunc(verifier, foreign) {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(oauth.Digest(verifier)), []byte(challenge)) == 1
}

// Begin starts a session for a code. It returns the session, and a refresh token if the client requested one. If a code
// is redeemed twice, one of the two clients must have stolen it, so Begin revokes the session.
func (s *Server) Begin(ctx context.Context, keys *keyring.Keys, c session.Code) (session.Session, string, error) {
	none := session.Session{}
	err := s.Accounts.Standing(ctx, s.Accounts.Cache, c.Claims)
	if errors.Is(err, account.ErrNotStanding) {
		return none, "", refusedCode()
	} else if err != nil {
		return none, "", err
	}
	// continue even if the client disconnects
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), session.WriteLimit)
	defer cancel()
	if known, err := s.Sessions.Cached(ctx, c.ID); err == nil {
		return none, "", s.replayed(ctx, c, known.Revoked())
	} else if !apierrors.IsNotFound(err) {
		return none, "", fmt.Errorf("read session of user %s: %w", c.Principal(), err)
	}
	first, begun := "", s.Sessions.New(c.ID, c.Claims, c.At, s.Now().Add(token.Lifetime))
	if c.Redirect == s.Issuer+oauth.PathPage {
		begun.Data[session.KeyClient] = []byte(session.ClientPage)
	}
	if c.Offline {
		begun.Data[session.KeyKeys], begun.Data[session.KeyPassword] = []byte(keys.UID), []byte(c.Password)
		if first, err = s.Sessions.GiveRefresh(begun); err != nil {
			return none, "", err
		}
	}
	if err := s.Sessions.Store(ctx, begun); apierrors.IsAlreadyExists(err) { // the session was not in the cache yet
		return none, "", s.replayed(ctx, c, false)
	} else if err != nil {
		return none, "", fmt.Errorf("begin session of user %s: %w", c.Principal(), err)
	}
	return begun, first, nil
}

// replayed refuses a code that was already redeemed. It revokes the session, unless the session is already revoked. As
// a result, a code that is repeated causes only one write.
func (s *Server) replayed(ctx context.Context, c session.Code, revoked bool) error {
	if revoked {
		return refusedCode()
	}
	if err := s.Sessions.Revoke(ctx, c.ID); err != nil {
		return err
	}
	s.Log.Info("a code was redeemed twice, so its session is revoked", "user", c.Principal())
	return refusedCode()
}
