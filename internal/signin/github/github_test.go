// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/test/githubtest"
)

const callback = "https://drover.example.com/v1/auth/callback"

func alice() githubtest.Account {
	return githubtest.Account{ID: 101, Login: "Alice",
		Orgs:  map[string]string{"Acme": "active", "other": "active", "invited": "pending"},
		Teams: []string{"Acme/web", "other/web", "invited/web"}}
}

// enterprise returns a connector for a fake Enterprise Server with the organization acme.
func enterprise(t *testing.T, g *githubtest.GitHub, change func(*Config)) *Connector {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(g.Certificate())
	config := Config{URL: g.URL, ClientID: githubtest.ClientID, ClientSecret: githubtest.ClientSecret, Roots: roots,
		Organizations: []string{"Acme"}}
	if change != nil {
		change(&config)
	}
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.client.CloseIdleConnections)
	return c
}

// begin sends a browser to GitHub and back. It returns the browser's answer and the private data of the login.
func begin(t *testing.T, c *Connector) (private []byte, answer url.Values) {
	t.Helper()
	address, private, err := c.Begin(t.Context(), callback, "the-state")
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	to, err := resp.Location()
	if err != nil || !strings.HasPrefix(to.String(), callback+"?") || to.Query().Get("state") != "the-state" {
		t.Fatalf("the browser comes back to %v (%v)", to, err)
	}
	return private, to.Query()
}

func login(t *testing.T, c *Connector) (connector.User, error) {
	t.Helper()
	private, answer := begin(t, c)
	return c.Finish(t.Context(), callback, private, answer)
}

func TestUserOfAnEnterpriseServerSignsIn(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	u, err := login(t, enterprise(t, g, nil))
	if err != nil {
		t.Fatal(err)
	}
	if u.ID != "101" || u.Name != "alice" || !slices.Equal(u.Groups, []string{"acme", "acme/web"}) {
		t.Errorf("the user is %s %s %v", u.ID, u.Name, u.Groups)
	}
	for _, r := range g.Requests() {
		if r.URL.Path == "/login/oauth/authorize" {
			q := r.URL.Query()
			if q.Get("scope") != "read:org" || q.Get("code_challenge_method") != "S256" || len(q.Get("code_challenge")) != 43 ||
				q.Get("redirect_uri") != callback {
				t.Errorf("GitHub is asked for %v", q)
			}
		}
		if strings.Contains(r.URL.RawQuery, githubtest.ClientSecret) || strings.Contains(r.URL.RawQuery, "gho_") {
			t.Errorf("a secret is in the address %s", r.URL)
		}
	}
}

func TestUserOfGitHubComSignsInAtItsTwoHosts(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	c := enterprise(t, g, func(c *Config) { c.URL, c.Organizations, c.AnyUser = "", nil, true })
	wrapped, _ := c.client.Transport.(bounded)
	transport, ok := wrapped.RoundTripper.(*http.Transport)
	if !ok {
		t.Fatal("the client has no transport of its own")
	}
	transport.TLSClientConfig.ServerName = "example.com" // what the certificate of httptest names
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, g.Listener.Addr().String())
	}
	u, err := login(t, c)
	if err != nil || !slices.Equal(u.Groups, []string{"acme", "acme/web", "other", "other/web"}) {
		t.Fatalf("the user is %v (%v)", u.Groups, err)
	}
	hosts := map[string]string{"/login/oauth/authorize": "github.com", "/login/oauth/access_token": "github.com",
		"/user": "api.github.com", "/user/memberships/orgs": "api.github.com", "/user/teams": "api.github.com"}
	for _, r := range g.Requests() {
		if hosts[r.URL.Path] != r.Host {
			t.Errorf("%s is asked at %s", r.URL.Path, r.Host)
		}
	}
}

