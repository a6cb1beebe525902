// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// hub is a fake issuer that can be told to lie. Tests of the real issuer are in test/e2e.
type hub struct {
	*httptest.Server

	t   *testing.T
	key *ecdsa.PrivateKey

	mu sync.Mutex // guards the fields below
	// metadata, claims and callback replace the values of an honest hub.
	metadata, claims map[string]any
	callback         map[string]string
	signer           *ecdsa.PrivateKey // key by default
	asked            url.Values        // of the last authorization request
	refresh          string            // the only refresh token that is accepted
	notice           string            // the hub's notice about a login
	revoked          []string
	refreshes, polls int
	busy             int // delayed refreshes
}

func newHub(t *testing.T) *hub {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	h := &hub{t: t, key: key, signer: key}
	mux := http.NewServeMux()
	h.Server = httptest.NewTLSServer(mux)
	t.Cleanup(h.Close)
	mux.HandleFunc("GET /.well-known/openid-configuration", h.discovery)
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		h.write(w, 200, jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: h.key.Public(), KeyID: "1", Algorithm: "ES256", Use: "sig"}}})
	})
	mux.HandleFunc("GET /authorize", h.authorize)
	mux.HandleFunc("POST /token", h.token)
	mux.HandleFunc("POST /revoke", func(_ http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.revoked = append(h.revoked, r.PostFormValue("token"))
	})
	mux.HandleFunc("POST /device", func(w http.ResponseWriter, _ *http.Request) {
		h.write(w, 200, map[string]any{"device_code": "device", "user_code": "ABCD-EFGH", "verification_uri": h.URL + "/open", "expires_in": 60, "interval": 1})
	})
	mux.HandleFunc("GET /elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, h.URL+"/keys", http.StatusFound) })
	return h
}

// ca returns the hub's certificate in PEM.
func (h *hub) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

func (h *hub) write(w http.ResponseWriter, code int, content any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(content)
}

func (h *hub) discovery(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := map[string]any{
		"issuer": h.URL, "authorization_endpoint": h.URL + "/authorize", "token_endpoint": h.URL + "/token", "revocation_endpoint": h.URL + "/revoke", "jwks_uri": h.URL + "/keys",
		"device_authorization_endpoint": h.URL + "/device", "scopes_supported": []string{"openid", "offline_access"}, "code_challenge_methods_supported": []string{"S256"},
		"id_token_signing_alg_values_supported": []string{"ES256"}, "authorization_response_iss_parameter_supported": true,
	}
	maps.Copy(m, h.metadata)
	h.write(w, 200, m)
}

// authorize acts as the login page for a user who makes no mistakes.
func (h *hub) authorize(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = r.URL.Query()
	back := url.Values{"code": {"code"}, "state": {h.asked.Get("state")}, "iss": {h.URL}}
	for name, value := range h.callback {
		back.Set(name, value)
		if value == "" {
			back.Del(name)
		}
	}
	http.Redirect(w, r, h.asked.Get("redirect_uri")+"?"+back.Encode(), http.StatusSeeOther)
}

func (h *hub) token(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	refused := func(code string) { h.write(w, 400, map[string]string{"error": code, "error_description": "no"}) }
	if r.PostFormValue("client_id") != "kubectl" || r.Header.Get("Authorization") != "" {
		refused("invalid_client")
		return
	}
	nonce := ""
	switch r.PostFormValue("grant_type") {
	case "authorization_code":
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if base64.RawURLEncoding.EncodeToString(sum[:]) != h.asked.Get("code_challenge") || r.PostFormValue("redirect_uri") != h.asked.Get("redirect_uri") {
			refused("invalid_grant")
			return
		}
		nonce = h.asked.Get("nonce")
	case "refresh_token":
		if h.busy > 0 {
			h.busy--
			w.Header().Set("Retry-After", "1")
			h.write(w, 503, map[string]string{"error": "temporarily_unavailable"})
			return
		}
		h.refreshes++
		if r.PostFormValue("refresh_token") != h.refresh { // used before: the session ends
			h.refresh = ""
			refused("invalid_grant")
			return
		}
	default: // a device
		if h.polls++; h.polls == 1 {
			refused("authorization_pending")
			return
		}
	}
	h.refresh = rand.Text()
	answer := map[string]any{"access_token": "x", "token_type": "Bearer", "expires_in": 600, "refresh_token": h.refresh, "id_token": h.sign(nonce)}
	if h.notice != "" {
		answer["drover_notice"] = h.notice
	}
	h.write(w, 200, answer)
}

