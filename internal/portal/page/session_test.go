// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// issuer is the fake hub's own issuer. Its tokens end so soon that the page renews them whenever it needs one.
type issuer struct {
	*fleet
	mu     sync.Mutex // guards all fields below
	down   bool       // whether the endpoints of the issuer are down
	next   []reply    // the next replies of the token endpoint; the last one stays
	grants []string   // the grants that the page has asked for
}

// reply is an answer of the token endpoint. Without a code, the connection breaks.
type reply struct {
	code int
	body string
}

const issued = `{"access_token":"secret","expires_in":1,"refresh_token":"next"}`

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{fleet: newFleet(t, 1), next: []reply{{http.StatusOK, issued}}}
	i.mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.down {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": i.url, "authorization_endpoint": i.url + "/authorize",
			"token_endpoint": i.url + "/v1/auth/token"})
	})
	// The issuer's page of sign-in sends the user back at once.
	i.mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, fmt.Sprintf("%s?code=c&state=%s&iss=%s", Path, r.FormValue("state"), i.url), http.StatusFound)
	})
	i.mux.HandleFunc("POST /v1/auth/token", func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.grants = append(i.grants, r.FormValue("grant_type"))
		now := i.next[0]
		i.next = i.next[min(1, len(i.next)-1):]
		if now.code == 0 {
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(now.code)
		_, _ = w.Write([]byte(now.body))
	})
	return i
}

// replies sets the next replies of the token endpoint. The last one stays.
func (i *issuer) replies(next ...reply) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.next, i.grants = next, nil
}

// awaitGrants waits until the page has asked for a number of tokens since the replies were set.
func (i *issuer) awaitGrants(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func(context.Context) error {
		i.mu.Lock()
		defer i.mu.Unlock()
		if len(i.grants) < want {
			return fmt.Errorf("the page has asked for %q, want %d grants", i.grants, want)
		}
		return nil
	})
}

// signedInAt returns a page whose user has signed in at the issuer.
func signedInAt(t *testing.T, i *issuer) *chromium.Page {
	t.Helper()
	p := chromium.Open(t, true)
	p.Go(i.url + Path)
	sees(t, p, "button: Sign in to the hub")
	activate(t, p, "main button", "Sign in to the hub")
	sees(t, p, "heading: Overview", "StaticText: Live")
	return p
}

// TestOnlyARefusalOfTheIssuerEndsASession breaks the stream while the issuer cannot renew the token.
func TestOnlyARefusalOfTheIssuerEndsASession(t *testing.T) {
	chromium.Find(t)
	i := newIssuer(t)
	p := signedInAt(t, i)
	outages := []reply{
		{},
		{http.StatusServiceUnavailable, `{"error":"temporarily_unavailable","error_description":"try again"}`},
		{http.StatusTooManyRequests, `{"error":"temporarily_unavailable","error_description":"wait a second"}`},
		{http.StatusBadGateway, "<html>"},
		{http.StatusOK, "<html>"},
		{http.StatusBadRequest, "<html>"},
		{http.StatusForbidden, `{"error":"access_denied"}`},
	}
	i.replies(append(outages, reply{http.StatusServiceUnavailable, `{"error_description":"still down"}`})...)
	i.cut(false)
	i.awaitGrants(t, len(outages)+1)
	sees(t, p, "heading: Overview", "alert", "StaticText: Not connected.", "button: Try now")
	eventually(t, p, `document.querySelector(".banner").textContent.includes("(still down)")`, true)
	i.replies(reply{http.StatusOK, issued})
	sees(t, p, "StaticText: Live")
	i.replies(reply{http.StatusBadRequest, `{"error":"invalid_grant","error_description":"the session was revoked"}`})
	i.cut(false)
	sees(t, p, "StaticText: You are signed out: the session was revoked.", "button: Sign in to the hub")
}

// TestASessionThatTheHubKeepsRefusingCanBeReplaced closes streams although the issuer renews their tokens.
func TestASessionThatTheHubKeepsRefusingCanBeReplaced(t *testing.T) {
	chromium.Find(t)
	i := newIssuer(t)
	p := signedInAt(t, i)
	i.closeWith(4401)
	sees(t, p, "heading: Overview", "StaticText: Not connected.", "button: Try now", "button: Sign in again")
	eventually(t, p,
		`document.querySelector(".banner").textContent.includes("(the hub keeps refusing your session)")`, true)
	i.closeWith(0)
	activate(t, p, ".banner button", "Try now")
	sees(t, p, "StaticText: Live")
	i.closeWith(4401)
	activate(t, p, ".banner button", "Sign in again")
	i.closeWith(0)
	sees(t, p, "button: Sign in to the hub")
}

