// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/test/githubtest"
)

// TestFailingGitHubEndsNoSession covers CVE-2024-58259, unbounded bodies, and GHSA-wm2r-rp98-8pmh, secrets in errors,
// at a refresh and at the redemption of a code.
func TestFailingGitHubEndsNoSession(t *testing.T) {
	message := func(status int, text string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			githubtest.Message(w, status, text)
		}
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"the rate limit": {
			message(403, "API rate limit exceeded", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1000060"),
			"try again in 1m0s",
		},
		"the rate limit with 429": {
			message(429, "API rate limit exceeded", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "1000060"),
			"try again in 1m0s",
		},
		"the secondary rate limit": {
			message(403, "You have exceeded a secondary rate limit", "Retry-After", "30"), "try again in 30s",
		},
		"the secondary rate limit, headerless": {message(403, "You have exceeded a secondary rate limit"), "try again"},
		"headers of a rate limit that lie": {
			message(403, "x", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "99999999999999999999"), "try again in an hour",
		},
		"an address that the organization blocks": {
			message(403, "Although you appear to have the correct authorization credentials, the `acme` organization has an IP allow list enabled"), "restrict apps or client addresses",
		},
		"a server that fails": {message(502, "Server Error"), "502"},
		"a page of a proxy": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write([]byte("<html>please sign in</html>"))
		}, "check the URL"},
		"a page of a proxy with 401": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte("<html>please sign in</html>"))
		}, "401"},
		"JSON that is called a page": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"id":101,"login":"alice","type":"User"}`))
		}, "check the URL"},
		"half of a response": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte(`{"id":1`))
		}, "is incomplete"},
		"an account without an ID": {func(w http.ResponseWriter, _ *http.Request) {
			githubtest.WriteJSON(w, 200, map[string]any{"login": "alice", "type": "User"})
		}, "not an account"},
		"a login with a colon": {func(w http.ResponseWriter, _ *http.Request) {
			githubtest.WriteJSON(w, 200, map[string]any{"id": 101, "login": "system:masters", "type": "User"})
		}, "not an account"},
		"a login with look-alike letters": {func(w http.ResponseWriter, _ *http.Request) {
			githubtest.WriteJSON(w, 200, map[string]any{"id": 101, "login": "аlice", "type": "User"})
		}, "not an account"},
		"a body that does not end": {flood(false), "more than 2 MiB"},
		"a small body that grows":  {flood(true), "more than 2 MiB"},
		"headers that do not end":  {message(200, "x", "X-Large", strings.Repeat("x", 2*connector.MaxHeader)), "does not respond"},
		"a redirect on the same host": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/api/v3/user?again", http.StatusTemporaryRedirect)
		}, "not followed"},
		"a server that is not modelled": {http.NotFound, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			g := githubtest.Start(t, alice())
			g.Approve(101, "read:org")
			c := enterprise(t, g, nil)
			c.now = func() time.Time { return time.Unix(1000000, 0) }
			u, err := login(t, c)
			if err != nil {
				t.Fatal(err)
			}
			private, answer := begin(t, c)
			g.Answer(tt.answer)
			_, err = c.Refresh(t.Context(), u)
			if err == nil || errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the refresh gives the error %v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "gho_") {
				t.Errorf("the error %v contains the token, want it left out", err)
			}
			_, err = c.Finish(t.Context(), callback, private, answer)
			if err == nil || errors.Is(err, connector.ErrRefused) || strings.Contains(err.Error(), githubtest.ClientSecret) ||
				strings.Contains(err.Error(), answer.Get("code")) {
				t.Errorf("the login gives the error %v", err)
			}
		})
	}
}

// flood responds with endless JSON, compressed by a factor of a thousand if requested.
func flood(compressed bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if compressed {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb())
			return
		}
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte(strings.Repeat(" ", 64<<10))); err != nil {
				return
			}
		}
	}
}

func TestRequestToASlowGitHubTimesOut(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	c := enterprise(t, g, nil)
	u, err := login(t, c)
	if err != nil {
		t.Fatal(err)
	}
	for name, begun := range map[string]bool{"before the headers": false, "in the body": true} {
		t.Run(name, func(t *testing.T) {
			g.Answer(func(w http.ResponseWriter, r *http.Request) {
				if begun {
					w.Header().Set("Content-Type", "application/json")
					_, _ = w.Write([]byte("{"))
					_ = http.NewResponseController(w).Flush()
				}
				<-r.Context().Done()
			})
			c.client.Timeout = 50 * time.Millisecond
			_, err := c.Refresh(t.Context(), u)
			if err == nil || errors.Is(err, connector.ErrRefused) {
				t.Errorf("the error is %v", err)
			}
			c.client.Timeout = 0
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := c.Refresh(ctx, u); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("at the end of its context the error is %v", err)
			}
		})
	}
}

// TestNoCredentialGoesToAnotherHost covers CVE-2021-36778, where a redirect took credentials to another host.
func TestNoCredentialGoesToAnotherHost(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		githubtest.WriteJSON(w, 200, []any{})
	}))
	t.Cleanup(other.Close)
	for name, answer := range map[string]http.HandlerFunc{
		"by a redirect that keeps the method": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		},
		"by a redirect": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, http.StatusFound) },
		"by the address of the next page": func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/user") {
				githubtest.WriteJSON(w, 200, map[string]any{"id": 101, "login": "alice", "type": "User"})
				return
			}
			if r.URL.Query().Get("page") == "1" {
				w.Header().Set("Link", fmt.Sprintf(`<%s/user/teams?page=2>; rel="next"`, other.URL))
			}
			githubtest.WriteJSON(w, 200, []any{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := githubtest.Start(t, alice())
			g.Approve(101, "read:org")
			c := enterprise(t, g, func(c *Config) { c.Roots.AddCert(other.Certificate()) })
			u, err := login(t, c)
			if err != nil {
				t.Fatal(err)
			}
			private, back := begin(t, c)
			g.Answer(answer)
			if _, err := c.Refresh(t.Context(), u); err == nil {
				t.Error("the refresh succeeds, want an error")
			}
			if _, err := c.Finish(t.Context(), callback, private, back); err == nil {
				t.Error("the login succeeds, want an error")
			}
			if n := elsewhere.Load(); n != 0 {
				t.Errorf("the other host was asked %d times, want 0", n)
			}
		})
	}
}

func TestUserOfManyTeamsHasAllOfThem(t *testing.T) {
	a := githubtest.Account{ID: 101, Login: "alice", Orgs: map[string]string{"acme": "active"}}
	for i := range 2345 {
		a.Teams = append(a.Teams, fmt.Sprintf("acme/team-%d", i))
	}
	g := githubtest.Start(t, a)
	g.Approve(101, "read:org")
	u, err := login(t, enterprise(t, g, nil))
	if err != nil || len(u.Groups) != 2346 || !slices.Contains(u.Groups, "acme/team-2344") {
		t.Errorf("the user has %d groups (%v)", len(u.Groups), err)
	}
}

func TestListsOfGitHubAreBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		teams func(w http.ResponseWriter, page string)
		want  string
	}{
		"pages that lead back": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Link", `<https://x/user/teams?page=1>; rel="next"`)
			githubtest.WriteJSON(w, 200, []any{})
		}, "in an unknown way"},
		"pages without a number": {func(w http.ResponseWriter, _ string) {
			w.Header().Set("Link", `<https://x/user/teams?after=abc>; rel="next"`)
			githubtest.WriteJSON(w, 200, []any{})
		}, "in an unknown way"},
		"pages without an end": {func(w http.ResponseWriter, page string) {
			var n int
			_, _ = fmt.Sscan(page, &n)
			w.Header().Set("Link", fmt.Sprintf(`<https://x/user/teams?page=%d>; rel="next"`, n+1))
			githubtest.WriteJSON(w, 200, []any{})
		}, "more than 120 pages"},
		"a page of thousands": {
			func(w http.ResponseWriter, _ string) { githubtest.WriteJSON(w, 200, make([]struct{}, perPage+1)) },
			"items on a page",
		},
		"more groups than are taken": {func(w http.ResponseWriter, page string) {
			var n int
			_, _ = fmt.Sscan(page, &n)
			var items []any
			for i := range perPage {
				items = append(items, map[string]any{"slug": fmt.Sprintf("t-%s-%d", page, i),
					"organization": map[string]any{"login": "acme"}})
			}
			if n < 102 {
				w.Header().Set("Link", fmt.Sprintf(`<https://x/user/teams?page=%d>; rel="next"`, n+1))
			}
			githubtest.WriteJSON(w, 200, items)
		}, "more than 10000"},
	} {
		t.Run(name, func(t *testing.T) {
			g := githubtest.Start(t, alice())
			g.Approve(101, "read:org")
			c := enterprise(t, g, nil)
			private, answer := begin(t, c)
			u, err := c.Finish(t.Context(), callback, private, answer)
			if err != nil {
				t.Fatal(err)
			}
			g.Answer(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/user"):
					githubtest.WriteJSON(w, 200, map[string]any{"id": 101, "login": "alice", "type": "User"})
				case strings.HasSuffix(r.URL.Path, "/orgs"):
					githubtest.WriteJSON(w, 200, []any{map[string]any{"state": "active",
						"organization": map[string]any{"login": "acme"}}})
				default:
					tt.teams(w, r.URL.Query().Get("page"))
				}
			})
			if _, err := c.Refresh(t.Context(), u); err == nil || errors.Is(err, connector.ErrRefused) ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, want %q", err, tt.want)
			}
		})
	}
}

