// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
)

// maxRedirect is the maximum length of a redirect URI, in bytes.
const maxRedirect = 256

// authorization is a validated authorization request.
type authorization struct {
	Redirect  string `json:"r"`
	State     string `json:"s"`
	Nonce     string `json:"n"`
	Challenge string `json:"c"`
	// Offline reports whether the client requested refresh tokens.
	Offline bool `json:"o,omitempty"`
	// Device is the user code of the device that requests authorization. Such a request has no redirect URI.
	Device string `json:"d,omitempty"`
	// Browser is the digest of the pageCookie of the requesting browser. At is the time of the request.
	Browser string    `json:"b"`
	At      time.Time `json:"t"`
}

// authorize shows the login page for an authorization request. It stores no object.
func (p *Pages) authorize(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		page.WriteError(w, http.StatusBadRequest, "The address is malformed. Start again in the terminal.")
		return
	}
	a, mayRedirect, problem := parseAuthorization(query, p.Issuer+oauth.PathPage)
	switch {
	case problem != nil && mayRedirect:
		p.redirect(w, r, a, url.Values{"error": {problem.Code}, "error_description": {problem.Description}})
		return
	case problem != nil:
		page.WriteError(w, http.StatusBadRequest,
			"The program that sent you here made a mistake: "+problem.Description+".")
		return
	}
	a.Browser, a.At = bind(w, r), p.Now()
	p.open(w, r, a)
}

func (p *Pages) open(w http.ResponseWriter, r *http.Request, a authorization) {
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	p.show(r.Context(), w, keys, a, failure{status: http.StatusOK})
}

// parseAuthorization validates a request from kubectl, or from the portal at the hub URL. If redirect is false, the
// error must not be sent to the redirect URI.
func parseAuthorization(q url.Values, hub string) (a authorization, redirect bool, problem *oauth.Error) {
	for name, values := range q {
		if len(values) > 1 {
			return a, false, oauth.Invalid("the parameter %.40q is given more than once", name)
		}
		if len(values[0]) > oauth.MaxField {
			return a, false, oauth.Invalid("the parameter %.40q is longer than %d bytes", name, oauth.MaxField)
		}
	}
	switch {
	case q.Get("client_id") != oauth.ClientID:
		return a, false, oauth.Invalid("client_id is not %q, the only client of this hub", oauth.ClientID)
	case q.Get("redirect_uri") != hub && !loopback(q.Get("redirect_uri")):
		return a, false, oauth.Invalid("redirect_uri is not of the form http://127.0.0.1:PORT/PATH, " +
			"http://[::1]:PORT/PATH or http://localhost:PORT/PATH, and not the hub's page")
	}
	scopes := strings.Fields(q.Get("scope"))
	a = authorization{
		Offline: slices.Contains(scopes, oauth.ScopeOffline), Redirect: q.Get("redirect_uri"), State: q.Get("state"),
		Nonce: q.Get("nonce"), Challenge: q.Get("code_challenge"),
	}
	switch {
	case q.Has("request") || q.Has("request_uri"):
		return a, true, &oauth.Error{Code: "request_not_supported", Description: "request objects are not supported"}
	case q.Get("response_type") != "code":
		return a, true, &oauth.Error{Code: "unsupported_response_type", Description: "response_type must be code"}
	case q.Has("response_mode") && q.Get("response_mode") != "query":
		return a, true, oauth.Invalid("response_mode must be query")
	case !slices.Contains(scopes, oauth.ScopeOpenID):
		return a, true, &oauth.Error{Code: "invalid_scope", Description: "scope must include openid"}
	case q.Get("code_challenge_method") != "S256":
		return a, true, oauth.Invalid("code_challenge_method must be S256 (PKCE, RFC 7636)")
	case !oauth.IsDigest(a.Challenge):
		return a, true, oauth.Invalid("code_challenge must be the base64url form of a SHA-256, %d characters",
			oauth.DigestLength)
	case a.State == "":
		return a, true, oauth.Invalid("state is required")
	case q.Get("prompt") == "none":
		return a, true, &oauth.Error{Code: "login_required", Description: "the user must sign in"}
	}
	return a, true, nil
}

// loopback reports whether a redirect URI points to the user's own computer (RFC 8252). It accepts only a form that all
// parsers interpret in the same way.
func loopback(raw string) bool {
	if len(raw) > maxRedirect || strings.ContainsFunc(raw, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || c == '\\'
	}) {
		return false
	}
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" || strings.Contains(raw, "#") {
		return false
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil || !slices.Contains([]string{"127.0.0.1", "::1", "localhost"}, host) {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0 && strconv.FormatUint(n, 10) == port && u.String() == raw
}
