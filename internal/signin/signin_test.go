// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-logr/logr"
	"golang.org/x/crypto/argon2"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/password"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const secretPassword = "correct-horse-battery"

// bounds are the bounds of sessions in these tests.
var bounds = Bounds{Idle: 2 * time.Hour, Lifetime: 12 * time.Hour}

// hash is a hash of secretPassword with the lowest cost. The tests verify it hundreds of times, and package password
// tests the usual cost.
var hash = func() string {
	salt := []byte("salt of the tests")
	sum := argon2.IDKey([]byte(secretPassword), salt, 1, 8, 1, 32)
	return fmt.Sprintf("$argon2id$v=%d$m=8,t=1,p=1$%s$%s", argon2.Version, base64.RawStdEncoding.EncodeToString(salt),
		base64.RawStdEncoding.EncodeToString(sum))
}()

// fixture is an issuer with TLS and a real API server, with one user.
type fixture struct {
	*testkit.Env
	t         testing.TB
	namespace string
	issuer    *Server
	cache     *swappable
	server    *httptest.Server
	user      *v1.User

	mu sync.Mutex // guards clock
	// clock stands still, so that no test depends on its own duration, until follow is called.
	clock   time.Time
	follows time.Time
}

// swappable is a cache that a test can replace.
type swappable struct{ client.Client }

// changed returns a text with another first letter.
func changed(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}

// key returns the name of a Secret of the manager.
func (f *fixture) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: f.namespace, Name: name}
}

// randomID returns an ID that belongs to no session.
func randomID() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// follow makes the clock run, for a client with its own clock.
func (f *fixture) follow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.follows = time.Now()
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{Env: testkit.Shared(t), t: t, clock: time.Now()}
	f.namespace = f.Workspace(t)
	mux := http.NewServeMux()
	f.server = httptest.NewTLSServer(mux)
	t.Cleanup(f.server.Close)
	f.cache = &swappable{f.Client}
	f.issuer = New(Options{Issuer: f.server.URL, Client: f.cache, Live: f.Client, Namespace: f.namespace, Sessions: bounds,
		Now: f.now, Log: logr.Discard(), Disabled: f.disabled, Named: f.named, MaxTTL: maxTTLForTest,
		Audiences: audiencesForTest})
	f.issuer.Register(mux)
	key, err := keys.New(f.clock)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := keys.Encode(keys.Set{key})
	if err != nil {
		t.Fatal(err)
	}
	f.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret},
		Data: map[string][]byte{KeyOfKeys: raw}})
	f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "alice-of-" + f.namespace}}
	f.addUser(f.user)
	return f
}

// addUser makes a User with secretPassword.
func (f *fixture) addUser(user *v1.User) {
	f.t.Helper()
	f.Apply(f.t, user)
	f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), user) })
	f.Apply(f.t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: v1.UserSecretPrefix + user.Name,
			Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindUser}},
		Data: map[string][]byte{v1.UserSecretKey: []byte(hash), v1.UserSecretUID: []byte(user.UID)},
	})
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.follows.IsZero() {
		return f.clock.Add(time.Since(f.follows))
	}
	return f.clock
}

func (f *fixture) wait(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.clock = f.clock.Add(d)
}