func TestRefusedUsers(t *testing.T) {
	for name, tt := range map[string]struct {
		account githubtest.Account
		config  func(*Config)
		want    string
	}{
		"a user of no organization that may sign in": {
			githubtest.Account{ID: 101, Login: "eve", Orgs: map[string]string{"other": "active"}, Teams: []string{"other/web"}},
			nil, "any of the organizations acme",
		},
		"a user who was invited and did not accept": {
			githubtest.Account{ID: 101, Login: "eve", Orgs: map[string]string{"acme": "pending"}, Teams: []string{"acme/web"}},
			nil, "any of the organizations acme",
		},
		"a member in none of the teams": {
			alice(), func(c *Config) { c.Teams = []string{"acme/ops"} }, "any of the teams acme/ops",
		},
		"a team of another organization with the same name": {
			githubtest.Account{ID: 101, Login: "eve", Orgs: map[string]string{"acme": "active", "other": "active"},
				Teams: []string{"other/ops"}}, func(c *Config) { c.Teams = []string{"acme/ops"} }, "any of the teams",
		},
		"an organization whose name only looks like another's": {
			githubtest.Account{ID: 101, Login: "eve", Orgs: map[string]string{"аcme": "active"}}, nil,
			"any of the organizations",
		},
		"a suspended account": {
			githubtest.Account{ID: 101, Login: "alice", Orgs: map[string]string{"acme": "active"}, Suspended: true}, nil,
			"suspended",
		},
		"an account that does not belong to a person": {
			githubtest.Account{ID: 101, Login: "acme", Kind: "Organization", Orgs: map[string]string{"acme": "active"}}, nil,
			"does not belong to a person",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := githubtest.Start(t, tt.account)
			g.Approve(101, "read:org")
			u, err := login(t, enterprise(t, g, tt.config))
			if !errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), tt.want) || u.Name != "" {
				t.Errorf("the answer is %v, %v, want one that says %q", u.Name, err, tt.want)
			}
		})
	}
	t.Run("a user who does not authorize the app", func(t *testing.T) {
		if _, err := login(t, enterprise(t, githubtest.Start(t), nil)); !errors.Is(err, connector.ErrRefused) {
			t.Errorf("the error is %v", err)
		}
	})
}

// GitHub returns fewer organizations, and only a header tells so.
func TestOrganizationsWithSingleSignOnThatGitHubLeavesOutAreNamed(t *testing.T) {
	anyOrganization := func(c *Config) { c.Organizations, c.AnyUser = nil, true }
	of := func(orgs ...string) *githubtest.GitHub {
		a := alice()
		a.SSO = orgs
		g := githubtest.Start(t, a)
		g.Approve(101, "read:org")
		return g
	}
	u, err := login(t, enterprise(t, of("Acme"), anyOrganization))
	if err != nil || !slices.Equal(u.Groups, []string{"other", "other/web"}) ||
		!strings.Contains(u.Notice, "SAML single sign-on") {
		t.Errorf("the user is %+v, %v, want the groups of the other organization and a notice about single sign-on", u, err)
	}
	u, err = login(t, enterprise(t, of("Acme", "other"), anyOrganization))
	if err != nil || len(u.Groups) != 0 || !strings.Contains(u.Notice, "SAML single sign-on") {
		t.Errorf("the user is %+v, %v, want no groups and a notice about single sign-on", u, err)
	}
	if _, err = login(t, enterprise(t, of("Acme"), nil)); !errors.Is(err, connector.ErrRefused) ||
		!strings.Contains(err.Error(), "SAML single sign-on") {
		t.Errorf("the error is %v, want a refusal that names single sign-on", err)
	}
	u, err = login(t, enterprise(t, of(), nil))
	if err != nil || u.Notice != "" {
		t.Errorf("the notice is %q, %v, want none where GitHub leaves nothing out", u.Notice, err)
	}
	g := of()
	c := enterprise(t, g, nil)
	if u, err = login(t, c); err != nil {
		t.Fatal(err)
	}
	g.Answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-GitHub-SSO", "required; url=https://github.com/orgs/acme/sso?authorization_request=SECRET")
		githubtest.Message(w, http.StatusForbidden, "Resource protected by organization SAML enforcement.")
	})
	if _, err = c.Refresh(t.Context(), u); err == nil || errors.Is(err, connector.ErrRefused) ||
		!strings.Contains(err.Error(), "requires SAML single sign-on") || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("the error is %v, want one that names single sign-on and keeps the session", err)
	}
}