// TestAReloadInAnOutageKeepsTheSession reloads the page while the issuer is down.
func TestAReloadInAnOutageKeepsTheSession(t *testing.T) {
	chromium.Find(t)
	i := newIssuer(t)
	p := signedInAt(t, i)
	i.replies(reply{http.StatusServiceUnavailable, `{"error_description":"try again"}`})
	p.Call("Page.reload", nil, nil)
	sees(t, p, "StaticText: Your session cannot be renewed: try again.", "button: Sign in to the hub", "button: Try again")
	i.mu.Lock()
	i.down = true
	i.mu.Unlock()
	activate(t, p, "main button", "Try again")
	sees(t, p, "StaticText: You cannot sign in now: the hub does not say how users sign in: 502 Bad Gateway.")
	i.mu.Lock()
	i.down = false
	i.mu.Unlock()
	i.replies(reply{http.StatusOK, issued})
	activate(t, p, "main button", "Try again")
	sees(t, p, "heading: Overview", "StaticText: Live")
	i.mu.Lock()
	defer i.mu.Unlock()
	if slices.Contains(i.grants, "authorization_code") {
		t.Errorf("the page asked for %q, want only refresh_token: the user does not sign in again", i.grants)
	}
}

// TestAFailedSignInCanBeRepeated lets the exchange of the code fail.
func TestAFailedSignInCanBeRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		reply
		want string
	}{
		"refused": {reply{http.StatusBadRequest, `{"error":"invalid_grant","error_description":"the code has expired"}`},
			"The sign-in has failed: the code has expired. Sign in again."},
		"outage": {reply{}, "The sign-in has failed: the hub cannot be reached. Sign in again."},
	} {
		t.Run(name, func(t *testing.T) {
			chromium.Find(t)
			i := newIssuer(t)
			p := chromium.Open(t, true)
			i.replies(tt.reply)
			p.Go(i.url + Path + "#/plans")
			sees(t, p, "button: Sign in to the hub")
			activate(t, p, "main button", "Sign in to the hub")
			sees(t, p, "StaticText: "+tt.want, "button: Sign in to the hub")
			i.replies(reply{http.StatusOK, issued})
			activate(t, p, "main button", "Sign in to the hub")
			sees(t, p, "heading: Plans", "StaticText: Live")
			var address string
			if p.Evaluate(`location.href`, &address); strings.Contains(address, "code") {
				t.Errorf("the address is %s, want it without the code", address)
			}
		})
	}
}

// TestSessionsAreListedAndEnded has a session with an unknown client, whose name is hostile.
func TestSessionsAreListedAndEnded(t *testing.T) {
	f, p := signedIn(t, 1)
	const path = "/v1/auth/sessions"
	started := time.Now().Add(-90 * time.Minute).UTC().Format(time.RFC3339)
	one := func(id, client string, more map[string]any) map[string]any {
		maps.Copy(more, map[string]any{"id": id, "client": client, "started": started, "expires": "2126-11-27T00:00:00Z"})
		return more
	}
	items := []any{one("a1", "page", map[string]any{"current": true, "renewed": started}),
		one("b2", "device", map[string]any{}), one("c3", "<img src=x>\u202e", map[string]any{})}
	f.on("GET "+path, func(map[string]any) (int, any) { return http.StatusOK, map[string]any{"items": items} })
	f.on("DELETE "+path+"/b2", func(map[string]any) (int, any) {
		items = items[:1]
		return http.StatusOK, map[string]any{}
	})
	at(p, "#/account")
	rows := `[...document.querySelectorAll("[aria-labelledby] table tbody")].slice(0, 1).flatMap(t => [...t.rows]
		.map(r => [...r.cells].map(c => c.textContent.trim()).join("|"))).join("; ")`
	eventually(t, p, rows, "Hub’s page This session|1 h ago|1 h ago|2126-11-27|; Device|1 h ago|never|2126-11-27|End; "+
		"<img src=x>⟨202E⟩|1 h ago|never|2126-11-27|End")
	eventually(t, p, `document.querySelectorAll("main img").length`, 0)
	end := `(() => { const e = document.querySelector("[aria-label^='End the session of Device from ']");
		e?.focus(); return Boolean(e) && document.activeElement === e; })()`
	eventually(t, p, end, true)
	p.Press("Enter")
	sees(t, p, "heading: End this session?", "StaticText: Tokens for scripts stay valid. An API server that "+
		"accepts the hub’s tokens itself may accept the session’s tokens for up to 10 minutes.")
	activate(t, p, "dialog button", "Cancel")
	eventually(t, p, end, true)
	p.Press("Enter")
	activate(t, p, "dialog button", "End the session")
	sees(t, p, "StaticText: The session has ended.")
	eventually(t, p, rows, "Hub’s page This session|1 h ago|1 h ago|2126-11-27|")
	for code, want := range map[int]string{http.StatusUnauthorized: "Sign in to this hub to see your sessions.",
		http.StatusNotFound:           "Users cannot sign in to this hub.",
		http.StatusServiceUnavailable: "Your sessions cannot be listed."} {
		f.on("GET "+path, func(map[string]any) (int, any) { return code, map[string]any{"message": "no"} })
		at(p, "#/")
		at(p, "#/account")
		sees(t, p, "StaticText: "+want)
	}
}
