// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/signin/connector"
)

func base64url(raw []byte) string { return base64.RawURLEncoding.EncodeToString(raw) }

func many(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("group-%05d", i)
	}
	return all
}

func TestUserFromClaims(t *testing.T) {
	for name, tt := range map[string]struct {
		config  func(*Config)
		claims  map[string]any // of the ID token; nil removes a claim
		info    map[string]any // of userinfo
		name    string         // empty means that the login fails
		groups  []string
		refused bool
	}{
		"a list of groups": {
			claims: map[string]any{"groups": []string{"ops", "dev"}}, name: "alice", groups: []string{"ops", "dev"},
		},
		"one group": {claims: map[string]any{"groups": "ops"}, name: "alice", groups: []string{"ops"}},
		"null":      {claims: map[string]any{"groups": json.RawMessage("null")}, name: "alice"},
		"no groups": {claims: map[string]any{"groups": []string{}}, name: "alice"},
		"10,000 groups": {
			claims: map[string]any{"groups": many(10_000)}, name: "alice", groups: many(10_000),
		},
		"too many groups": {claims: map[string]any{"groups": many(maxGroups + 1)}},
		"groups of userinfo": {
			claims: map[string]any{"groups": nil}, info: map[string]any{"groups": []string{"dev"}}, name: "alice",
			groups: []string{"dev"},
		},
		"the name of userinfo": {
			claims: map[string]any{"preferred_username": nil}, info: map[string]any{"preferred_username": "alice-2"},
			name: "alice-2", groups: []string{"ops"},
		},
		"the signed claims count": {
			claims: map[string]any{"preferred_username": nil},
			info:   map[string]any{"preferred_username": "bob", "groups": []string{"admins"}}, name: "bob",
			groups: []string{"ops"},
		},
		"userinfo of another user": {
			claims: map[string]any{"groups": nil}, info: map[string]any{"sub": "2002", "groups": []string{"admins"}},
			refused: true,
		},
		"userinfo of no user": {
			claims: map[string]any{"groups": nil}, info: map[string]any{"sub": nil, "groups": []string{"admins"}}, refused: true,
		},
		"userinfo of a user in capitals": {
			claims: map[string]any{"groups": nil, "sub": "u-a"}, info: map[string]any{"sub": "U-A"}, refused: true,
		},
		"groups of userinfo are a number": {claims: map[string]any{"groups": nil}, info: map[string]any{"groups": 1}},
		"no name anywhere":                {claims: map[string]any{"preferred_username": nil}},
		"another claim has the groups": {
			config: func(c *Config) { c.GroupsClaim = "https://example.com/roles" },
			claims: map[string]any{"https://example.com/roles": []string{"r"}}, name: "alice", groups: []string{"r"},
		},
		"an address that is verified": {
			config: byEmail, claims: map[string]any{"email": "a@example.com", "email_verified": true}, name: "a@example.com",
			groups: []string{"ops"},
		},
		"an address that is not": {
			config: byEmail, claims: map[string]any{"email": "a@example.com", "email_verified": false}, refused: true,
		},
		"an address without a word": {
			config: byEmail, claims: map[string]any{"email": "a@example.com"}, refused: true,
		},
		"an address verified in words": {
			config: byEmail, claims: map[string]any{"email": "a@example.com", "email_verified": "true"}, refused: true,
		},
		"another address is verified": {
			config: byEmail, claims: map[string]any{"email": "a@example.com", "groups": nil},
			info: map[string]any{"email": "b@example.com", "email_verified": true, "groups": "g"}, refused: true,
		},
		"the address is verified there": {
			config: byEmail, claims: map[string]any{"email": "a@example.com", "groups": nil},
			info: map[string]any{"email": "a@example.com", "email_verified": true, "groups": "g"}, name: "a@example.com",
			groups: []string{"g"},
		},
		"in an allowed group": {config: allow("ops"), name: "alice", groups: []string{"ops"}},
		"in a group that only looks so": {
			config: allow("ops"), claims: map[string]any{"groups": []string{"оps", "Ops", "ops ", "ops:ops"}}, refused: true,
		},
		"in none of the allowed groups": {config: allow("dev"), refused: true},
		"in no group where one is needed": {
			config: allow("ops"), claims: map[string]any{"groups": []string{}}, refused: true,
		},
		"several audiences, and azp is us": {
			claims: map[string]any{"aud": []string{"drover", "other"}, "azp": "drover"}, name: "alice", groups: []string{"ops"},
		},
		"several audiences, and no azp": {
			claims: map[string]any{"aud": []string{"drover", "other"}}, name: "alice", groups: []string{"ops"},
		},
		"a name in capitals": {
			config: lowercase, claims: map[string]any{"preferred_username": "Alice.O'Neil@Example.COM"},
			name: "alice.o'neil@example.com", groups: []string{"ops"},
		},
		"a name that is as it is": {
			claims: map[string]any{"preferred_username": "Alice"}, name: "Alice", groups: []string{"ops"},
		},
		"capitals that only look so": {
			config: lowercase, claims: map[string]any{"preferred_username": "\u212Aate\u0130", "groups": []string{"Ops"}},
			name: "\u212Aate\u0130", groups: []string{"Ops"},
		},
		"clocks differ by some minutes": {
			claims: map[string]any{"nbf": time.Now().Add(4 * time.Minute).Unix(), "iat": time.Now().Add(4 * time.Minute).Unix()},
			name:   "alice", groups: []string{"ops"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			p.claims, p.userinfo = replacing(tt.claims), replacing(tt.info)
			u, err := login(t, connect(t, p, tt.config), p, nil)
			if tt.name == "" {
				failed(t, err, tt.refused)
				return
			}
			if err != nil || u.Name != tt.name || !slices.Equal(u.Groups, tt.groups) {
				t.Errorf("the user is %.200v, %v; want %s in %d groups", u, err, tt.name, len(tt.groups))
			}
		})
	}
}

