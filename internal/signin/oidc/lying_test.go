// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// claim sets one claim of ID tokens, or removes it if value is nil.
func claim(name string, value any) func(*testing.T, *lying) {
	return func(_ *testing.T, p *lying) {
		p.claims = func(claims map[string]any) {
			if claims[name] = value; value == nil {
				delete(claims, name)
			}
		}
	}
}

// configured sets one field of the provider's configuration.
func configured(name string, value func(*lying) any) func(*testing.T, *lying) {
	return func(_ *testing.T, p *lying) { p.discovery = func(all map[string]any) { all[name] = value(p) } }
}

func text(value any) func(*lying) any { return func(*lying) any { return value } }

// body responds at a path with a body.
func body(path string, code int, kind, content string) func(*testing.T, *lying) {
	return func(_ *testing.T, p *lying) {
		p.answer(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = w.Write([]byte(content))
		})
	}
}

// userinfo responds at the userinfo endpoint, which is requested for groups.
func userinfo(code int, content string) func(*testing.T, *lying) {
	return func(t *testing.T, p *lying) {
		claim("groups", nil)(t, p)
		body("/userinfo", code, typeJSON, content)(t, p)
	}
}

const (
	configuration = "/.well-known/openid-configuration"
	typeJSON      = "application/json"
)

// liars are providers whose answers must not sign in anyone.
func liars() map[string]func(*testing.T, *lying) {
	all := map[string]func(*testing.T, *lying){
		"the configuration is of another issuer":      configured("issuer", text("https://other.example.com")),
		"the configuration is of the issuer with a /": configured("issuer", func(p *lying) any { return p.URL + "/" }),
		"the configuration has no issuer":             configured("issuer", text("")),
		"the issuer is not a string":                  configured("issuer", text(map[string]any{})),
		"the token endpoint is without TLS":           configured("token_endpoint", text("http://127.0.0.1/token")),
		"the token endpoint has a user": configured("token_endpoint",
			func(p *lying) any { return strings.Replace(p.URL, "//", "//a:b@", 1) + "/token" }),
		"the token endpoint is relative": configured("token_endpoint", text("/token")),
		"the token endpoint is missing":  configured("token_endpoint", text("")),
		"the keys are in a file":         configured("jwks_uri", text("file:///etc/passwd")),
		"the userinfo is without TLS":    configured("userinfo_endpoint", text("http://127.0.0.1/userinfo")),
		"the login page is a script":     configured("authorization_endpoint", text("javascript:alert(1)")),
		"the configuration is a page":    body(configuration, 200, "text/<html>", "<html>sign in</html>"),
		"the configuration is null":      body(configuration, 200, typeJSON, "null"),
		"the configuration is a list":    body(configuration, 200, typeJSON, "[]"),
		"the configuration is nested without end": body(configuration, 200, typeJSON,
			strings.Repeat(`{"issuer":`, 100_000)),
		"the configuration is large": configured("more", text(strings.Repeat("a", 2*maxBody))),
		"the userinfo is large": userinfo(200,
			`{"sub":"1001","more":"`+strings.Repeat("a", 2*maxBody)+`"}`),
		"the userinfo repeats the token":                userinfo(401, "<html>unknown token "+accessToken),
		"the userinfo is a page that repeats the token": userinfo(200, "<html>"+accessToken),
		"the userinfo is null":                          userinfo(500, "null"),
		"the configuration is an error of many lines": body(configuration, 500, "text/plain",
			"<html>"+strings.Repeat("panic\n\x1b[31m", 1000)),
		"the token is of another issuer":         claim("iss", "https://other.example.com"),
		"the token is for another client":        claim("aud", "other"),
		"the token is for several others":        claim("aud", []string{"other", "another"}),
		"the token was issued to another client": claim("azp", "other"),
		"the azp is a list":                      claim("azp", []string{"drover"}),
		"the token has no audience":              claim("aud", nil),
		"the token is of another login":          claim("nonce", "another"),
		"the token has no nonce":                 claim("nonce", nil),
		"the nonce is a number":                  claim("nonce", 1),
		"the token is of another access token":   claim("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"),
		"the token has no sub":                   claim("sub", nil),
		"the sub is a number":                    claim("sub", 1001),
		"the token has expired":                  claim("exp", time.Now().Add(-time.Hour).Unix()),
		"the token has no end":                   claim("exp", nil),
		"the token is not valid yet":             claim("nbf", time.Now().Add(time.Hour).Unix()),
		"the name is a list":                     claim("preferred_username", []string{"alice"}),
		"the name is empty":                      claim("preferred_username", ""),
		"the groups are numbers":                 claim("groups", []int{1}),
		"the groups are an object":               claim("groups", map[string]string{"ops": "ops"}),
		"a group is a list":                      claim("groups", []any{[]string{"ops"}}),
		"an address is long": configured("token_endpoint",
			text("https://127.0.0.1:1/"+strings.Repeat("a", 8<<10))),
		"the keys are a page": body("/keys", 200, "text/html", "<html>"),
		"the keys are large": body("/keys", 200, typeJSON,
			`{"keys":["`+strings.Repeat("a", 8<<20)+`"]}`),
		"the keys are none": body("/keys", 200, typeJSON, `{"keys":[]}`),
		"the keys are junk": body("/keys", 200, typeJSON,
			`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA","kid":"k"}]}`),
		"the keys are symmetric": body("/keys", 200, typeJSON,
			`{"keys":[{"kty":"oct","k":"AAAA","kid":"k"}]}`),
		"there are no keys":                             body("/keys", 404, "text/plain", "no"),
		"the tokens are a page that repeats the secret": body("/token", 200, "text/html", clientSecret+theCode),
		"the error repeats the code": body("/token", 400, typeJSON,
			`{"error":"`+theCode+`","error_description":"`+clientSecret+`"}`),
		"the tokens are large": body("/token", 200, typeJSON,
			`{"access_token":"`+strings.Repeat("a", 8<<20)+`"}`),
		"there is no ID token": func(_ *testing.T,
			p *lying) {
			p.tokens = func(all map[string]any) { delete(all, "id_token") }
		},
		"the ID token is an object": func(_ *testing.T, p *lying) {
			p.tokens = func(all map[string]any) { all["id_token"] = map[string]any{"a": 1} }
		},
		"the ID token is of three dots": func(_ *testing.T,
			p *lying) {
			p.tokens = func(all map[string]any) { all["id_token"] = "..." }
		},
		"there is no access token": func(_ *testing.T,
			p *lying) {
			p.tokens = func(all map[string]any) { delete(all, "access_token") }
		},
		"the refresh token is long": func(_ *testing.T, p *lying) {
			p.tokens = func(all map[string]any) { all["refresh_token"] = strings.Repeat("r", maxState+1) }
		},
	}
	for name, lie := range signatures() {
		all[name] = lie
	}
	return all
}

