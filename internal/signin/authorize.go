// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// clientID is the one client: kubectl, with any plugin that signs in for it. It is public, so that it proves itself by PKCE only.
const clientID = "kubectl"

// Scopes. Others are ignored. A user is asked for their password at each login, which is what prompt=consent is meant to bring about for the second.
const (
	scopeOpenID  = "openid"
	scopeOffline = "offline_access"
)

// Bounds of the fields of requests, in bytes.
const (
	maxField    = 1 << 10
	maxRedirect = 256
	// challengeLen is that of a SHA-256 in base64url.
	challengeLen = 43
)

// authorization is a request to sign in, after it was checked.
type authorization struct {
	Redirect  string `json:"r"`
	State     string `json:"s"`
	Nonce     string `json:"n"`
	Challenge string `json:"c"`
	// Offline reports whether the client asked for refresh tokens.
	Offline bool `json:"o,omitempty"`
	// Device is the user code of the device that asks, if it is not a program beside the browser: then there is no redirect.
	Device string `json:"d,omitempty"`
	// Browser is the digest of the cookie of the browser that asked, and At the time.
	Browser string    `json:"b"`
	At      time.Time `json:"t"`
}

// protocolError is one of OAuth 2.0.
type protocolError struct {
	code        string
	description string
}

// Error implements error.
func (e *protocolError) Error() string { return e.code + ": " + e.description }

// later is a protocolError that has passed after some time.
type later struct {
	after time.Duration
	protocolError
}

// Unwrap returns the protocolError.
func (e *later) Unwrap() error { return &e.protocolError }

func invalid(format string, args ...any) *protocolError {
	return &protocolError{"invalid_request", fmt.Sprintf(format, args...)}
}

// parseAuthorization checks a request to sign in, of a program beside the browser or of the page of this URL. As long as redirect is false, the error must not be sent to the redirect URI.
func parseAuthorization(q url.Values, page string) (a authorization, redirect bool, problem *protocolError) {
	for name, values := range q {
		if len(values) > 1 {
			return a, false, invalid("the parameter %.40q is given more than once", name)
		}
		if len(values[0]) > maxField {
			return a, false, invalid("the parameter %.40q is longer than %d bytes", name, maxField)
		}
	}
	switch {
	case q.Get("client_id") != clientID:
		return a, false, invalid("client_id is not %q, the only client of this hub", clientID)
	case q.Get("redirect_uri") != page && !loopback(q.Get("redirect_uri")):
		return a, false, invalid("redirect_uri is not of the form http://127.0.0.1:PORT/PATH, http://[::1]:PORT/PATH or http://localhost:PORT/PATH, and not the hub's page")
	}
	scopes := strings.Fields(q.Get("scope"))
	a = authorization{Offline: slices.Contains(scopes, scopeOffline), Redirect: q.Get("redirect_uri"), State: q.Get("state"), Nonce: q.Get("nonce"), Challenge: q.Get("code_challenge")}
	switch {
	case q.Has("request") || q.Has("request_uri"):
		return a, true, &protocolError{"request_not_supported", "request objects are not supported"}
	case q.Get("response_type") != "code":
		return a, true, &protocolError{"unsupported_response_type", "response_type must be code"}
	case q.Has("response_mode") && q.Get("response_mode") != "query":
		return a, true, invalid("response_mode must be query")
	case !slices.Contains(scopes, scopeOpenID):
		return a, true, &protocolError{"invalid_scope", "scope must have openid"}
	case q.Get("code_challenge_method") != "S256":
		return a, true, invalid("code_challenge_method must be S256 (PKCE, RFC 7636)")
	case !isDigest(a.Challenge):
		return a, true, invalid("code_challenge must be the base64url form of a SHA-256, %d characters", challengeLen)
	case a.State == "":
		return a, true, invalid("state is required")
	case q.Get("prompt") == "none":
		return a, true, &protocolError{"login_required", "the user must sign in"}
	}
	return a, true, nil
}

func isDigest(s string) bool {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(s) == challengeLen && len(raw) == sha256.Size
}

// loopback reports whether a redirect URI leads to the user's own machine and is written in the one way that all parsers read alike (RFC 8252).
func loopback(raw string) bool {
	if len(raw) > maxRedirect || strings.ContainsFunc(raw, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '\\' }) {
		return false
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.Contains(raw, "#") {
		return false
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, host) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == port && u.String() == raw
}

// cookieName begins with __Host-, so that browsers take it only from this host, over TLS, for all paths (RFC 6265bis).
const cookieName = "__Host-drover-sign-in"

// pageLifetime is how long a login page may be open.
const pageLifetime = 10 * time.Minute

// authorize shows the login page. It leaves no object.
func (s *Server) authorize(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, http.StatusBadRequest, "The address is malformed. Begin again in the terminal.")
		return
	}
	a, mayRedirect, problem := parseAuthorization(query, s.issuer+PathPage)
	switch {
	case problem != nil && mayRedirect:
		s.redirect(w, r, a, url.Values{"error": {problem.code}, "error_description": {problem.description}})
		return
	case problem != nil:
		writeError(w, http.StatusBadRequest, "The program that sent you here made a mistake: "+problem.description+".")
		return
	}
	cookie := s.browser(w, r)
	a.Browser, a.At = digest(cookie), s.now()
	s.show(r.Context(), w, a, "", "", http.StatusOK)
}

// browser returns the browser's cookie, a new one if there is none, for as long as the page may be open: two open pages share one.
func (s *Server) browser(w http.ResponseWriter, r *http.Request) string {
	var raw [sha256.Size]byte
	_, _ = rand.Read(raw[:]) // never fails
	value := base64.RawURLEncoding.EncodeToString(raw[:])
	if cookie, err := r.Cookie(cookieName); err == nil && isDigest(cookie.Value) {
		value = cookie.Value
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(pageLifetime.Seconds())})
	return value
}

// show writes the login page for a request.
func (s *Server) show(ctx context.Context, w http.ResponseWriter, a authorization, user, message string, code int) {
	keys, err := s.keys(ctx)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	sealed, err := keys.sealer.Seal(purposePage, a)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	forms, links, err := s.choices(ctx)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	page{request: sealed, asks: s.asks(a), user: user, message: message, redirect: a.Redirect, forms: forms, links: links}.write(w, code)
}

// redirect sends the browser back to the client, with its state and the issuer's name (RFC 9207).
func (s *Server) redirect(w http.ResponseWriter, r *http.Request, a authorization, result url.Values) {
	result.Set("state", a.State)
	result.Set("iss", s.issuer)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, a.Redirect+"?"+result.Encode(), http.StatusSeeOther)
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