// GitHub lets anyone take a login that has become free. The new account has its own groups and ID, and must be let in
// on its own.
func TestReusedGitHubLoginGetsNeitherGroupsNorSessions(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	c := enterprise(t, g, nil)
	former, err := login(t, c)
	if err != nil {
		t.Fatal(err)
	}
	a := alice()
	a.Login = "Alice-B"
	g.Set(a)
	thief := githubtest.Account{ID: 202, Login: "Alice", Orgs: map[string]string{"Acme": "pending", "acme-2": "active"},
		Teams: []string{"acme-2/web"}}
	g.Set(thief)
	g.Approve(202, "read:org")
	if u, err := login(t, c); !errors.Is(err, connector.ErrRefused) {
		t.Errorf("who took the login signs in as %+v (%v) from outside of the organization", u, err)
	}
	thief.Orgs = map[string]string{"Acme": "active"}
	g.Set(thief)
	u, err := login(t, c)
	if err != nil || u.ID == former.ID || !slices.Equal(u.Groups, []string{"acme"}) {
		t.Fatalf("a member who took the login is %+v (%v)", u, err)
	}
	if got, err := c.Refresh(t.Context(),
		connector.User{ID: former.ID, Name: former.Name, State: u.State}); !errors.Is(err, connector.ErrRefused) {
		t.Errorf("the former's session goes on as %+v (%v)", got, err)
	}
	if got, err := c.Refresh(t.Context(), former); err != nil || got.Name != "alice-b" || got.ID != former.ID {
		t.Errorf("the former is %+v (%v), not the same account under another name", got, err)
	}
}