// browser returns an HTTP client with cookies that follows no redirects.
func (f *fixture) browser() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		f.t.Fatal(err)
	}
	return &http.Client{Transport: f.server.Client().Transport, Jar: jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

const redirectURI = "http://127.0.0.1:8000/callback"

// config returns the configuration of an independent OAuth 2.0 client.
func (f *fixture) config() *oauth2.Config {
	return &oauth2.Config{ClientID: "kubectl", RedirectURL: redirectURI, Scopes: []string{"openid"},
		Endpoint: oauth2.Endpoint{AuthURL: f.server.URL + login.PathAuthorize, TokenURL: f.server.URL + grant.PathToken}}
}

// response is a received response.
type response struct {
	code   int
	body   string
	header http.Header
}

func (f *fixture) send(c *http.Client, method, address string, fields url.Values, header http.Header) response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, address, strings.NewReader(fields.Encode()))
	if err != nil {
		f.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, values := range header {
		req.Header[name] = values
		if name == "Host" {
			req.Host = values[0]
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return response{resp.StatusCode, string(raw), resp.Header}
}

var hidden = regexp.MustCompile(`name="request" value="([^"]+)"`)

// open opens the login page and returns the sealed request in its form.
func (f *fixture) open(b *http.Client, verifier string) string {
	f.t.Helper()
	got := f.send(b, http.MethodGet,
		f.config().AuthCodeURL("the-state", oauth2.S256ChallengeOption(verifier),
			oauth2.SetAuthURLParam("nonce", "the-nonce")), nil, nil)
	found := hidden.FindStringSubmatch(got.body)
	if got.code != http.StatusOK || found == nil {
		f.t.Fatalf("the login page is %d %s", got.code, got.body)
	}
	return found[1]
}

// login sends the form.
func (f *fixture) login(b *http.Client, request, user, secret string) response {
	f.t.Helper()
	return f.send(b, http.MethodPost, f.server.URL+login.PathLogin,
		url.Values{"request": {request}, "user": {user}, "password": {secret}}, http.Header{"Origin": {f.server.URL}})
}

// code signs in and returns the code.
func (f *fixture) code(verifier string) string {
	f.t.Helper()
	b := f.browser()
	got := f.login(b, f.open(b, verifier), f.user.Name, secretPassword)
	to, err := url.Parse(got.header.Get("Location"))
	if err != nil || got.code != http.StatusSeeOther || !strings.HasPrefix(to.String(), redirectURI+"?") ||
		to.Query().Get("state") != "the-state" || to.Query().Get("iss") != f.server.URL {
		f.t.Fatalf("after the login: %d %s %s", got.code, got.header.Get("Location"), got.body)
	}
	return to.Query().Get("code")
}

// redeem redeems a code with an independent client.
func (f *fixture) redeem(code, verifier string) (*oauth2.Token, error) {
	ctx := oidc.ClientContext(f.t.Context(), f.server.Client())
	return f.config().Exchange(ctx, code, oauth2.VerifierOption(verifier))
}

// identify sends a token to the proxy's authentication. A token of another issuer is "other".
func (f *fixture) identify(raw string) (identity.Identity, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+raw)
	return f.issuer.Authenticate(func(*http.Request) (identity.Identity, error) {
		return identity.Identity{User: "other"},
			nil
	})(r)
}

// objects returns the number of Secrets.
func (f *fixture) objects() int {
	f.t.Helper()
	var all corev1.SecretList
	if err := f.Client.List(f.t.Context(), &all, client.InNamespace(f.namespace)); err != nil {
		f.t.Fatal(err)
	}
	return len(all.Items)
}

func TestThirdPartyClientSignsInAUser(t *testing.T) {
	f := newFixture(t)
	ctx := oidc.ClientContext(t.Context(), f.server.Client())
	provider, err := oidc.NewProvider(ctx, f.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	if provider.Endpoint().AuthURL != f.config().Endpoint.AuthURL ||
		provider.Endpoint().TokenURL != f.config().Endpoint.TokenURL {
		t.Errorf("discovery names %+v", provider.Endpoint())
	}
	verifier := oauth2.GenerateVerifier()
	before := f.objects()
	code := f.code(verifier)
	if n := f.objects(); n != before {
		t.Errorf("a login that is not redeemed leaves %d objects", n-before)
	}
	got, err := f.redeem(code, verifier)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := got.Extra("id_token").(string)
	verified, err := provider.Verifier(&oidc.Config{ClientID: "kubectl"}).Verify(ctx, raw)
	if err != nil {
		t.Fatal(err)
	}
	want := "local:" + f.user.Name
	if verified.Subject != want || verified.Nonce != "the-nonce" ||
		!verified.Expiry.Equal(f.now().Truncate(time.Second).Add(10*time.Minute)) {
		t.Errorf("the token is %+v, want one of %s for 10 minutes", verified, want)
	}
	id, err := f.identify(raw)
	if err != nil || id.User != want || id.Hub.Username != want || id.UID != string(f.user.UID) || len(id.Groups) != 0 {
		t.Errorf("the proxy takes it for %+v (%v), want %s", id, err, want)
	}
	if id, err := f.identify("opaque"); err != nil || id.User != "other" {
		t.Errorf("a token of another issuer is %+v (%v), want it to go on to TokenReview", id, err)
	}
	t.Run("and is refused once the token has expired", func(t *testing.T) {
		f.wait(10*time.Minute + time.Second)
		if _, err := f.identify(raw); err == nil || !strings.Contains(err.Error(), "expired") {
			t.Errorf("the token is refused with %v", err)
		}
	})
}

// CVE-2023-22650: tokens outlive their user.
func TestTokenEndsWithItsUserSessionAndKey(t *testing.T) {
	for name, end := range map[string]func(f *fixture){
		"disabled": func(f *fixture) { testkit.Update(f.t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = true }) },
		"deleted": func(f *fixture) {
			if err := f.Client.Delete(f.t.Context(), f.user); err != nil {
				f.t.Fatal(err)
			}
		},
		"made again": func(f *fixture) {
			if err := f.Client.Delete(f.t.Context(), f.user); err != nil {
				f.t.Fatal(err)
			}
			f.Apply(f.t, &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}})
		},
		"session removed": func(f *fixture) {
			if err := f.Client.DeleteAllOf(f.t.Context(), &corev1.Secret{}, client.InNamespace(f.namespace),
				client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}); err != nil {
				f.t.Fatal(err)
			}
		},
		"keys removed": func(f *fixture) {
			if err := f.Client.Delete(f.t.Context(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret}}); err != nil {
				f.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			verifier := oauth2.GenerateVerifier()
			got, err := f.redeem(f.code(verifier), verifier)
			if err != nil {
				t.Fatal(err)
			}
			id, err := f.identify(got.AccessToken)
			if err != nil {
				t.Fatal(err)
			}
			end(f)
			if _, err := f.identify(got.AccessToken); err == nil {
				t.Error("the token is accepted")
			}
			admit := f.issuer.Authorize(func(context.Context, identity.Identity, types.NamespacedName) error { return nil })
			if err := admit(t.Context(), id, types.NamespacedName{}); (err == nil) != (name == "session removed" ||
				name == "keys removed") {
				t.Errorf("a request that is open goes on: %v", err)
			}
		})
	}
}