func (h *hub) sign(nonce string) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: h.signer}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		h.t.Error(err)
		return ""
	}
	claims := map[string]any{"iss": h.URL, "sub": "local:alice", "aud": "kubectl", "iat": time.Now().Unix(), "exp": time.Now().Add(10 * time.Minute).Unix(), "jti": rand.Text()}
	if nonce != "" {
		claims["nonce"] = nonce
	}
	maps.Copy(claims, h.claims)
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		h.t.Error(err)
	}
	return raw
}

// open acts as a browser with the address that the terminal shows, and returns the last page.
func (h *hub) open(address string) (int, string) {
	client := h.Client()
	req, err := http.NewRequestWithContext(h.t.Context(), http.MethodGet, address, nil)
	if err != nil {
		h.t.Error(err)
		return 0, ""
	}
	resp, err := client.Do(req)
	if err != nil {
		h.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	var page strings.Builder
	_ = resp.Write(&page)
	return resp.StatusCode, page.String()
}

// signIn signs in with that browser.
func (h *hub) signIn(ctx context.Context) (*Session, string, error) {
	at, err := Discover(ctx, h.URL, h.ca())
	if err != nil {
		return nil, "", err
	}
	page := make(chan string, 1)
	session, err := at.Code(ctx, func(address string) {
		go func() {
			_, text := h.open(address)
			page <- text
		}()
	})
	return session, <-page, err
}

func TestAUserSignsInByABrowser(t *testing.T) {
	h := newHub(t)
	session, page, err := h.signIn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if session.Claims().Subject != "local:alice" || session.Refresh == "" || session.Issuer != h.URL || time.Until(session.Expires) > 10*time.Minute {
		t.Errorf("the session is %+v", session)
	}
	if !strings.Contains(page, "You are signed in") || !strings.Contains(page, "Content-Security-Policy: default-src 'none'") {
		t.Errorf("the page is %s", page)
	}
	if scopes := h.asked.Get("scope"); scopes != "openid offline_access" || h.asked.Get("code_challenge_method") != "S256" || !strings.HasPrefix(h.asked.Get("redirect_uri"), "http://127.0.0.1:") {
		t.Errorf("the request was %v", h.asked)
	}
	at, err := Discover(t.Context(), h.URL, h.ca())
	if err != nil {
		t.Fatal(err)
	}
	if err := at.Revoke(t.Context(), session); err != nil || len(h.revoked) != 2 || !slices.Contains(h.revoked, session.Refresh) || !slices.Contains(h.revoked, session.Token) {
		t.Errorf("%d tokens were revoked (%v), expected the refresh token and the token", len(h.revoked), err)
	}
}

func TestTheNoticeOfTheHubComesWithTheSession(t *testing.T) {
	h := newHub(t)
	h.notice = "the provider left your groups out"
	session, _, err := h.signIn(t.Context())
	if err != nil || session.Notice != h.notice {
		t.Errorf("the notice is %q, %v, want %q", session.Notice, err, h.notice)
	}
}

// TestAHubThatLiesIsNotBelieved covers mix-up (RFC 9207), replay (nonce), and tokens of others.
func TestAHubThatLiesIsNotBelieved(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		lie  func(*hub)
		want string
	}{
		"another issuer comes back":        {func(h *hub) { h.callback = map[string]string{"iss": "https://evil.example"} }, "RFC 9207"},
		"no issuer comes back":             {func(h *hub) { h.callback = map[string]string{"iss": ""} }, "RFC 9207"},
		"no code comes back":               {func(h *hub) { h.callback = map[string]string{"code": ""} }, "without a code"},
		"an error comes back":              {func(h *hub) { h.callback = map[string]string{"error": "access_denied"} }, "access_denied"},
		"the nonce is another":             {func(h *hub) { h.claims = map[string]any{"nonce": "x"} }, "nonce differs"},
		"the token is of another issuer":   {func(h *hub) { h.claims = map[string]any{"iss": "https://evil.example"} }, "verify the token"},
		"the token is for another client":  {func(h *hub) { h.claims = map[string]any{"aud": "cluster:a/b"} }, "verify the token"},
		"the token has expired":            {func(h *hub) { h.claims = map[string]any{"exp": 1} }, "compare the clock"},
		"the token's key is a stranger's":  {func(h *hub) { h.signer = stranger }, "verify the token"},
		"the token endpoint is elsewhere":  {func(h *hub) { h.metadata = map[string]any{"token_endpoint": "https://evil.example/token"} }, "not its own"},
		"an endpoint only looks its own":   {func(h *hub) { h.metadata = map[string]any{"revocation_endpoint": h.URL + ".evil.example/"} }, "not its own"},
		"the keys are behind a redirect":   {func(h *hub) { h.metadata = map[string]any{"jwks_uri": h.URL + "/elsewhere"} }, "302"},
		"PKCE is not offered":              {func(h *hub) { h.metadata = map[string]any{"code_challenge_methods_supported": []string{"plain"}} }, "PKCE"},
		"the issuer has another name":      {func(h *hub) { h.metadata = map[string]any{"issuer": "https://hub.example"} }, `"https://hub.example": use that URL`},
		"the description is without bound": {func(h *hub) { h.metadata = map[string]any{"x": strings.Repeat("x", maxResponse)} }, "too large"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHub(t)
			tt.lie(h)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			at, err := Discover(ctx, h.URL, h.ca())
			page := make(chan string, 1)
			page <- "You are not signed in"
			if err == nil {
				<-page
				_, err = at.Code(ctx, func(address string) {
					go func() {
						_, text := h.open(address)
						page <- text
					}()
				})
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("the error is %v, expected %q in it", err, tt.want)
			}
			if text := <-page; !strings.Contains(text, "You are not signed in") {
				t.Errorf("the page is %s", text)
			}
		})
	}
}

