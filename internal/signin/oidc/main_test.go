// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/signin/connector"
)

const (
	callback = "https://hub.example.com/v1/auth/callback/okta"
	// These values must not appear in any error.
	clientSecret = "the-secret-of-the-client"
	theCode      = "the-code-of-the-login"
	accessToken  = "the-access-token"
	refreshToken = "the-refresh-token"
)

// lying is an OpenID provider whose behavior a test controls. It covers cases that no real program has. internal/signin
// has tests with oidc-provider.
type lying struct {
	*httptest.Server
	key *ecdsa.PrivateKey

	mu sync.Mutex // guards the fields below
	// answers holds the handlers that replace the responses at paths.
	answers map[string]http.HandlerFunc
	// discovery, claims, tokens and userinfo change the responses.
	discovery, claims, tokens, userinfo func(map[string]any)
	// sign replaces the signing of claims.
	sign  func(claims map[string]any) string
	nonce string
	asked map[string]int // by path
	form  url.Values     // of the last token request
}

func newLying(t *testing.T) *lying {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &lying{key: key, asked: map[string]int{}}
	p.sign = func(claims map[string]any) string { return signed(t, jose.ES256, p.key, "k", claims) }
	p.Server = httptest.NewTLSServer(p)
	t.Cleanup(p.Close)
	return p
}

// ServeHTTP implements http.Handler.
func (p *lying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked[r.URL.Path]++
	answer := p.answers[r.URL.Path]
	var content any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		content = p.changed(p.discovery,
			map[string]any{"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
				"jwks_uri":          p.URL + "/keys",
				"userinfo_endpoint": p.URL + "/userinfo", "id_token_signing_alg_values_supported": []string{"ES256", "HS256",
					"none"}})
	case "/keys":
		content = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "k", Algorithm: "ES256",
			Use: "sig"}}}
	case "/token":
		_ = r.ParseForm() // malformed fields are ignored
		p.form = r.PostForm
		claims := map[string]any{"iss": p.URL, "aud": "drover", "sub": "1001", "nonce": p.nonce,
			"preferred_username": "alice", "groups": []string{"ops"},
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
		content = p.changed(p.tokens, map[string]any{"access_token": accessToken, "token_type": "Bearer", "expires_in": 60,
			"refresh_token": refreshToken,
			"id_token":      p.sign(p.changed(p.claims, claims))})
	case "/userinfo":
		content = p.changed(p.userinfo, map[string]any{"sub": "1001"})
	}
	p.mu.Unlock()
	if answer != nil {
		answer(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(content)
}

func (p *lying) changed(change func(map[string]any), content map[string]any) map[string]any {
	if change != nil {
		change(content)
	}
	return content
}

// times returns how often a path was requested.
func (p *lying) times(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[path]
}

// answer sets the handler for a path.
func (p *lying) answer(path string, f http.HandlerFunc) {
	if p.answers == nil {
		p.answers = map[string]http.HandlerFunc{}
	}
	p.answers[path] = f
}

func signed(t *testing.T, algorithm jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key},
		(&jose.SignerOptions{}).WithHeader("kid", id))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func connect(t *testing.T, p *lying, change func(*Config)) *Connector {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(p.Certificate())
	config := Config{URL: p.URL, ClientID: "drover", ClientSecret: clientSecret, Roots: roots}
	if change != nil {
		change(&config)
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	c.limit = 30 * time.Second // more than a busy machine takes
	c.client.Timeout = c.limit
	return c
}

// login signs alice in, as a browser and the hub do.
func login(t *testing.T, c *Connector, p *lying, answer url.Values) (connector.User, error) {
	t.Helper()
	address, private, err := c.Begin(t.Context(), callback, "state")
	if err != nil {
		return connector.User{}, err
	}
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.nonce = u.Query().Get("nonce")
	p.mu.Unlock()
	if answer == nil {
		answer = url.Values{"code": {theCode}}
	}
	return c.Finish(t.Context(), callback, private, answer)
}

// harmless fails the test if an error is long, has several lines, or contains a secret or a page.
func harmless(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	text := []byte(err.Error())
	for _, secret := range []string{clientSecret, theCode, accessToken, refreshToken, "<html>"} {
		if bytes.Contains(text, []byte(secret)) {
			t.Errorf("the error has a secret: %s", text)
		}
	}
	if len(text) > 1024 || bytes.ContainsAny(text, "\n\r\x1b\x00") {
		t.Errorf("the error has %d bytes, or control characters: %.2000q", len(text), text)
	}
}

// failed fails the test unless a provider could not be queried or refused the user.
func failed(t *testing.T, err error, refused bool) {
	t.Helper()
	harmless(t, err)
	if err == nil || errors.Is(err, connector.ErrRefused) != refused {
		t.Errorf("the error is %v; refused should be %t", err, refused)
	}
}