func byEmail(c *Config) { c.NameClaim = "email" }

func lowercase(c *Config) { c.LowercaseNames = true }

func allow(group string) func(*Config) { return func(c *Config) { c.AllowedGroups = []string{group} } }

func replacing(changes map[string]any) func(map[string]any) {
	return func(claims map[string]any) {
		for name, value := range changes {
			if claims[name] = value; value == nil {
				delete(claims, name)
			}
		}
	}
}

// TestUsersOfAProviderHaveTheirOwnGroupsOnly covers CVE-2026-41053, where a cache gave users the groups of others.
func TestUsersOfAProviderHaveTheirOwnGroupsOnly(t *testing.T) {
	p := newLying(t)
	var turn int
	p.claims = func(claims map[string]any) { // under the lock
		turn++
		name := fmt.Sprintf("u%d", turn%7)
		claims["sub"], claims["preferred_username"], claims["groups"] = "id-"+name, name, []string{"of-" + name}
		delete(claims, "nonce")
	}
	c := connect(t, p, nil)
	var wg sync.WaitGroup
	for n := range 28 {
		wg.Go(func() {
			id := fmt.Sprintf("u%d", n%7)
			u, err := c.Refresh(t.Context(), connector.User{ID: "id-" + id, Name: id, State: []byte("r")})
			if err == nil && (u.Name != id || !slices.Equal(u.Groups, []string{"of-" + id})) {
				t.Errorf("%s is %+v", id, u)
			}
		})
	}
	wg.Wait()
	claims := p.claims
	p.claims = func(all map[string]any) { claims(all); all["groups"] = []string{} }
	for range 7 { // one turn of each user
		if u, err := c.Refresh(t.Context(), connector.User{ID: "id-u1", Name: "u1", State: []byte("r")}); err == nil &&
			len(u.Groups) > 0 {
			t.Errorf("groups of the past stay: %v", u.Groups)
		}
	}
}

// Entra ID omits the groups from tokens of users in more than 200 groups. These users sign in with only the rights that
// name them, and see the reason.
func TestUserWithOmittedGroupsSignsInWithANotice(t *testing.T) {
	for name, claims := range map[string]func(map[string]any){
		"elsewhere":    overage,
		"only counted": func(claims map[string]any) { delete(claims, "groups"); claims["hasgroups"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			c := connect(t, p, nil)
			p.claims = claims
			u, err := login(t, c, p, nil)
			if err != nil || u.Name != "alice" || len(u.Groups) != 0 || !strings.Contains(u.Notice, "too many") ||
				strings.Contains(u.Notice, "169.254") {
				t.Errorf("the user is %+v, %v, want alice without groups, and a notice", u, err)
			}
			if u, err = c.Refresh(t.Context(), u); err != nil || len(u.Groups) != 0 || u.Notice == "" {
				t.Errorf("after a refresh the user is %+v, %v, want the same", u, err)
			}
			_, err = login(t, connect(t, p, allow("ops")), p, nil)
			if failed(t, err, true); !strings.Contains(err.Error(), "not known") {
				t.Errorf("the error is %v, want that it is not known whether the user is in an allowed group", err)
			}
		})
	}
	p := newLying(t)
	if u, err := login(t, connect(t, p, nil), p, nil); err != nil || u.Notice != "" {
		t.Errorf("the notice is %q, %v, want none for a user with all groups", u.Notice, err)
	}
}