func TestAHubWithoutSignInSaysSo(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	_, err := Discover(t.Context(), server.URL, ca)
	if err == nil || !strings.Contains(err.Error(), "sign-in is off there") || strings.Contains(err.Error(), "\n  ") {
		t.Errorf("the error is %q, want that sign-in is off, without an empty line", err)
	}
}

func TestARequestOfAnotherPageDoesNotEndTheSignIn(t *testing.T) {
	h := newHub(t)
	at, err := Discover(t.Context(), h.URL, h.ca())
	if err != nil {
		t.Fatal(err)
	}
	again := make(chan int, 1)
	_, err = at.Code(t.Context(), func(address string) {
		u, err := url.Parse(address)
		if err != nil {
			t.Error(err)
		}
		back, state := u.Query().Get("redirect_uri"), url.QueryEscape(u.Query().Get("state"))
		for _, query := range []string{"", "?state=guessed&code=evil", "?code=evil", "?state=" + state + "&state=x&code=evil", "/x?state=" + state} {
			if code, _ := h.open(back + query); code != http.StatusBadRequest && code != http.StatusNotFound {
				t.Errorf("%q is answered with %d", query, code)
			}
		}
		go func() {
			h.open(address)
			again <- 0
		}()
	})
	if err != nil {
		t.Errorf("the sign-in ended: %v", err)
	}
	<-again
}

func TestASignInWithoutABrowserEnds(t *testing.T) {
	h := newHub(t)
	at, err := Discover(t.Context(), h.URL, h.ca())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = at.Code(ctx, func(string) {}); err == nil || !strings.Contains(err.Error(), "the browser did not return from "+h.URL) {
		t.Errorf("the error is %v", err)
	}
}

func TestAUserSignsInByACode(t *testing.T) {
	h := newHub(t)
	at, err := Discover(t.Context(), h.URL, h.ca())
	if err != nil {
		t.Fatal(err)
	}
	var shown string
	session, err := at.Device(t.Context(), func(address, code string) { shown = address + " " + code })
	if err != nil || session.Claims().Subject != "local:alice" || h.polls != 2 || shown != h.URL+"/open ABCD-EFGH" {
		t.Errorf("the session is %v (%v), after %d polls; the user was shown %s", session, err, h.polls, shown)
	}
	h.metadata = map[string]any{"device_authorization_endpoint": ""}
	if at, err = Discover(t.Context(), h.URL, h.ca()); err != nil {
		t.Fatal(err)
	}
	if _, err := at.Device(t.Context(), func(string, string) {}); err == nil || !strings.Contains(err.Error(), "omit --device") {
		t.Errorf("without an endpoint the error is %v", err)
	}
}

func TestParseURL(t *testing.T) {
	for raw, want := range map[string]string{
		"https://Hub.Example.com:443/":                           "https://hub.example.com",
		"hub.example.com:8443":                                   "https://hub.example.com:8443",
		"https://[::1]:8443":                                     "https://[::1]:8443",
		"https://hub.example.com/ui/":                            "https://hub.example.com",
		"hub.example.com/ui":                                     "https://hub.example.com",
		"https://hub.example.com/a/ui/":                          "https://hub.example.com/a",
		"https://hub.example.com/gui/":                           "https://hub.example.com/gui",
		"https://hub.example.com/ui/drover/":                     "https://hub.example.com/ui/drover",
		"https://hub.example.com/ui/?q=prod#/clusters/team/prod": "https://hub.example.com",
		"https://user@hub.example.com/ui/":                       "",
		"http://hub.example.com":                                 "",
		"https://user@hub.example.com":                           "",
		"https://hub.example.com?x=1":                            "",
		"https://hub.example.com#x":                              "",
		"https://":                                               "",
		"https://hub.example.com/\x1b[":                          "",
		"":                                                       "",
	} {
		if got, err := ParseURL(raw); got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q (%v), expected %q", raw, got, err, want)
		}
	}
}
