// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/token"
)

const (
	grantCode    = "authorization_code"
	grantRefresh = "refresh_token"
	// tooMany is the error of a user who has begun too many sessions.
	tooMany = "temporarily_unavailable"
	// beginLimit bounds the writes that begin a session.
	beginLimit = 10 * time.Second
)

// grantTypes are those that the issuer takes.
var grantTypes = []string{grantCode, grantRefresh, grantDevice, grantExchange}

// granted is the response to what was exchanged for tokens.
type granted struct {
	Access  string `json:"access_token"`
	ID      string `json:"id_token,omitempty"`
	Refresh string `json:"refresh_token,omitempty"`
	Issued  string `json:"issued_token_type,omitempty"`
	Type    string `json:"token_type"`
	Expires int    `json:"expires_in"`
	Scope   string `json:"scope,omitempty"`
	// Notice is ours: what the user should know of their login. Clients ignore what they do not know (RFC 6749, section
	// 5.1).
	Notice string `json:"drover_notice,omitempty"`
}

// token gives a token for a code, a refresh token, a device code or another token.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	answer, err := s.exchange(w, r)
	if err != nil {
		s.writeProblem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "no-store", answer)
}

func (s *Server) exchange(w http.ResponseWriter, r *http.Request) (granted, error) {
	fields, err := form(w, r)
	if err != nil {
		return granted{}, err
	}
	if err := checkClient(r, fields); err != nil {
		return granted{}, err
	}
	grants := map[string]func(context.Context, *loaded, url.Values) (granted, error){grantCode: s.redeem, grantRefresh: s.refresh, grantDevice: s.redeemDevice, grantExchange: s.narrow}
	grant, known := grants[fields.Get("grant_type")]
	if !known {
		return granted{}, &protocolError{"unsupported_grant_type", "grant_type must be " + strings.Join(grantTypes, ", ")}
	}
	current, err := s.keys(r.Context())
	if err != nil {
		return granted{}, err
	}
	return grant(r.Context(), current, fields)
}

// grant makes the tokens of a session. A nonce belongs to the request of a login, and is not repeated at a refresh (OpenID Connect Core, section 12.2).
func (s *Server) grant(current *loaded, session *corev1.Secret, nonce, refresh string) (granted, error) {
	groups, err := groupsOf(session)
	if err != nil {
		return granted{}, err
	}
	signed, err := token.Sign(current.active, token.Claims{
		Issuer: s.issuer, Subject: principalOf(session), Audience: jwt.Audience{clientID}, Nonce: nonce, Authenticated: jwt.NewNumericDate(timeOf(session, keyBegun)),
		Session: strings.TrimPrefix(session.Name, SessionPrefix), UID: string(session.Data[keyUID]), Groups: groups,
	}, s.now())
	if err != nil {
		return granted{}, err
	}
	scope := scopeOpenID
	if refresh != "" {
		scope += " " + scopeOffline
	}
	return granted{
		Access: signed, ID: signed, Refresh: refresh, Type: "Bearer", Expires: int(token.Lifetime / time.Second),
		Scope: scope, Notice: string(session.Data[keyNotice]),
	}, nil
}

// writeProblem answers a client's request that failed.
func (s *Server) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	var problem *protocolError
	if !errors.As(err, &problem) {
		s.complain(err, "request of a client not served")
		w.Header().Set("Retry-After", "1")
		writeJSON(w, http.StatusServiceUnavailable, "no-store", map[string]string{"error": "temporarily_unavailable", "error_description": "the hub cannot do this at the moment; try again"})
		return
	}
	audit.From(r.Context()).Refused(problem.code)
	status := http.StatusBadRequest
	var wait *later
	switch {
	case problem.code == "invalid_client":
		status = http.StatusUnauthorized
		if r.Header.Get("Authorization") != "" { // RFC 6749, section 5.2. A browser that another site sends here must not ask its user for a password
			w.Header().Set("WWW-Authenticate", "Basic")
		}
	case errors.As(err, &wait):
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(int(wait.after/time.Second)))
	}
	writeJSON(w, status, "no-store", map[string]string{"error": problem.code, "error_description": problem.description})
}