func TestLoginRequestsRefreshTokensInTheProvidersWay(t *testing.T) {
	supports := func(scopes ...string) func(map[string]any) {
		return func(c map[string]any) { c["scopes_supported"] = scopes }
	}
	google := func(c map[string]any) {
		supports("openid", "email", "profile")(c)
		c["authorization_endpoint"] = "https://accounts.google.com/o/oauth2/v2/auth"
	}
	for name, tt := range map[string]struct {
		discovery             func(map[string]any)
		scopes                []string
		prompt                *string
		scope, asked, offline string
	}{
		"a provider that knows the scope": {
			supports("openid", "offline_access"), nil, nil, "openid profile offline_access", "consent", "",
		},
		"a provider without the scope":        {supports("openid", "profile"), nil, nil, "openid profile", "", ""},
		"a provider without a list of scopes": {nil, nil, nil, "openid profile offline_access", "consent", ""},
		"a provider with configured scopes": {
			supports("openid"), []string{"offline_access"}, nil, "openid offline_access", "consent", "",
		},
		"a provider with an empty prompt": {nil, nil, new(""), "openid profile offline_access", "", ""},
		"a provider that asks for the account": {
			nil, nil, new("select_account"), "openid profile offline_access", "select_account", "",
		},
		"a prompt without refresh tokens": {
			supports("openid"), []string{"groups"}, new("login consent"), "openid groups", "login consent", "",
		},
		"Google": {google, nil, nil, "openid profile", "consent", "offline"},
		"Google, with the scope": {
			google, []string{"email", "offline_access"}, nil, "openid email", "consent", "offline",
		},
		"Google, without refresh tokens wanted": {google, []string{"email"}, nil, "openid email", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			p.discovery = tt.discovery
			address, _, err := connect(t, p, func(c *Config) { c.Scopes, c.Prompt = tt.scopes, tt.prompt }).Begin(t.Context(),
				callback, "s")
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			if q.Get("scope") != tt.scope || q.Get("prompt") != tt.asked || q.Has("prompt") != (tt.asked != "") ||
				q.Get("access_type") != tt.offline {
				t.Errorf("the browser is sent to %s, want the scopes %q, the prompt %q and the access type %q", address, tt.scope,
					tt.asked, tt.offline)
			}
		})
	}
}

func TestLoginUsesPKCENonceAndConsent(t *testing.T) {
	for name, tt := range map[string]struct {
		scopes        []string
		scope, prompt string
	}{
		"by default":            {nil, "openid profile offline_access", "consent"},
		"with scopes":           {[]string{"openid", "groups"}, "openid groups", ""},
		"with no scope at all":  {[]string{}, "openid", ""},
		"with the offline one":  {[]string{"offline_access"}, "openid offline_access", "consent"},
		"with one of a company": {[]string{"https://example.com/roles"}, "openid https://example.com/roles", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newLying(t)
			c := connect(t, p, func(c *Config) { c.Scopes = tt.scopes })
			address, private, err := c.Begin(t.Context(), callback, "the-state")
			if err != nil {
				t.Fatal(err)
			}
			u, err := url.Parse(address)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			p.nonce = q.Get("nonce")
			if q.Get("state") != "the-state" || q.Get("redirect_uri") != callback || q.Get("response_type") != "code" ||
				q.Get("client_id") != "drover" || len(p.nonce) < 40 ||
				q.Get("scope") != tt.scope || q.Get("prompt") != tt.prompt || q.Get("code_challenge_method") != "S256" || strings.Contains(address, clientSecret) {
				t.Errorf("the browser is sent to %s", address)
			}
			if _, err := c.Finish(t.Context(), callback, private, url.Values{"code": {theCode}}); err != nil {
				t.Fatal(err)
			}
			if sum := sha256.Sum256([]byte(p.form.Get("code_verifier"))); base64url(sum[:]) != q.Get("code_challenge") ||
				p.form.Get("redirect_uri") != callback || p.form.Get("code") != theCode {
				t.Errorf("the code is redeemed with %v, not with the proof of the challenge", p.form)
			}
			if next, _, err := c.Begin(t.Context(), callback, "the-state"); err != nil || strings.Contains(next, p.nonce) ||
				strings.Contains(next, q.Get("code_challenge")) {
				t.Errorf("the next login has the same nonce or proof: %s, %v", next, err)
			}
		})
	}
}

