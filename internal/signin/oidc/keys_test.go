// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// A hostile provider must not make the hub compute for an unlimited time, because no deadline interrupts it.
func TestKeysOfAProviderAreBounded(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keys := func(count, bits int) (set jose.JSONWebKeySet) {
		n := new(big.Int).SetBit(small.N, bits-1, 1)
		for range count {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: &rsa.PublicKey{N: n, E: 65537}, KeyID: "k", Algorithm: "RS256",
				Use: "sig"})
		}
		return set
	}
	for name, tt := range map[string]struct {
		keys jose.JSONWebKeySet
		ok   bool
	}{
		"usual":              {keys(3, 2048), true},
		"many":               {keys(64, 2048), true},
		"too many":           {keys(65, 2048), false},
		"too large, by jose": {keys(1, 16384), false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter,
				_ *http.Request) {
				_ = json.NewEncoder(w).Encode(tt.keys)
			}))
			defer server.Close()
			var set jose.JSONWebKeySet
			response, err := HTTPClient(server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs).Get(server.URL)
			if err == nil {
				defer response.Body.Close()
				err = json.NewDecoder(response.Body).Decode(&set)
			}
			if (err == nil) != tt.ok || tt.ok && len(set.Keys) != len(tt.keys.Keys) {
				t.Errorf("of %d keys %d come through: %v", len(tt.keys.Keys), len(set.Keys), err)
			}
		})
	}
}

// CVE-2024-58269: libraries quote responses of a provider, and a provider may repeat the request.
func TestErrorsContainNoToken(t *testing.T) {
	token := base64.RawURLEncoding.EncodeToString([]byte("a token of the provider"))
	if got := brief(errors.New("401 Unauthorized: unknown token "+token), token).Error(); strings.Contains(got, token) {
		t.Errorf("the error is %q", got)
	}
	if got := brief(errors.New("500: \x1b[2J\nforged line")).Error(); strings.ContainsAny(got, "\x1b\n") {
		t.Errorf("the error is %q", got)
	}
	if got := brief(errors.New("404 Not Found")).Error(); got != "404 Not Found" {
		t.Errorf("the error is %q", got)
	}
}

// A user may have an address that the provider has verified, and another address that it has not verified.
func TestVerificationAppliesToItsOwnAddressOnly(t *testing.T) {
	raw := func(text string) (claims map[string]json.RawMessage) {
		if err := json.Unmarshal([]byte(text), &claims); err != nil {
			t.Fatal(err)
		}
		return claims
	}
	c := &Connector{Config: Config{NameClaim: "email", GroupsClaim: "groups"}}
	for name, tt := range map[string]struct {
		signed, said string
		ok           bool
	}{
		"verified in the ID token":            {`{"email":"a@x","email_verified":true}`, `{"groups":[]}`, true},
		"verified by userinfo":                {`{"email":"a@x"}`, `{"email":"a@x","email_verified":true}`, true},
		"userinfo only":                       {`{}`, `{"email":"a@x","email_verified":true}`, true},
		"another one is verified by userinfo": {`{"email":"a@x"}`, `{"email":"b@x","email_verified":true}`, false},
		"userinfo says not which":             {`{"email":"a@x"}`, `{"email_verified":true}`, false},
		"not verified in the ID token": {
			`{"email":"a@x","email_verified":false}`, `{"email":"a@x","email_verified":true}`, false,
		},
		"the ID token says not which": {`{"email_verified":true}`, `{"email":"b@x","email_verified":false}`, false},
		"nor does userinfo verify it": {`{"email_verified":true}`, `{"email":"b@x"}`, false},
		"as a text":                   {`{"email":"a@x","email_verified":"true"}`, `{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := c.read(merged(raw(tt.signed), raw(tt.said))); (err == nil) != tt.ok {
				t.Errorf("the address is taken for verified: %v", err)
			}
		})
	}
}

// If a provider accepts a code or refresh token once and gets it with two styles, it treats the second request as
// theft.
func TestProviderIsAskedOnceWithItsAuthenticationMethod(t *testing.T) {
	for name, methods := range map[string][]string{"client_secret_basic": {"client_secret_post", "client_secret_basic"},
		"client_secret_post": {"client_secret_post", "private_key_jwt"}} {
		t.Run(name, func(t *testing.T) {
			asked, server := []string{}, (*httptest.Server)(nil)
			server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path != "/token" {
					_ = json.NewEncoder(w).Encode(map[string]any{"issuer": server.URL, "authorization_endpoint": server.URL + "/a",
						"token_endpoint": server.URL + "/token",
						"jwks_uri":       server.URL + "/k", "token_endpoint_auth_methods_supported": methods})
					return
				}
				way := "client_secret_post"
				if _, _, ok := r.BasicAuth(); ok {
					way = "client_secret_basic"
				}
				asked = append(asked, way)
				w.WriteHeader(http.StatusBadRequest)
				_ = json.NewEncoder(w).Encode(map[string]string{"error": "invalid_grant"})
			}))
			defer server.Close()
			c, err := New(Config{URL: server.URL, ClientID: "drover", ClientSecret: "s",
				Roots: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Refresh(t.Context(), connector.User{State: []byte("a refresh token")}); !errors.Is(err,
				connector.ErrRefused) || !slices.Equal(asked, []string{name}) {
				t.Errorf("the provider was asked by %q: %v", asked, err)
			}
		})
	}
}
