// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package githubtest is a stand-in of GitHub for tests, modelled on what GitHub documents of its OAuth apps and its
// REST API.
//
// It answers as github.com does to the host api.<any>, and as an Enterprise Server does below /api/v3. It signs in,
// without a page, the account that Approve names.
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

// The OAuth app that the stand-in knows.
const (
	ClientID     = "Iv1.0123456789abcdef"
	ClientSecret = "0123456789abcdef0123456789abcdef01234567" // #nosec G101 -- of the stand-in
)

// maxTokens is the number of tokens of one user, app and scope: GitHub revokes the oldest for a further one.
const maxTokens = 10

// Account is an account of the stand-in.
type Account struct {
	ID    int64
	Login string
	// Kind is the account's type, User if it is empty.
	Kind string
	// Orgs are organizations with the state of membership, active or pending.
	Orgs map[string]string
	// Teams are organization/team.
	Teams     []string
	Suspended bool
	// SSO are organizations that require single sign-on, which the user has not used with the app: lists lack them.
	SSO []string
}

// grant is a code that was not redeemed yet.
type grant struct {
	id                         int64
	callback, challenge, scope string
}

// GitHub is the stand-in.
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

// Start starts a stand-in that ends with the test.
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

// Approve says which account signs in and which scopes it grants.
func (g *GitHub) Approve(id int64, scope string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.approved, g.scope = id, scope
}

// Revoke ends the tokens of an account, as the user does on the page of authorized apps.
func (g *GitHub) Revoke(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for token, of := range g.tokens {
		if of == id {
			delete(g.tokens, token)
		}
	}
}

// Answer has a handler answer the requests of the API and of the token's address instead, until it is called with nil.
func (g *GitHub) Answer(h http.HandlerFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = h
}

// Requests are the requests so far, without their bodies.
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

// authorize sends the browser back with a code, as after a click on Authorize.
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

// token redeems a code. Without an Accept header GitHub answers with a form, and with 200 to errors too.
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