// CVE-2026-44946, CVE-2026-45720: a proof of login can be used twice.
func TestCodeIsRedeemedOnce(t *testing.T) {
	f := newFixture(t)
	verifier := oauth2.GenerateVerifier()
	code := f.code(verifier)
	var wg sync.WaitGroup
	got := make(chan *oauth2.Token, 8)
	for range cap(got) {
		wg.Go(func() {
			if token, err := f.redeem(code, verifier); err == nil {
				got <- token
			}
		})
	}
	wg.Wait()
	close(got)
	if len(got) != 1 {
		t.Fatalf("%d of 8 redemptions succeeded, want 1", len(got))
	}
	if _, err := f.identify((<-got).AccessToken); err == nil || !strings.Contains(err.Error(), "session has ended") {
		t.Errorf("the token of a code that came again is refused with %v, want its session to be revoked", err)
	}
	if _, err := f.redeem(code, verifier); err == nil {
		t.Error("the code is accepted after its session was revoked")
	}
}

func TestCodeBelongsToItsRequest(t *testing.T) {
	f := newFixture(t)
	verifier := oauth2.GenerateVerifier()
	good := func() url.Values {
		return url.Values{"grant_type": {"authorization_code"}, "client_id": {"kubectl"}, "code": {f.code(verifier)},
			"redirect_uri": {redirectURI}, "code_verifier": {verifier}}
	}
	page := func() string { b := f.browser(); return f.open(b, verifier) }
	before := f.objects()
	for name, tt := range map[string]struct {
		change func(url.Values)
		want   string
	}{
		"another verifier": {
			func(v url.Values) { v.Set("code_verifier", oauth2.GenerateVerifier()) }, "invalid_grant",
		},
		"no verifier": {func(v url.Values) { v.Del("code_verifier") }, "invalid_grant"},
		"the challenge as verifier": {
			func(v url.Values) { v.Set("code_verifier", oauth2.S256ChallengeFromVerifier(verifier)) }, "invalid_grant",
		},
		"another redirect": {
			func(v url.Values) { v.Set("redirect_uri", "http://127.0.0.1:8001/callback") }, "invalid_grant",
		},
		"no redirect": {func(v url.Values) { v.Del("redirect_uri") }, "invalid_grant"},
		"a code that was changed": {
			func(v url.Values) { v.Set("code", changed(v.Get("code"))) }, "invalid_grant",
		},
		"the page in place of it": {func(v url.Values) { v.Set("code", page()) }, "invalid_grant"},
		"another client":          {func(v url.Values) { v.Set("client_id", "other") }, "invalid_client"},
		"a secret of the client":  {func(v url.Values) { v.Set("client_secret", "x") }, "invalid_client"},
		"no client":               {func(v url.Values) { v.Del("client_id") }, "invalid_client"},
		"the password grant": {
			func(v url.Values) { v.Set("grant_type", "password") }, "unsupported_grant_type",
		},
		"the client's own grant": {
			func(v url.Values) { v.Set("grant_type", "client_credentials") }, "unsupported_grant_type",
		},
		"a field twice": {func(v url.Values) { v.Add("code", "x") }, "invalid_request"},
		"a body without bound (CVE-2024-58259)": {
			func(v url.Values) { v.Set("x", strings.Repeat("x", maxForm)) }, "invalid_request",
		},
	} {
		t.Run(name, func(t *testing.T) {
			fields := good()
			tt.change(fields)
			got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, fields, nil)
			var problem map[string]string
			if err := json.Unmarshal([]byte(got.body), &problem); err != nil || problem["error"] != tt.want ||
				got.code/100 != 4 || got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("the response is %d %s, want %s", got.code, got.body, tt.want)
			}
		})
	}
	t.Run("a code that is older than a minute", func(t *testing.T) {
		fields := good()
		f.wait(codeLifetime + time.Second)
		if got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, fields,
			nil); got.code != http.StatusBadRequest {
			t.Errorf("the response is %d %s", got.code, got.body)
		}
	})
	if n := f.objects(); n != before {
		t.Errorf("what was refused left %d objects", n-before)
	}
}