// overage changes claims as Microsoft's Entra ID does for users in more than 200 groups.
func overage(claims map[string]any) {
	delete(claims, "groups")
	claims["_claim_names"] = map[string]string{"groups": "src1"}
	claims["_claim_sources"] = map[string]any{"src1": map[string]string{"endpoint": "https://169.254.169.254/groups"}}
}

// signatures are ID tokens that were not signed with the provider's keys.
func signatures() map[string]func(*testing.T, *lying) {
	return map[string]func(*testing.T, *lying){
		"the token is signed with the client's secret": func(t *testing.T, p *lying) {
			p.sign = func(claims map[string]any) string {
				return signed(t, jose.HS256, []byte(clientSecret+"-and-more-of-it-for-its-length"), "k", claims)
			}
		},
		"the token is signed with the public key": func(t *testing.T, p *lying) {
			public, err := x509.MarshalPKIXPublicKey(p.key.Public())
			if err != nil {
				t.Fatal(err)
			}
			p.sign = func(claims map[string]any) string { return signed(t, jose.HS256, public, "k", claims) }
		},
		"the token is signed with a key of its own": func(t *testing.T, p *lying) {
			foreign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			p.sign = func(claims map[string]any) string { return signed(t, jose.ES256, foreign, "k", claims) }
		},
		"the token names a key that is not there": func(t *testing.T, p *lying) {
			p.sign = func(claims map[string]any) string { return signed(t, jose.ES256, p.key, "l", claims) }
		},
		"the token is not signed": func(t *testing.T, p *lying) {
			p.sign = func(claims map[string]any) string {
				raw, err := json.Marshal(claims)
				if err != nil {
					t.Fatal(err)
				}
				return "eyJhbGciOiJub25lIn0." + base64url(raw) + "."
			}
		},
		"the token was changed after it was signed": func(t *testing.T, p *lying) {
			p.sign = func(claims map[string]any) string {
				parts := strings.Split(signed(t, jose.ES256, p.key, "k", claims), ".")
				claims["preferred_username"] = "root"
				raw, err := json.Marshal(claims)
				if err != nil {
					t.Fatal(err)
				}
				return parts[0] + "." + base64url(raw) + "." + parts[2]
			}
		},
	}
}