// refusedCode is the one error for all that is wrong with a code.
func refusedCode() error {
	return &protocolError{"invalid_grant", "the code is not valid, has expired or was used before, or redirect_uri or code_verifier do not belong to it"}
}

// redeem gives tokens for a code.
func (s *Server) redeem(ctx context.Context, current *loaded, fields url.Values) (granted, error) {
	var c code
	if current.sealer.Open(purposeCode, fields.Get("code"), &c) != nil {
		return granted{}, refusedCode()
	}
	age, redirect := s.now().Sub(c.At), fields.Get("redirect_uri")
	if age > codeLifetime || age < -codeLifetime || redirect != c.Redirect || !proves(fields.Get("code_verifier"), c.Challenge) {
		return granted{}, refusedCode()
	}
	audit.From(ctx).Identified(audit.User{Name: c.principal(), UID: string(c.UID)}, nil)
	session, refresh, err := s.begin(ctx, current, c)
	if err != nil {
		return granted{}, err
	}
	return s.grant(current, session, c.Nonce, refresh)
}

// begin begins the session of a code, once, and returns it with its refresh token, if the client asked for one. A code that comes again was stolen, from or by
// the one who came first: the session is revoked.
func (s *Server) begin(ctx context.Context, current *loaded, c code) (*corev1.Secret, string, error) {
	err := s.stands(ctx, s.client, c.who)
	if errors.Is(err, errStanding) {
		return nil, "", refusedCode()
	} else if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit) // a client that hangs up leaves nothing half done
	defer cancel()
	now := s.now()
	session, known := c.session(s.name(SessionPrefix+c.ID), c.At, now.Add(token.Lifetime)), &corev1.Secret{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(session), known); err == nil {
		return nil, "", s.replayed(ctx, c, len(known.Data[keyRevoked]) > 0)
	} else if !apierrors.IsNotFound(err) {
		return nil, "", fmt.Errorf("read session of user %s: %w", c.principal(), err)
	}
	if err := s.makeRoom(ctx, session); err != nil {
		return nil, "", err
	}
	first := ""
	if c.Offline {
		given, state := refresh.New(c.ID, now)
		session.Data[keyKeys], session.Data[keyPassword] = []byte(current.uid), []byte(c.Password)
		if err := keep(session, state, s.bounds.until(c.At, now), now); err != nil {
			return nil, "", err
		}
		first = given.String()
	}
	if err := s.client.Create(ctx, session); apierrors.IsAlreadyExists(err) { // the cache did not have it yet
		return nil, "", s.replayed(ctx, c, false)
	} else if err != nil {
		return nil, "", fmt.Errorf("begin session of user %s: %w", c.principal(), err)
	}
	return session, first, nil
}

// replayed refuses a code that was redeemed before, and revokes its session unless that was done. One that comes again and again writes nothing.
func (s *Server) replayed(ctx context.Context, c code, revoked bool) error {
	if revoked {
		return refusedCode()
	}
	if err := s.revoke(ctx, c.ID); err != nil {
		return err
	}
	s.log.Info("a code was redeemed twice: its session is revoked", "user", c.principal())
	return refusedCode()
}

// checkClient takes the name of the client from the form, or from Basic with no password, as clients of OAuth 2.0 try it first.
func checkClient(r *http.Request, fields url.Values) error {
	problem := &protocolError{"invalid_client", fmt.Sprintf("client_id must be %q, without a secret", clientID)}
	id := fields.Get("client_id")
	if r.Header.Get("Authorization") != "" {
		user, secret, ok := r.BasicAuth()
		if !ok || secret != "" || id != "" && id != user {
			return problem
		}
		id = user
	}
	if id != clientID || fields.Get("client_secret") != "" {
		return problem
	}
	return nil
}

// proves reports whether a verifier is the one of a challenge (PKCE, RFC 7636).
func proves(verifier, challenge string) bool {
	if len(verifier) < 43 || len(verifier) > 128 || strings.ContainsFunc(verifier, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("-._~", c)
	}) {
		return false
	}
	return subtle.ConstantTimeCompare([]byte(digest(verifier)), []byte(challenge)) == 1
}