// CVE-2025-23389, CVE-2024-58267, CVE-2022-39222: a login that an attacker began ends in another user's session.
func TestLoginBelongsToTheBrowserThatBeganIt(t *testing.T) {
	f := newFixture(t)
	own, other := f.browser(), f.browser()
	request := f.open(own, oauth2.GenerateVerifier())
	f.open(other, oauth2.GenerateVerifier())
	if got := f.login(other, request, f.user.Name, secretPassword); got.code != http.StatusBadRequest {
		t.Errorf("the page of another browser: %d", got.code)
	}
	if got := f.login(f.server.Client(), request, f.user.Name, secretPassword); got.code != http.StatusBadRequest {
		t.Errorf("a browser without the cookie: %d", got.code)
	}
	fields := url.Values{"request": {request}, "user": {f.user.Name}, "password": {secretPassword}}
	for name, header := range map[string]http.Header{
		"of another page": {
			"Origin": {"https://evil.example"}}, "of no page": {}, "of a sandboxed page": {"Origin": {"null"}},
		"of a page of another site": {"Origin": {f.server.URL}, "Sec-Fetch-Site": {"cross-site"}},
	} {
		if got := f.send(own, http.MethodPost, f.server.URL+login.PathLogin, fields,
			header); got.code != http.StatusForbidden {
			t.Errorf("a form %s: %d", name, got.code)
		}
	}
	second := f.open(own, oauth2.GenerateVerifier())
	for _, request := range []string{request, second} {
		if got := f.login(own, request, f.user.Name, secretPassword); got.code != http.StatusSeeOther {
			t.Errorf("one of two pages of a browser: %d %s", got.code, got.body)
		}
	}
	f.wait(pageLifetime + time.Second)
	if got := f.login(own, request, f.user.Name, secretPassword); got.code != http.StatusBadRequest {
		t.Errorf("a page that was open for too long: %d", got.code)
	}
}