// CVE-2022-29165, CVE-2023-22482: tokens that are not signed, or that are for another client.
func TestLyingProviderSignsNoUserIn(t *testing.T) {
	for name, lie := range liars() {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			lie(t, p)
			_, err := login(t, connect(t, p, nil), p, nil)
			failed(t, err, false)
		})
	}
	p := newLying(t)
	u, err := login(t, connect(t, p, nil), p, nil)
	if err != nil || u.ID != "1001" || u.Name != "alice" || len(u.Groups) != 1 || string(u.State) != refreshToken {
		t.Errorf("the provider that does not lie says %+v, %v", u, err)
	}
}

// This provider signs in another user, or no user, at a refresh.
func TestLyingProviderChangesNoUserAtARefresh(t *testing.T) {
	for name, tt := range map[string]struct {
		lie     func(*testing.T, *lying)
		refused bool
	}{
		"the token is of another user":    {claim("sub", "2002"), true},
		"the token is for another client": {claim("aud", "other"), false},
		"the token was issued to another": {claim("azp", "other"), false},
		"the token has expired":           {claim("exp", time.Now().Add(-time.Hour).Unix()), false},
		"the token is of another issuer":  {claim("iss", "https://other.example.com"), false},
		"the token is of another access":  {claim("at_hash", "AAAAAAAAAAAAAAAAAAAAAA"), false},
		"the refresh token is refused": {
			body("/token", 400, typeJSON, `{"error":"invalid_grant","error_description":"`+refreshToken+`"}`), true,
		},
		"the client's secret is refused":      {body("/token", 401, typeJSON, `{"error":"invalid_client"}`), false},
		"a proxy answers":                     {body("/token", 502, "text/html", "<html>"+refreshToken), false},
		"the token is without the user's sub": {claim("sub", nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			c := connect(t, p, nil)
			u, err := login(t, c, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			p.mu.Lock()
			tt.lie(t, p)
			p.mu.Unlock()
			_, err = c.Refresh(t.Context(), u)
			failed(t, err, tt.refused)
		})
	}
}

// RFC 9207, and errors in answers.
func TestForeignResponsesAreRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		names   bool // whether the provider says that it names itself
		answer  url.Values
		refused bool
	}{
		"of another issuer": {
			false, url.Values{"code": {theCode}, "iss": {"https://other.example.com"}}, false,
		},
		"of none, where one is promised": {true, url.Values{"code": {theCode}}, false},
		"of an empty one":                {false, url.Values{"code": {theCode}, "iss": {""}}, false},
		"an error of another issuer": {
			true, url.Values{"error": {"access_denied"}, "iss": {"https://other.example.com"}}, false,
		},
		"an error that is a text":             {false, url.Values{"error": {"\x1b[31m\n" + theCode}}, false},
		"an error with a code":                {false, url.Values{"error": {"access_denied"}, "code": {theCode}}, true},
		"nothing":                             {false, url.Values{"state": {"state"}}, false},
		"a code that is longer than any":      {false, url.Values{"code": {strings.Repeat("c", maxCode+1)}}, false},
		"the user has not let the hub in":     {false, url.Values{"error": {"access_denied"}}, true},
		"the provider is busy":                {false, url.Values{"error": {"temporarily_unavailable"}}, false},
		"the user would have to do something": {false, url.Values{"error": {"interaction_required"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			p.discovery = func(all map[string]any) { all["authorization_response_iss_parameter_supported"] = tt.names }
			_, err := login(t, connect(t, p, nil), p, tt.answer)
			failed(t, err, tt.refused)
			if n := p.times("/token"); n != 0 {
				t.Errorf("the code was sent to the provider %d times", n)
			}
		})
	}
}