func TestLoginsThatFailSayWhatToDo(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	expect := func(t *testing.T, err error, want string) {
		t.Helper()
		if err == nil || errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), githubtest.ClientSecret) {
			t.Errorf("the error is %v, want one that says %q", err, want)
		}
	}
	t.Run("another PKCE verifier", func(t *testing.T) {
		c := enterprise(t, g, nil)
		_, answer := begin(t, c)
		_, err := c.Finish(t.Context(), callback, []byte("of-another-login-that-an-attacker-has-begun-xx"), answer)
		expect(t, err, "sign in again")
	})
	t.Run("CVE-2026-44946: a code that was used", func(t *testing.T) {
		c := enterprise(t, g, nil)
		private, answer := begin(t, c)
		if _, err := c.Finish(t.Context(), callback, private, answer); err != nil {
			t.Fatal(err)
		}
		_, err := c.Finish(t.Context(), callback, private, answer)
		expect(t, err, "sign in again")
	})
	t.Run("another callback", func(t *testing.T) {
		c := enterprise(t, g, nil)
		private, answer := begin(t, c)
		_, err := c.Finish(t.Context(), callback+"/x", private, answer)
		expect(t, err, "callback URL")
	})
	t.Run("a wrong client secret", func(t *testing.T) {
		_, err := login(t, enterprise(t, g, func(c *Config) { c.ClientSecret = "wrong" }))
		expect(t, err, "client secret")
	})
	t.Run("no code", func(t *testing.T) {
		_, err := enterprise(t, g, nil).Finish(t.Context(), callback, nil,
			url.Values{"code": {strings.Repeat("x", maxCode+1)}})
		expect(t, err, "no code")
	})
	t.Run("an error of an unknown form is not repeated", func(t *testing.T) {
		_, err := enterprise(t, g, nil).Finish(t.Context(), callback, nil, url.Values{"error": {"<script>"}})
		expect(t, err, "unknown error")
	})
	t.Run("a scope that the user did not grant, or the token of a GitHub App", func(t *testing.T) {
		for _, scope := range []string{"", "read:user", "user,repo"} {
			g.Approve(101, scope)
			_, err := login(t, enterprise(t, g, nil))
			expect(t, err, "read:org")
		}
	})
}

// TestRefreshAsksAgain covers CVE-2023-22648, where groups changed only at the next login, and CVE-2023-22650 and
// GHSA-c45c-39f6-6gw9, where users who were removed upstream stayed.
func TestRefreshAsksAgain(t *testing.T) {
	signedIn := func(t *testing.T) (*githubtest.GitHub, *Connector, connector.User) {
		g := githubtest.Start(t, alice())
		g.Approve(101, "read:org")
		c := enterprise(t, g, nil)
		u, err := login(t, c)
		if err != nil {
			t.Fatal(err)
		}
		return g, c, u
	}
	refused := func(t *testing.T, c *Connector, u connector.User) {
		t.Helper()
		if _, err := c.Refresh(t.Context(), u); !errors.Is(err, connector.ErrRefused) {
			t.Errorf("the error is %v", err)
		}
	}
	t.Run("a user who left a team no longer has its group", func(t *testing.T) {
		g, c, u := signedIn(t)
		a := alice()
		a.Teams = nil
		g.Set(a)
		if u, err := c.Refresh(t.Context(), u); err != nil || !slices.Equal(u.Groups, []string{"acme"}) || u.State == nil {
			t.Errorf("the user is %v (%v)", u.Groups, err)
		}
	})
	t.Run("a user who left the organization is refused", func(t *testing.T) {
		g, c, u := signedIn(t)
		a := alice()
		delete(a.Orgs, "Acme")
		g.Set(a)
		refused(t, c, u)
	})
	t.Run("a user who revoked the app's access is refused", func(t *testing.T) {
		g, c, u := signedIn(t)
		g.Revoke(101)
		refused(t, c, u)
	})
	t.Run("a user who is suspended is refused", func(t *testing.T) {
		g, c, u := signedIn(t)
		a := alice()
		a.Suspended = true
		g.Set(a)
		refused(t, c, u)
	})
	t.Run("a changed login is the new name of the same account", func(t *testing.T) {
		g, c, u := signedIn(t)
		a := alice()
		a.Login = "Alice-B"
		g.Set(a)
		if got, err := c.Refresh(t.Context(), u); err != nil || got.Name != "alice-b" || got.ID != u.ID {
			t.Errorf("the user is %s %s (%v)", got.ID, got.Name, err)
		}
	})
	t.Run("a login that now belongs to another account is refused", func(t *testing.T) {
		_, c, u := signedIn(t)
		u.ID = "7"
		refused(t, c, u)
	})
	t.Run("a malformed state is an error", func(t *testing.T) {
		_, c, u := signedIn(t)
		for _, raw := range []string{"", "{}", `{"token":""}`, "[]", strings.Repeat("x", maxState+1)} {
			u.State = []byte(raw)
			if _, err := c.Refresh(t.Context(), u); err == nil || errors.Is(err, connector.ErrRefused) {
				t.Errorf("the state %.10q gives %v", raw, err)
			}
		}
	})
}

