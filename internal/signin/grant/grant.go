// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package grant implements the token endpoint.
//
// The endpoint issues tokens in exchange for codes, refresh tokens and other tokens. Other endpoints list and end a
// user's sessions.
package grant

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/direct"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/internal/signin/upstream"
)

// Paths of the endpoints.
const (
	PathToken    = "/v1/auth/token"
	PathRevoke   = "/v1/auth/revoke"
	PathSessions = "/v1/auth/sessions"
)

const (
	grantCode     = "authorization_code"
	grantRefresh  = "refresh_token"
	grantDevice   = "urn:ietf:params:oauth:grant-type:device_code"
	grantExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
)

// contended is the number of times that a write to a session is retried if another replica has written the session.
const contended = 4

// Types returns the grant types that the issuer supports.
func Types() []string { return []string{grantCode, grantRefresh, grantDevice, grantExchange} }

// Options configures a Server. All fields are required.
type Options struct {
	Issuer       string
	Keyring      *keyring.Keyring
	Accounts     *account.Accounts
	Sessions     *session.Store
	Connectors   *upstream.Connectors
	AccessTokens *accesstoken.Verifier
	Own          *accesstoken.Own
	Direct       *direct.Access
	Now          func() time.Time
	Log          *quietlog.Log
}

// Server serves the token endpoint of one replica. It is safe for concurrent use.
type Server struct {
	Options

	reviewer  reviewer
	refreshes *limit.Gate // limits concurrent refreshes per session, for users from providers
	devices   deviceLimits
}

// New returns a Server.
func New(o Options) *Server {
	return &Server{
		Options: o, reviewer: reviewer{o.Accounts, o.Sessions, o.Connectors, o.Log},
		refreshes: refreshGate(), devices: newDeviceLimits(),
	}
}

// Register adds the endpoints to a mux.
func (s *Server) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+PathToken, s.token)
	mux.HandleFunc("POST "+PathRevoke, s.revoke)
	mux.HandleFunc("POST "+oauth.PathDevice, s.device)
	mux.HandleFunc("GET "+PathSessions, s.Own.Handler(http.StatusOK, s.listOwn))
	mux.HandleFunc("DELETE "+PathSessions+"/{id}", s.Own.Handler(http.StatusOK, s.endOwn))
}

// Granted is the response to a grant.
type Granted struct {
	Access  string `json:"access_token"`
	ID      string `json:"id_token,omitempty"`
	Refresh string `json:"refresh_token,omitempty"`
	Issued  string `json:"issued_token_type,omitempty"`
	Type    string `json:"token_type"`
	Expires int    `json:"expires_in"`
	Scope   string `json:"scope,omitempty"`
	// Notice is a message for the user about the login. This field is an extension to the standard. Clients ignore
	// unknown fields (RFC 6749, section 5.1).
	Notice string `json:"drover_notice,omitempty"`
}

// token issues tokens for a code, a refresh token, a device code or another token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) { serve(s, w, r, s.grant) }

// serve reads a client's form, and writes the response or the error.
func serve[T any](s *Server, w http.ResponseWriter, r *http.Request,
	respond func(*http.Request, url.Values) (T, error),
) {
	var response T
	fields, err := oauth.ClientForm(w, r)
	if err == nil {
		response, err = respond(r, fields)
	}
	if err != nil {
		oauth.Refuse(w, r, s.Log, err)
		return
	}
	oauth.WriteJSON(w, http.StatusOK, oauth.NoStore, response)
}

func (s *Server) grant(r *http.Request, fields url.Values) (Granted, error) {
	kind := fields.Get("grant_type")
	if !slices.Contains(Types(), kind) {
		return Granted{}, &oauth.Error{
			Code: "unsupported_grant_type", Description: "grant_type must be " + strings.Join(Types(), ", "),
		}
	}
	keys, err := s.Keyring.Current(r.Context())
	if err != nil {
		return Granted{}, err
	}
	return s.byType(kind)(r.Context(), keys, fields)
}

func (s *Server) byType(kind string) func(context.Context, *keyring.Keys, url.Values) (Granted, error) {
	switch kind {
	case grantCode:
		return s.redeem
	case grantRefresh:
		return s.Refresh
	case grantDevice:
		return s.redeemDevice
	}
	return s.exchange
}

// give issues the tokens of a session. A refresh does not repeat the nonce of the login (OpenID Connect Core, section
// 12.2).
func (s *Server) give(keys *keyring.Keys, of session.Session, nonce, refresh string) (Granted, error) {
	groups, err := of.Groups()
	if err != nil {
		return Granted{}, err
	}
	signed, err := token.Sign(keys.Active, token.Claims{
		Issuer: s.Issuer, Subject: of.Principal(), Audience: jwt.Audience{oauth.ClientID}, Nonce: nonce,
		Authenticated: jwt.NewNumericDate(of.Began()), Session: of.ID(), UID: of.UID(), Groups: groups,
	}, s.Now())
	if err != nil {
		return Granted{}, err
	}
	scope := oauth.ScopeOpenID
	if refresh != "" {
		scope += " " + oauth.ScopeOffline
	}
	return Granted{
		Access: signed, ID: signed, Refresh: refresh, Type: "Bearer", Expires: int(token.Lifetime / time.Second),
		Scope: scope, Notice: string(of.Data[session.KeyNotice]),
	}, nil
}

// orRefused returns err if the revocation failed, and the refusal otherwise. The response must not say that a session
// has ended unless the revocation has succeeded.
func orRefused(err, refusal error) error {
	if err != nil {
		return err
	}
	return refusal
}

// revoke ends the session of a token (RFC 7009). Anyone who has a token may end its session, including a person who
// found a lost token.
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