func TestIncompleteLoginsSendNoRequest(t *testing.T) {
	p := newLying(t)
	c := connect(t, p, nil)
	for _, private := range []string{"", "null", "{}", `{"n":"a"}`, `{"v":"a"}`, "junk"} {
		_, err := c.Finish(t.Context(), callback, []byte(private), url.Values{"code": {theCode}})
		failed(t, err, false)
	}
	_, err := c.Refresh(t.Context(), connector.User{ID: "1001", Name: "alice"}) // the provider gave no refresh token
	failed(t, err, true)
	if p.times("/token") != 0 {
		t.Error("the provider was asked for tokens")
	}
}

func TestConfigurationOfAProviderIsReloaded(t *testing.T) {
	p := newLying(t)
	c := connect(t, p, nil)
	now := time.Now()
	c.now = func() time.Time { return now }
	for _, tt := range []struct {
		later time.Duration
		asked int
	}{{0, 1}, {discoverEvery - time.Second, 1}, {2 * time.Second, 2}, {0, 2}} {
		now = now.Add(tt.later)
		if _, _, err := c.Begin(t.Context(), callback, "state"); err != nil || p.times(configuration) != tt.asked {
			t.Errorf("it was asked %d times, not %d: %v", p.times(configuration), tt.asked, err)
		}
	}
	if err := c.Check(t.Context()); err != nil || p.times(configuration) != 3 {
		t.Errorf("a check does not ask: %v", err)
	}
}

func TestConfigurationsThatAreRefused(t *testing.T) {
	good := Config{URL: "https://login.example.com/realms/a", ClientID: "drover", ClientSecret: "s"}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"without TLS":              func(c *Config) { c.URL = "http://login.example.com" },
		"without a host":           func(c *Config) { c.URL = "https:///a" },
		"with a user":              func(c *Config) { c.URL = "https://a:b@login.example.com" },
		"with a query":             func(c *Config) { c.URL = "https://login.example.com?a=b" },
		"with an empty query":      func(c *Config) { c.URL = "https://login.example.com?" },
		"with a fragment":          func(c *Config) { c.URL = "https://login.example.com#a" },
		"with a control character": func(c *Config) { c.URL = "https://login.example.com/\x00" },
		"no client":                func(c *Config) { c.ClientID = "" },
		"no secret":                func(c *Config) { c.ClientSecret = "" },
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			change(&c)
			if _, err := New(c); err == nil {
				t.Error("taken")
			}
		})
	}
}

// FuzzClaims reads claims that a provider might send.
func FuzzClaims(f *testing.F) {
	for _, seed := range []string{`{"preferred_username":"alice","groups":["ops"]}`, `{"preferred_username":1}`,
		`{"preferred_username":"a","groups":"ops"}`, `{"preferred_username":"a","groups":null}`,
		`{"preferred_username":"a","groups":[null,1]}`, `{"preferred_username":"a","groups":{"a":[]}}`, `{"preferred_username":"a","_claim_names":{"groups":"src1"}}`,
		`{"email":"a@b","email_verified":"true"}`, `{"preferred_username":"\ud800"}`} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, email bool) {
		c := &Connector{Config: Config{NameClaim: "preferred_username", GroupsClaim: "groups"}}
		if email {
			c.NameClaim = "email"
		}
		claims := map[string]json.RawMessage{}
		if json.Unmarshal(raw, &claims) != nil {
			return
		}
		name, groups, err := c.read(claims)
		harmless(t, err)
		var said string
		switch {
		case err != nil && (name != "" || groups != nil):
			t.Errorf("beside the error %v are %q and %q", err, name, groups)
		case err != nil:
		case json.Unmarshal(claims[c.NameClaim], &said) != nil || said != name || name == "" || len(groups) > maxGroups:
			t.Errorf("%s is read as %q with %d groups", raw, name, len(groups))
		case email && strings.TrimSpace(string(claims["email_verified"])) != "true":
			t.Errorf("the address %q is taken, which is not verified", name)
		}
	})
}