// CVE-2022-24905, CVE-2022-31102, CVE-2021-23347: the login page shows or runs content of its address.
func TestLoginPageHasNoScriptAndIsNotCached(t *testing.T) {
	f := newFixture(t)
	b := f.browser()
	address := f.config().AuthCodeURL("the-state", oauth2.S256ChallengeOption(oauth2.GenerateVerifier()))
	got := f.send(b, http.MethodGet, address, nil, http.Header{"Host": {"evil.example"}})
	policy := got.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "frame-ancestors 'none'", "base-uri 'none'",
		"form-action 'self' http://127.0.0.1:8000", "style-src 'sha256-"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy is %q, want %q in it", policy, part)
		}
	}
	if strings.Contains(got.body, "<script") || strings.Contains(got.body+fmt.Sprint(got.header), "evil.example") ||
		got.header.Get("Cache-Control") != "no-store" || got.header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("the page has a script, the Host of the request, or can be kept or framed: %v %s", got.header, got.body)
	}
	cookie := got.header.Get("Set-Cookie")
	for _, part := range []string{"__Host-", "Path=/", "Secure", "HttpOnly", "SameSite=Lax", "Max-Age=600"} {
		if !strings.Contains(cookie, part) || strings.Contains(cookie, "Domain") {
			t.Errorf("the cookie is %q, want %s and no Domain", cookie, part)
		}
	}
	if found := f.send(f.server.Client(), http.MethodGet, f.server.URL+PathDiscovery, nil,
		http.Header{"Host": {"evil.example"}}); strings.Contains(found.body, "evil") ||
		!strings.Contains(found.body, f.server.URL) {
		t.Errorf("discovery follows the Host header: %s", found.body)
	}
	// CVE-2021-25313, CVE-2023-32192: a name is interpreted as markup in a page.
	request := hidden.FindStringSubmatch(f.send(b, http.MethodGet, address, nil, nil).body)[1]
	got = f.login(b, request, `"><script>alert(1)</script>%REQUEST%`, "x")
	if got.code != http.StatusForbidden || strings.Contains(got.body, "<script") ||
		!strings.Contains(got.body, "&gt;%REQUEST%") {
		t.Errorf("a name with HTML: %d %s", got.code, got.body)
	}
}

// CVE-2020-8827: the number of password guesses is not limited.
func TestGuessingIsRefused(t *testing.T) {
	f := newFixture(t)
	disabled := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "disabled-" + f.namespace}, Spec: v1.UserSpec{Disabled: true}}
	f.addUser(disabled)
	b := f.browser()
	request := f.open(b, oauth2.GenerateVerifier())
	messages := map[string]bool{}
	for _, user := range []string{f.user.Name, "unknown-user", disabled.Name, "UPPER", "local:alice", "system:admin",
		"../x", ""} {
		secret := "wrong-wrong-wrong"
		if user == disabled.Name {
			secret = secretPassword
		}
		got := f.login(b, request, user, secret)
		if got.code != http.StatusForbidden {
			t.Errorf("user %q: %d", user, got.code)
		}
		messages[regexp.MustCompile(`role="alert">[^<]*`).FindString(got.body)] = true
	}
	if len(messages) != 1 {
		t.Errorf("the messages %v tell users apart, want one", messages)
	}
	codes := map[int]int{}
	for range 10 {
		codes[f.login(b, request, f.user.Name, "wrong-wrong-wrong").code]++
	}
	if codes[http.StatusTooManyRequests] != 6 || codes[http.StatusForbidden] != 4 {
		t.Errorf("ten more guesses gave %v, want 4 checked and 6 refused unchecked", codes)
	}
	if got := f.login(b, request, f.user.Name, secretPassword); got.code != http.StatusTooManyRequests ||
		got.header.Get("Retry-After") == "" {
		t.Errorf("the right password during the wait: %d, want it not to be checked", got.code)
	}
	f.wait(time.Minute)
	if got := f.login(b, request, f.user.Name, secretPassword); got.code != http.StatusSeeOther {
		t.Errorf("the right password after the wait: %d", got.code)
	}
}