// TestUsersHaveTheirOwnGroupsOnly covers CVE-2026-41053, where a cache gave one user the teams of all users.
func TestUsersHaveTheirOwnGroupsOnly(t *testing.T) {
	g := githubtest.Start(t)
	c := enterprise(t, g, nil)
	users := map[string]connector.User{}
	for i := range 8 {
		name := fmt.Sprintf("user-%d", i)
		g.Set(githubtest.Account{ID: int64(i + 1), Login: name, Orgs: map[string]string{"acme": "active"},
			Teams: []string{"acme/" + name}})
		g.Approve(int64(i+1), "read:org")
		u, err := login(t, c)
		if err != nil {
			t.Fatal(err)
		}
		users[name] = u
	}
	var wg sync.WaitGroup
	for name, u := range users {
		wg.Go(func() {
			got, err := c.Refresh(t.Context(), u)
			if err != nil || got.Name != name || !slices.Equal(got.Groups, []string{"acme", "acme/" + name}) {
				t.Errorf("%s is %s in %v (%v)", name, got.Name, got.Groups, err)
			}
		})
	}
	wg.Wait()
}

func TestCheckReportsWhetherGitHubKnowsTheApp(t *testing.T) {
	g := githubtest.Start(t)
	if err := enterprise(t, g, nil).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if err := enterprise(t, g, func(c *Config) { c.ClientSecret = "wrong" }).Check(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "client secret") {
		t.Errorf("with a wrong secret the error is %v, want one about the secret", err)
	}
	g.Answer(func(w http.ResponseWriter, _ *http.Request) {
		githubtest.Message(w, http.StatusNotFound, "Rate limiting is not enabled.")
	})
	if err := enterprise(t, g, nil).Check(t.Context()); err != nil {
		t.Errorf("a server without rate limits gives %v, want no error", err)
	}
	if err := enterprise(t, g, func(c *Config) { c.Roots = x509.NewCertPool() }).Check(t.Context()); err == nil {
		t.Error("a certificate of an unknown authority is accepted, want an error")
	} else if invalid := new(tls.CertificateVerificationError); !errors.As(err, &invalid) {
		t.Errorf("the error is %v", err)
	}
	g.Close()
	if err := enterprise(t, g, nil).Check(t.Context()); err == nil || !strings.Contains(err.Error(), "does not respond") {
		t.Errorf("with nothing listening the error is %v, want an error about the connection", err)
	}
}

func TestStateContainsOnlyTheToken(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	u, err := login(t, enterprise(t, g, nil))
	if err != nil {
		t.Fatal(err)
	}
	var kept map[string]string
	if err := json.Unmarshal(u.State, &kept); err != nil || len(kept) != 1 || !strings.HasPrefix(kept["token"], "gho_") {
		t.Errorf("the state has %d fields (%v)", len(kept), err)
	}
}
