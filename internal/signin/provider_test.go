// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/oauth"
)

// disabled and named return the results of a hub's indexes, read from the API server.
func (f *fixture) disabled(ctx context.Context, principal string) (bool, error) {
	var users v1.UserList
	err := f.Client.List(ctx, &users)
	return slices.ContainsFunc(users.Items,
		func(u v1.User) bool { return u.Spec.Principal == principal && u.Spec.Disabled }), err
}

func (f *fixture) named(groups []string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(groups), func(g string) bool { return !strings.HasSuffix(g, ":ops") }), nil
}

// openID is an OpenID provider for these tests, built with go-jose. It signs in everyone as the user that the test
// chooses.
type openID struct {
	*httptest.Server
	key *ecdsa.PrivateKey

	mu      sync.Mutex // guards what follows
	overage bool       // there are too many groups to name
	sub     string
	name    string
	groups  []string
	nonce   string // instead of the requested nonce
	refused bool
	down    bool
	asked   url.Values // of the last login
	refresh string     // the only refresh token that is valid
	padding string     // of refresh tokens
	asks    int        // how often it was asked for tokens
}

func newOpenID(t *testing.T) *openID {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &openID{key: key, sub: "1001", name: "alice", groups: []string{"ops", "others"}}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, code int, content any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(content)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize",
			"token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"ES256"}, "authorization_response_iss_parameter_supported": true})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k",
			Algorithm: "ES256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = r.URL.Query()
		back := url.Values{"state": {p.asked.Get("state")}, "iss": {p.URL}, "code": {"c-1"}}
		http.Redirect(w, r, p.asked.Get("redirect_uri")+"?"+back.Encode(), http.StatusSeeOther)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asks++
		if p.down {
			answer(w, http.StatusServiceUnavailable, map[string]string{})
			return
		}
		ok := !p.refused && (r.PostFormValue("grant_type") == "refresh_token" && r.PostFormValue("refresh_token") == p.refresh ||
			r.PostFormValue("code") == "c-1" && oauth.Digest(r.PostFormValue("code_verifier")) == p.asked.Get("code_challenge") && r.PostFormValue("redirect_uri") == p.asked.Get("redirect_uri"))
		if !ok {
			answer(w, http.StatusBadRequest, map[string]string{"error": "invalid_grant"})
			return
		}
		p.refresh = oauth2.GenerateVerifier() + p.padding
		answer(w, http.StatusOK, map[string]any{"access_token": "a", "token_type": "Bearer", "expires_in": 60,
			"refresh_token": p.refresh, "id_token": p.idToken(t)})
	})
	p.Server = httptest.NewTLSServer(mux)
	t.Cleanup(p.Close)
	return p
}

func (p *openID) idToken(t *testing.T) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: p.key},
		(&jose.SignerOptions{}).WithHeader("kid", "k"))
	if err != nil {
		t.Error(err)
		return ""
	}
	nonce := p.asked.Get("nonce")
	if p.nonce != "" {
		nonce = p.nonce
	}
	claims := map[string]any{"iss": p.URL, "aud": "drover", "sub": p.sub, "nonce": nonce, "preferred_username": p.name,
		"groups": p.groups,
		"iat":    time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	if p.overage {
		delete(claims, "groups")
		claims["_claim_names"] = map[string]string{"groups": "src1"}
		claims["_claim_sources"] = map[string]any{"src1": map[string]string{"endpoint": "https://graph.example.com/groups"}}
	}
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Error(err)
	}
	return raw
}

func (p *openID) set(change func(*openID)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

// provide adds an AuthProvider for an OpenID provider.
func (f *fixture) provide(p *openID) *v1.AuthProvider {
	f.t.Helper()
	f.Apply(f.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: "oidc",
		Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvider}},
		Data: map[string][]byte{"secret": []byte("s")}})
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	provider := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "p-" + f.namespace},
		Spec: v1.AuthProviderSpec{OIDC: &v1.OIDCProvider{
			URL: p.URL, CABundle: string(bundle), ClientID: "drover", ClientSecret: v1.ProviderSecret{Name: "oidc",
				Key: "secret"},
		}}}
	f.Apply(f.t, provider)
	f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), provider) })
	return provider
}

var linkForm = regexp.MustCompile(`<a href="([^"]+)">Sign in with`)

// throughProvider signs a browser in at the provider, up to the redirect to the hub's callback, which it does not
// follow.
func (f *fixture) throughProvider(p *openID, browser *http.Client, config *oauth2.Config, verifier string) string {
	f.t.Helper()
	page := f.send(browser, http.MethodGet, config.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier)), nil, nil)
	link := linkForm.FindStringSubmatch(page.body)
	if link == nil {
		f.t.Fatalf("the login page has no link to the provider: %d %s", page.code, page.body)
	}
	left := f.send(browser, http.MethodGet, f.server.URL+html.UnescapeString(link[1]), nil, nil)
	if left.code != http.StatusSeeOther || !strings.HasPrefix(left.header.Get("Location"), p.URL+"/authorize?") {
		f.t.Fatalf("the link leads to %d %s %s, not to the provider", left.code, left.header.Get("Location"), left.body)
	}
	upstream := &http.Client{Transport: p.Client().Transport, CheckRedirect: browser.CheckRedirect}
	return f.send(upstream, http.MethodGet, left.header.Get("Location"), nil, nil).header.Get("Location")
}