// CVE-2020-11576: the response time reveals which users exist.
func TestUnknownUserTakesAsLongAsAWrongPassword(t *testing.T) {
	f := newFixture(t)
	user, stored, err := f.issuer.accounts.Password(t.Context(), "unknown-user")
	if err != nil || user != nil || stored != password.Nothing() {
		t.Errorf("an unknown user is %v with %q (%v), want a hash to be computed", user, stored, err)
	}
	if password.Valid(stored) != nil {
		t.Error("the hash for an unknown user is not computed")
	}
}

func TestVisitsCreateNoObjectsAndSessionsAreLimited(t *testing.T) {
	f := newFixture(t)
	before := f.objects()
	for range 200 {
		f.open(f.browser(), oauth2.GenerateVerifier())
	}
	if n := f.objects(); n != before {
		t.Errorf("200 visits left %d objects", n-before)
	}
	signIn := func() error {
		verifier := oauth2.GenerateVerifier()
		_, err := f.redeem(f.code(verifier), verifier)
		return err
	}
	for range maxSessions {
		if err := signIn(); err != nil {
			t.Fatal(err)
		}
	}
	if err := signIn(); err == nil || !strings.Contains(err.Error(), "temporarily_unavailable") {
		t.Errorf("one session too many at once: %v, want it refused: the oldest tells that its code was redeemed", err)
	}
	f.wait(replay + time.Second)
	for range 4 {
		if err := signIn(); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.objects(); n != before+maxSessions {
		t.Errorf("%d logins left %d objects, want %d", maxSessions+4, n-before, maxSessions)
	}
}

// counted is a client that counts writes. Its user disconnects as soon as an object was created.
type counted struct {
	client.Client
	hangUp                             context.CancelFunc
	creates, patches, updates, deletes int
}

func (c *counted) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	c.creates++
	err := c.Client.Create(ctx, o, opts...)
	c.hangUp()
	return err
}

func (c *counted) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	c.patches++
	return c.Client.Patch(ctx, o, patch, opts...)
}

func (c *counted) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.updates++
	return c.Client.Update(ctx, o, opts...)
}

func (c *counted) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	c.deletes++
	return c.Client.Delete(ctx, o, opts...)
}

