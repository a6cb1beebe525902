// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package githubtest is a fake GitHub server for tests.
//
// It implements GitHub's documentation of OAuth apps and of the REST API.
//
// It responds like github.com for the host api.<any>, and like an Enterprise Server below /api/v3. It signs in the
// account that Approve names, without showing a page.
package githubtest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The OAuth app that the fake server accepts.
const (
	ClientID     = "Iv1.0123456789abcdef"
	ClientSecret = "0123456789abcdef0123456789abcdef01234567" // #nosec G101 -- of the stand-in
)

// maxTokens is the maximum number of tokens for one user, app and scope. GitHub revokes the oldest token when another
// one is created.
const maxTokens = 10

// Account is an account on the fake server.
type Account struct {
	ID    int64
	Login string
	// Kind is the account's type. The default is User.
	Kind string
	// Orgs maps organizations to the state of the membership, active or pending.
	Orgs map[string]string
	// Teams are teams in the format organization/team.
	Teams     []string
	Suspended bool
	// SSO are organizations that require single sign-on and for which the user has not authorized the app. Lists omit
	// them.
	SSO []string
}

// grant is a code that has not been redeemed yet.
type grant struct {
	id                         int64
	callback, challenge, scope string
}

// GitHub is the fake server.
type GitHub struct {
	*httptest.Server
	mu       sync.Mutex
	accounts map[int64]Account
	approved int64
	scope    string
	grants   map[string]grant
	tokens   map[string]int64
	order    []string // of tokens, oldest first
	answer   http.HandlerFunc
	heard    []*http.Request
}

// Start starts a fake server that is stopped at the end of the test.
func Start(t testing.TB, accounts ...Account) *GitHub {
	t.Helper()
	g := &GitHub{accounts: map[int64]Account{}, grants: map[string]grant{}, tokens: map[string]int64{}, scope: "read:org"}
	for _, a := range accounts {
		g.accounts[a.ID] = a
	}
	g.Server = httptest.NewTLSServer(http.HandlerFunc(g.serve))
	t.Cleanup(g.Close)
	return g
}

// Set adds or replaces an account.
func (g *GitHub) Set(a Account) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.accounts[a.ID] = a
}

// Approve sets the account that signs in, and the scopes that it grants.
func (g *GitHub) Approve(id int64, scope string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.approved, g.scope = id, scope
}

// Revoke revokes the tokens of an account, like the user on the page of authorized apps.
func (g *GitHub) Revoke(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for token, of := range g.tokens {
		if of == id {
			delete(g.tokens, token)
		}
	}
}

// Answer makes a handler serve the requests to the API and to the token endpoint, until Answer is called with nil.
func (g *GitHub) Answer(h http.HandlerFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = h
}

// Requests returns the requests so far, without their bodies.
func (g *GitHub) Requests() []*http.Request {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.heard)
}

func (g *GitHub) serve(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	g.heard = append(g.heard, r.Clone(r.Context()))
	answer := g.answer
	g.mu.Unlock()
	path, enterprise := strings.CutPrefix(r.URL.Path, "/api/v3")
	api := enterprise || strings.HasPrefix(r.Host, "api.")
	switch {
	case !api && r.URL.Path == "/login/oauth/authorize":
		g.authorize(w, r)
	case answer != nil:
		answer(w, r)
	case api:
		g.api(w, r, path)
	case r.URL.Path == "/login/oauth/access_token":
		g.token(w, r)
	default:
		http.NotFound(w, r)
	}
}

// authorize redirects the browser back with a code, as after a click on Authorize.
func (g *GitHub) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	back, err := url.Parse(q.Get("redirect_uri"))
	if err != nil || q.Get("client_id") != ClientID {
		http.NotFound(w, r)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	to := url.Values{"state": {q.Get("state")}}
	if g.approved == 0 {
		to.Set("error", "access_denied")
		to.Set("error_description", "The user has denied your application access.")
	} else {
		code := rand.Text()[:20]
		g.grants[code] = grant{id: g.approved, callback: q.Get("redirect_uri"), scope: g.scope}
		if q.Get("code_challenge_method") == "S256" {
			one := g.grants[code]
			one.challenge = q.Get("code_challenge")
			g.grants[code] = one
		}
		to.Set("code", code)
	}
	back.RawQuery = to.Encode()
	w.Header().Set("Location", back.String())
	w.WriteHeader(http.StatusFound)
}

// token redeems a code. Without an Accept header, GitHub responds with a form, and with status 200 even for errors.
func (g *GitHub) token(w http.ResponseWriter, r *http.Request) {
	form := func(v url.Values) {
		w.Header().Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
		_, _ = w.Write([]byte(v.Encode()))
	}
	refuse := func(code string) {
		form(url.Values{"error": {code}, "error_description": {"see the docs"}, "error_uri": {"https://docs.github.com/x"}})
	}
	if r.Method != http.MethodPost || r.FormValue("client_id") != ClientID || r.FormValue("client_secret") != ClientSecret {
		refuse("incorrect_client_credentials")
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	one, ok := g.grants[r.FormValue("code")]
	delete(g.grants, r.FormValue("code"))
	sum := sha256.Sum256([]byte(r.FormValue("code_verifier")))
	switch {
	case !ok || one.challenge != "" && one.challenge != base64.RawURLEncoding.EncodeToString(sum[:]):
		refuse("bad_verification_code")
		return
	case one.callback != r.FormValue("redirect_uri"):
		refuse("redirect_uri_mismatch")
		return
	}
	token := "gho_" + rand.Text()
	g.tokens[token] = one.id
	g.order = append(g.order, token)
	g.retire(one.id)
	form(url.Values{"access_token": {token}, "scope": {one.scope}, "token_type": {"bearer"}})
}

// retire revokes the oldest tokens of an account that has too many.
func (g *GitHub) retire(id int64) {
	var of []string
	for _, token := range g.order {
		if g.tokens[token] == id {
			of = append(of, token)
		}
	}
	for len(of) > maxTokens {
		delete(g.tokens, of[0])
		of = of[1:]
	}
}