// signInAt signs a user in at the provider, and returns their tokens.
func (f *fixture) signInAt(p *openID) *oauth2.Token {
	f.t.Helper()
	config, verifier, browser := f.config(), oauth2.GenerateVerifier(), f.browser()
	config.Scopes = append(config.Scopes, "offline_access")
	done := f.send(browser, http.MethodGet, f.throughProvider(p, browser, config, verifier), nil, nil)
	back, err := url.Parse(done.header.Get("Location"))
	if err != nil || back.Query().Get("code") == "" || back.Query().Get("state") != "state" {
		f.t.Fatalf("the callback answers %d %s, and no code", done.code, done.body)
	}
	tokens, err := config.Exchange(context.WithValue(f.t.Context(), oauth2.HTTPClient, f.server.Client()),
		back.Query().Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		f.t.Fatal(err)
	}
	return tokens
}

// authenticated returns the user of a request with a token.
func (f *fixture) authenticated(raw string) (identity.Identity, error) {
	request := httptest.NewRequestWithContext(f.t.Context(), http.MethodGet, "/", nil)
	request.Header.Set("Authorization", "Bearer "+raw)
	return f.issuer.Authenticate(func(*http.Request) (identity.Identity, error) {
		f.t.Error("a token of this issuer came to the TokenReview")
		return identity.Identity{}, nil
	})(request)
}

// again refreshes a session.
func (f *fixture) again(refreshToken string) response {
	return f.send(f.browser(), http.MethodPost, f.server.URL+grant.PathToken,
		url.Values{"grant_type": {"refresh_token"}, "client_id": {"kubectl"}, "refresh_token": {refreshToken}}, nil)
}

func TestUserOfAProviderSignsInWithTheGroupsThatBindingsName(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	id, err := f.authenticated(f.signInAt(p).AccessToken)
	if err != nil {
		t.Fatal(err)
	}
	if id.User != provider.Name+":alice" || id.UID != "1001" ||
		!slices.Equal(id.Groups, []string{provider.Name + ":ops"}) {
		t.Errorf("the user is %+v, not alice of the provider with the one group that bindings name", id)
	}
	if !slices.Contains(id.Hub.Groups, provider.Name+":ops") || id.Hub.Username != id.User {
		t.Errorf("on the hub the user is %+v, without their group", id.Hub)
	}
}

// The user's client is told what a provider omits, until the provider no longer omits anything.
func TestUserLearnsThatTheProviderLeftTheirGroupsOut(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	p.set(func(p *openID) { p.overage = true })
	got := f.signInAt(p)
	notice, _ := got.Extra("drover_notice").(string)
	id, err := f.authenticated(got.AccessToken)
	if err != nil || id.User != provider.Name+":alice" || len(id.Groups) != 0 ||
		!strings.Contains(notice, "left out your groups") {
		t.Errorf("the user is %+v, %v with the notice %q, want alice without groups and why", id, err, notice)
	}
	p.set(func(p *openID) { p.overage = false })
	f.wait(time.Minute)
	again := f.again(got.RefreshToken)
	if again.code != http.StatusOK || strings.Contains(again.body, "drover_notice") {
		t.Errorf("the refresh gets the response %d %s, want no notice any more", again.code, again.body)
	}
}

func TestSwitchedOffPrincipalsAreRefusedAtOnce(t *testing.T) {
	for name, change := range map[string]func(*fixture, *v1.AuthProvider){
		"a disabled provider": func(f *fixture, p *v1.AuthProvider) {
			p.Spec.Disabled = true
			if err := f.Client.Update(t.Context(), p); err != nil {
				f.t.Fatal(err)
			}
		},
		"a deleted provider": func(f *fixture, p *v1.AuthProvider) {
			if err := f.Client.Delete(t.Context(), p); err != nil {
				f.t.Fatal(err)
			}
		},
		"a provider that was made again": func(f *fixture, p *v1.AuthProvider) {
			next := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: p.Spec}
			if err := f.Client.Delete(t.Context(), p); err != nil {
				f.t.Fatal(err)
			}
			f.Apply(f.t, next)
		},
		"a User for the principal": func(f *fixture, p *v1.AuthProvider) {
			off := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "off-" + f.namespace},
				Spec: v1.UserSpec{Principal: p.Name + ":alice", Disabled: true}}
			f.Apply(f.t, off)
			f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), off) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newFixture(t), newOpenID(t)
			provider := f.provide(p)
			tokens := f.signInAt(p)
			if _, err := f.authenticated(tokens.AccessToken); err != nil {
				t.Fatal(err)
			}
			change(f, provider)
			if id, err := f.authenticated(tokens.AccessToken); err == nil {
				t.Errorf("the token still is that of %s", id.User)
			}
			if r := f.again(tokens.RefreshToken); r.code != http.StatusBadRequest || !strings.Contains(r.body, "invalid_grant") {
				t.Errorf("the refresh token gets the response %d %s, not invalid_grant", r.code, r.body)
			}
		})
	}
}

func TestRefreshAsksTheProviderAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*openID)
		code   int
		groups int
		ended  bool
	}{
		"a group was taken":            {func(p *openID) { p.groups = nil }, http.StatusOK, 0, false},
		"the user is refused":          {func(p *openID) { p.refused = true }, http.StatusBadRequest, 0, true},
		"the name is another person's": {func(p *openID) { p.sub = "2002" }, http.StatusBadRequest, 0, true},
		"the user was renamed":         {func(p *openID) { p.name = "bob" }, http.StatusBadRequest, 0, true},
		"the provider is down":         {func(p *openID) { p.down = true }, http.StatusServiceUnavailable, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newFixture(t), newOpenID(t)
			f.provide(p)
			tokens := f.signInAt(p)
			f.wait(5 * time.Minute)
			p.set(tt.change)
			r := f.again(tokens.RefreshToken)
			if r.code != tt.code {
				t.Fatalf("the refresh gets the response %d %s, not %d", r.code, r.body, tt.code)
			}
			id, err := f.authenticated(tokens.AccessToken)
			if (err != nil) != tt.ended {
				t.Errorf("after the refresh the former token is %+v, %v; ended should be %t", id, err, tt.ended)
			}
			if tt.code == http.StatusServiceUnavailable {
				p.set(func(p *openID) { p.down = false })
				if r = f.again(tokens.RefreshToken); r.code != http.StatusOK {
					t.Fatalf("once the provider is back, the refresh gets the response %d %s", r.code, r.body)
				}
			}
			if tt.ended {
				return
			}
			var next struct {
				Access string `json:"access_token"`
			}
			if err := json.Unmarshal([]byte(r.body), &next); err != nil {
				t.Fatal(err)
			}
			if id, err = f.authenticated(next.Access); err != nil || len(id.Groups) != tt.groups {
				t.Errorf("the new token has the groups %v, not %d: %v", id.Groups, tt.groups, err)
			}
		})
	}
}

// An answer that an attacker sends to another browser begins no session there: CVE-2025-23389, CVE-2024-58267.
func TestProviderResponseIsAcceptedOnlyFromTheBrowserOfTheLogin(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	mine := f.browser()
	callback := f.throughProvider(p, mine, f.config(), oauth2.GenerateVerifier())
	if r := f.send(f.browser(), http.MethodGet, callback, nil, nil); r.code != http.StatusBadRequest ||
		r.header.Get("Location") != "" {
		t.Errorf("another browser gets the response %d %s", r.code, r.header.Get("Location"))
	}
	if r := f.send(mine, http.MethodGet, strings.Replace(callback, "iss=", "was=", 1), nil,
		nil); r.header.Get("Location") != "" {
		t.Errorf("an answer without the provider's iss gets the response %d %s", r.code, r.header.Get("Location"))
	}
	p.set(func(p *openID) { p.nonce = "another" })
	if r := f.send(mine, http.MethodGet, callback, nil, nil); r.header.Get("Location") != "" {
		t.Errorf("an ID token of another login gets the response %d %s", r.code, r.header.Get("Location"))
	}
	p.set(func(p *openID) { p.nonce = "" })
	if r := f.send(mine, http.MethodGet, callback, nil, nil); r.code != http.StatusSeeOther {
		t.Errorf("the browser that asked gets the response %d %s", r.code, r.body)
	}
}

func TestAmbiguousNamesCannotSignIn(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	for _, name := range []string{"system:admin", "a/b", "Alice", "аlice", "al\x00ice", "a b", strings.Repeat("a", 129),
		".alice"} {
		p.set(func(p *openID) { p.name = name })
		browser := f.browser()
		if r := f.send(browser, http.MethodGet, f.throughProvider(p, browser, f.config(), oauth2.GenerateVerifier()), nil,
			nil); r.code != http.StatusForbidden {
			t.Errorf("the name %q gets the response %d %s", name, r.code, r.header.Get("Location"))
		}
	}
}

func TestProviderCannotBePointedAtAnotherSecret(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	provider.Spec.OIDC.ClientSecret = v1.ProviderSecret{Name: KeysSecret, Key: KeyOfKeys}
	if err := f.Client.Update(t.Context(), provider); err != nil {
		t.Fatal(err)
	}
	if _, err := f.issuer.pages.Connectors.Get(t.Context(), provider); err == nil {
		t.Error("the provider gets the keys that sign tokens as its client secret")
	}
}