func TestDisconnectsAndRepeatedLoginsWriteLittle(t *testing.T) {
	f := newFixture(t)
	writes := &counted{Client: f.Client}
	f.cache.Client = writes
	begin := func(c sessions.Code) error {
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		writes.hangUp = hangUp
		current, err := f.issuer.keyring.Current(ctx)
		if err != nil {
			return err
		}
		_, _, err = f.issuer.grants.Begin(ctx, current, c)
		return err
	}
	next := func() sessions.Code {
		return sessions.Code{ID: randomID(), Claims: account.Claims{User: f.user.Name, UID: f.user.UID},
			Redirect: redirectURI, At: f.now()}
	}
	before := f.objects()
	for range maxSessions {
		if err := begin(next()); err != nil {
			t.Fatal(err)
		}
	}
	writes.creates = 0
	for range 20 {
		var problem *oauth.Error
		if err := begin(next()); !errors.As(err, &problem) || problem.Code != oauth.TooMany {
			t.Fatalf("one session too many: %v", err)
		}
	}
	if writes.creates+writes.deletes+writes.patches != 0 {
		t.Errorf("20 sessions too many were %d creations, %d deletions, %d patches, want no write", writes.creates,
			writes.deletes, writes.patches)
	}
	f.wait(replay + time.Second)
	c := next()
	if err := begin(c); err != nil {
		t.Fatal(err)
	}
	if n := f.objects(); n != before+maxSessions {
		t.Errorf("%d objects are left, want %d", n-before, maxSessions)
	}
	for range 20 {
		if err := begin(c); err == nil || !strings.Contains(err.Error(), "invalid_grant: the code is not valid") {
			t.Fatalf("a code that comes again: %v", err)
		}
	}
	if writes.creates != 1 || writes.patches != 1 {
		t.Errorf("a code that came 20 times more was created %d and revoked %d times, want 1 of each", writes.creates,
			writes.patches)
	}
}

func TestLoginWithoutKeysIsUnavailable(t *testing.T) {
	f := newFixture(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret}}
	if err := f.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	got := f.send(f.server.Client(), http.MethodGet, f.server.URL+PathKeys, nil, nil)
	if got.code != http.StatusServiceUnavailable {
		t.Errorf("the response is %d %s", got.code, got.body)
	}
	var problem *oauth.Error
	if _, err := f.identify("a.b.c"); errors.As(err, &problem) {
		t.Error(err)
	}
}

func TestUserEndsTheirSession(t *testing.T) {
	f := newFixture(t)
	session := func() string {
		t.Helper()
		verifier := oauth2.GenerateVerifier()
		got, err := f.redeem(f.code(verifier), verifier)
		if err != nil {
			t.Fatal(err)
		}
		return got.AccessToken
	}
	own, other := session(), session()
	revoke := func(fields url.Values) response {
		t.Helper()
		return f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathRevoke, fields, nil)
	}
	for name, tt := range map[string]struct {
		fields url.Values
		code   int
	}{
		"another client": {url.Values{"client_id": {"other"}, "token": {own}}, http.StatusUnauthorized},
		"no token":       {url.Values{"client_id": {"kubectl"}}, http.StatusBadRequest},
		"two tokens":     {url.Values{"client_id": {"kubectl"}, "token": {own, own}}, http.StatusBadRequest},
		"a token that was changed": {
			url.Values{"client_id": {"kubectl"}, "token": {own[:len(own)-4] + "AAAA"}}, http.StatusOK,
		},
		"a malformed token": {url.Values{"client_id": {"kubectl"}, "token": {"x"}}, http.StatusOK},
	} {
		if got := revoke(tt.fields); got.code != tt.code {
			t.Errorf("%s: %d %s, want %d", name, got.code, got.body, tt.code)
		}
	}
	if _, err := f.identify(own); err != nil {
		t.Fatalf("requests that revoke nothing ended the session: %v", err)
	}
	for range 2 {
		if got := revoke(url.Values{"client_id": {"kubectl"}, "token": {own},
			"token_type_hint": {"access_token"}}); got.code != http.StatusOK {
			t.Fatalf("the response is %d %s", got.code, got.body)
		}
	}
	if _, err := f.identify(own); err == nil || !strings.Contains(err.Error(), "session has ended") {
		t.Errorf("the token is refused with %v, want its session to be ended", err)
	}
	if _, err := f.identify(other); err != nil {
		t.Errorf("another session of the user ended too: %v", err)
	}
}

// noSessions is a cache that has no sessions yet.
type noSessions struct{ client.Client }

func (c noSessions) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	if strings.HasPrefix(key.Name, sessions.Prefix) {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	return c.Client.Get(ctx, key, object, options...)
}

