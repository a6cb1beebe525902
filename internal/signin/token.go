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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/token"
)

const (
	grantCode = "authorization_code"
	// tooMany is the error of a user who has begun too many sessions.
	tooMany = "temporarily_unavailable"
	// beginLimit bounds the writes that begin a session.
	beginLimit = 10 * time.Second
)

// granted is the response to a code that was redeemed.
type granted struct {
	Access  string `json:"access_token"`
	ID      string `json:"id_token"`
	Type    string `json:"token_type"`
	Expires int    `json:"expires_in"`
	Scope   string `json:"scope"`
}

// token gives a token for a code.
func (s *Server) token(w http.ResponseWriter, r *http.Request) {
	answer, err := s.redeem(w, r)
	if err != nil {
		s.writeProblem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "no-store", answer)
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
	switch problem.code {
	case "invalid_client":
		status = http.StatusUnauthorized
		w.Header().Set("WWW-Authenticate", "Basic")
	case tooMany:
		status = http.StatusTooManyRequests
		w.Header().Set("Retry-After", strconv.Itoa(int(replay/time.Second)))
	}
	writeJSON(w, status, "no-store", map[string]string{"error": problem.code, "error_description": problem.description})
}

// refusedCode is the one error for all that is wrong with a code.
func refusedCode() error {
	return &protocolError{"invalid_grant", "the code is not valid, has expired or was used before, or redirect_uri or code_verifier do not belong to it"}
}

func (s *Server) redeem(w http.ResponseWriter, r *http.Request) (granted, error) {
	fields, err := form(w, r)
	if err != nil {
		return granted{}, err
	}
	if err := checkClient(r, fields); err != nil {
		return granted{}, err
	}
	if fields.Get("grant_type") != grantCode {
		return granted{}, &protocolError{"unsupported_grant_type", "grant_type must be " + grantCode}
	}
	current, err := s.keys(r.Context())
	if err != nil {
		return granted{}, err
	}
	var c code
	if current.sealer.Open(purposeCode, fields.Get("code"), &c) != nil {
		return granted{}, refusedCode()
	}
	age, redirect := s.now().Sub(c.At), fields.Get("redirect_uri")
	if age > codeLifetime || age < -codeLifetime || redirect != c.Redirect || !proves(fields.Get("code_verifier"), c.Challenge) {
		return granted{}, refusedCode()
	}
	audit.From(r.Context()).Identified(audit.User{Name: v1.PrincipalPrefixLocal + c.User, UID: string(c.UID)}, nil)
	if err := s.begin(r.Context(), c); err != nil {
		return granted{}, err
	}
	signed, err := token.Sign(current.active, token.Claims{
		Issuer: s.issuer, Subject: v1.PrincipalPrefixLocal + c.User, Audience: jwt.Audience{clientID}, Nonce: c.Nonce, Session: c.ID, UID: string(c.UID),
	}, s.now())
	if err != nil {
		return granted{}, err
	}
	return granted{Access: signed, ID: signed, Type: "Bearer", Expires: int(token.Lifetime / time.Second), Scope: "openid"}, nil
}

// begin begins the session of a code, once. A code that comes again was stolen, from or by the one who came first: the session is revoked.
func (s *Server) begin(ctx context.Context, c code) error {
	user, err := s.standing(ctx, c.User, string(c.UID))
	if errors.Is(err, errStanding) {
		return refusedCode()
	} else if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit) // a client that hangs up leaves nothing half done
	defer cancel()
	now := s.now()
	session, known := newSession(s.name(SessionPrefix+c.ID), user, now, now.Add(token.Lifetime)), &corev1.Secret{}
	if err := s.client.Get(ctx, client.ObjectKeyFromObject(session), known); err == nil {
		return s.replayed(ctx, c, len(known.Data[keyRevoked]) > 0)
	} else if !apierrors.IsNotFound(err) {
		return fmt.Errorf("read session of user %s: %w", c.User, err)
	}
	if err := s.makeRoom(ctx, session); err != nil {
		return err
	}
	if err := s.client.Create(ctx, session); apierrors.IsAlreadyExists(err) { // the cache did not have it yet
		return s.replayed(ctx, c, false)
	} else if err != nil {
		return fmt.Errorf("begin session of user %s: %w", c.User, err)
	}
	return nil
}

// replayed refuses a code that was redeemed before, and revokes its session unless that was done. One that comes again and again writes nothing.
func (s *Server) replayed(ctx context.Context, c code, revoked bool) error {
	if revoked {
		return refusedCode()
	}
	if err := s.revoke(ctx, c.ID); err != nil {
		return err
	}
	s.log.Info("a code was redeemed twice: its session is revoked", "user", c.User)
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