// TestCredentialsOfALoginGoToNoOtherHost covers CVE-2021-36778, where a redirect took credentials to another host.
func TestCredentialsOfALoginGoToNoOtherHost(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	for _, path := range []string{configuration, "/keys", "/token", "/userinfo"} {
		for _, code := range []int{http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect} {
			t.Run(fmt.Sprintf("a redirect %d of %s", code, path), func(t *testing.T) {
				p := newLying(t)
				p.claims = func(all map[string]any) { delete(all, "groups") } // so that userinfo is asked
				p.answer(path, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, code) })
				_, err := login(t, connect(t, p, func(c *Config) { c.Roots.AddCert(other.Certificate()) }), p, nil)
				failed(t, err, false)
				if p.times(path) == 0 {
					t.Error("the provider was not asked")
				}
			})
		}
	}
	p := newLying(t)
	p.claims = func(all map[string]any) {
		overage(all)
		all["_claim_sources"] = map[string]any{"src1": map[string]string{"endpoint": other.URL}}
	}
	if u, err := login(t, connect(t, p, func(c *Config) { c.Roots.AddCert(other.Certificate()) }), p, nil); err != nil ||
		len(u.Groups) != 0 {
		t.Errorf("the user is %+v, %v, want them without the groups that are elsewhere", u, err)
	}
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("the other host was asked %d times", n)
	}
}

// CVE-2022-31105: the certificate of a provider is not verified.
func TestProviderWithAnUntrustedCertificateGetsNoRequest(t *testing.T) {
	p := newLying(t)
	c := connect(t, p, func(c *Config) { c.Roots = x509.NewCertPool() })
	_, err := login(t, c, p, nil)
	failed(t, err, false)
	failed(t, c.Check(t.Context()), false)
	if n := p.times(configuration); n != 0 {
		t.Errorf("it was asked %d times", n)
	}
}

func TestRequestToASlowProviderTimesOut(t *testing.T) {
	for name, begun := range map[string]bool{"before the headers": false, "in a body without end": true} {
		for _, path := range []string{configuration, "/keys", "/token", "/userinfo"} {
			t.Run(path+" "+name, func(t *testing.T) {
				p := newLying(t)
				p.claims = func(all map[string]any) { delete(all, "groups") }
				p.nonce = "n"
				c := connect(t, p, nil)
				if path != configuration {
					if err := c.Check(t.Context()); err != nil { // so that it knows the configuration
						t.Fatal(err)
					}
				}
				gone := make(chan struct{})
				p.answer(path, func(w http.ResponseWriter, r *http.Request) {
					defer close(gone)
					if begun {
						w.Header().Set("Content-Type", typeJSON)
						_, _ = w.Write([]byte(`{"a":"`))
						_ = http.NewResponseController(w).Flush()
					}
					<-r.Context().Done()
				})
				if c.limit = 250 * time.Millisecond; path == "/keys" { // which the library asks for in the background
					c.client.Timeout = c.limit
				}
				if path == configuration {
					_, err := login(t, c, p, nil)
					failed(t, err, false)
				} else {
					_, err := c.Finish(t.Context(), callback, []byte(`{"n":"n","v":"v"}`), url.Values{"code": {theCode}})
					failed(t, err, false)
				}
				if p.times(path) > 0 { // a busy machine may not have come so far
					<-gone // the connection is not kept
				}
			})
		}
	}
}

func TestProviderThatIsDownIsAnErrorAndRecovers(t *testing.T) {
	p := newLying(t)
	c := connect(t, p, nil)
	u, err := login(t, c, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.answer("/token", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	p.mu.Unlock()
	_, err = c.Refresh(t.Context(), u)
	failed(t, err, false)
	p.mu.Lock()
	p.answers = nil
	p.mu.Unlock()
	if u, err = c.Refresh(t.Context(), u); err != nil || u.Name != "alice" {
		t.Errorf("once it is back, the provider says %+v, %v", u, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Refresh(ctx, u); !errors.Is(err, context.Canceled) || errors.Is(err, connector.ErrRefused) {
		t.Errorf("for a client that is gone the error is %v", err)
	}
}