func TestSessionThatACacheDoesNotHaveYetIsLookedUp(t *testing.T) {
	f := newFixture(t)
	verifier := oauth2.GenerateVerifier()
	got, err := f.redeem(f.code(verifier), verifier)
	if err != nil {
		t.Fatal(err)
	}
	f.cache.Client = noSessions{f.Client}
	if _, err := f.identify(got.AccessToken); err != nil {
		t.Errorf("a session that began at another replica just now: %v", err)
	}
	f.wait(sessions.Settle)
	if _, err := f.identify(got.AccessToken); err == nil {
		t.Error("a session that the cache does not have after a minute is accepted")
	}
}

func TestPasswordOfADeletedUserIsRefusedForANewUserWithTheName(t *testing.T) {
	f := newFixture(t)
	if err := f.Client.Delete(t.Context(), f.user); err != nil {
		t.Fatal(err)
	}
	f.Apply(t, &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}})
	b := f.browser()
	if got := f.login(b, f.open(b, oauth2.GenerateVerifier()), f.user.Name,
		secretPassword); got.code != http.StatusForbidden {
		t.Errorf("the password of a User that was deleted: %d, want it refused for one that was made again", got.code)
	}
}

func TestAttackersDoNotLockOutAUserFromTheirBrowser(t *testing.T) {
	f := newFixture(t)
	own, other := f.browser(), f.browser()
	if got := f.login(own, f.open(own, oauth2.GenerateVerifier()), f.user.Name,
		secretPassword); got.code != http.StatusSeeOther {
		t.Fatalf("the first login: %d", got.code)
	}
	request := f.open(other, oauth2.GenerateVerifier())
	for range 10 {
		f.login(other, request, f.user.Name, "wrong-wrong-wrong")
	}
	if got := f.login(other, request, f.user.Name, secretPassword); got.code != http.StatusTooManyRequests {
		t.Errorf("another browser: %d, want it to wait", got.code)
	}
	if got := f.login(own, f.open(own, oauth2.GenerateVerifier()), f.user.Name,
		secretPassword); got.code != http.StatusSeeOther {
		t.Errorf("the user's own browser: %d, want it not to wait for the guesses of others", got.code)
	}
	request = f.open(own, oauth2.GenerateVerifier())
	if got := f.login(own, request, "bob", "wrong-wrong-wrong"); got.code != http.StatusTooManyRequests &&
		got.code != http.StatusForbidden {
		t.Errorf("another user in that browser: %d", got.code)
	}
	for range 10 {
		f.login(own, request, f.user.Name, "wrong-wrong-wrong")
	}
	if got := f.login(own, request, f.user.Name, secretPassword); got.code != http.StatusTooManyRequests {
		t.Errorf("guesses in the user's own browser: %d, want them to be slowed down too", got.code)
	}
}

func TestPagesAndCodesOutliveARotationOfKeys(t *testing.T) {
	f := newFixture(t)
	b, verifier := f.browser(), oauth2.GenerateVerifier()
	request := f.open(b, verifier)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret}}
	testkit.Update(t, f.Client, secret, func(secret *corev1.Secret) {
		set, err := keys.Decode(secret.Data[KeyOfKeys])
		if err != nil {
			t.Fatal(err)
		}
		next, err := keys.New(f.now())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := keys.Encode(append(set, next))
		if err != nil {
			t.Fatal(err)
		}
		secret.Data[KeyOfKeys] = raw
	})
	old, err := f.issuer.keyring.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.wait(keys.Lead - time.Minute)
	// as if by a replica that does not have the next key yet, because the active key sealed it
	late := f.open(b, verifier)
	f.wait(time.Minute)
	now, err := f.issuer.keyring.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if old.Active.ID == now.Active.ID {
		t.Fatal("an hour after it was published, the next key does not sign")
	}
	if got := f.login(b, late, f.user.Name, secretPassword); got.code != http.StatusSeeOther {
		t.Errorf("a page that was sealed with the key before: %d", got.code)
	}
	if got := f.login(b, request, f.user.Name, secretPassword); got.code != http.StatusBadRequest {
		t.Errorf("a page of an hour before: %d", got.code)
	}
}