// This GitHub ignores parameters: it returns invitations among memberships, and responds for a suspended account.
func TestInvitationsAndSuspendedAccountsDoNotCountIfGitHubReturnsThem(t *testing.T) {
	g := githubtest.Start(t, alice())
	g.Approve(101, "read:org")
	c := enterprise(t, g, func(c *Config) { c.Organizations = []string{"acme", "invited"} })
	u, err := login(t, c)
	if err != nil {
		t.Fatal(err)
	}
	account := map[string]any{"id": 101, "login": "Alice", "type": "User"}
	g.Answer(func(w http.ResponseWriter, r *http.Request) {
		organization := func(name string) map[string]any { return map[string]any{"login": name} }
		switch {
		case strings.HasSuffix(r.URL.Path, "/user"):
			githubtest.WriteJSON(w, 200, account)
		case strings.HasSuffix(r.URL.Path, "/user/teams"):
			githubtest.WriteJSON(w, 200, []any{map[string]any{"slug": "web", "organization": organization("Invited")}})
		default:
			githubtest.WriteJSON(w, 200, []any{map[string]any{"state": "pending", "organization": organization("Invited")},
				map[string]any{"state": "active", "organization": organization("Acme")}})
		}
	})
	if got, err := c.Refresh(t.Context(), u); err != nil || !slices.Equal(got.Groups, []string{"acme"}) {
		t.Errorf("the user has the groups %v (%v)", got.Groups, err)
	}
	account["suspended_at"] = "2026-11-01T00:00:00Z"
	if _, err := c.Refresh(t.Context(), u); !errors.Is(err, connector.ErrRefused) {
		t.Errorf("a suspended account gets the response %v", err)
	}
}
