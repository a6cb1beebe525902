// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-logr/logr"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/refresh"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/test/testkit"
)

// tokens are the tokens in a response.
type tokens struct {
	Access  string `json:"access_token"`
	ID      string `json:"id_token"`
	Refresh string `json:"refresh_token"`
	Scope   string `json:"scope"`
	Problem string `json:"error"`
}

// post sends a form to a path, and returns the response.
func (f *fixture) post(path string, fields url.Values) (response, tokens) {
	f.t.Helper()
	got := f.send(f.server.Client(), http.MethodPost, f.server.URL+path, fields, nil)
	var t tokens
	if err := json.Unmarshal([]byte(got.body), &t); err != nil {
		f.t.Fatalf("%d %s: %v", got.code, got.body, err)
	}
	return got, t
}

// session signs in and requests refresh tokens.
func (f *fixture) session() tokens {
	f.t.Helper()
	return f.sessionAt(redirectURI)
}

// sessionAt is session for the client with a redirect URI.
func (f *fixture) sessionAt(redirect string) tokens {
	f.t.Helper()
	b, verifier := f.browser(), oauth2.GenerateVerifier()
	config := f.config()
	config.RedirectURL = redirect
	config.Scopes = append(config.Scopes, "offline_access")
	page := f.send(b, http.MethodGet,
		config.AuthCodeURL("the-state", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", "the-nonce")),
		nil, nil)
	found := hidden.FindStringSubmatch(page.body)
	if found == nil {
		f.t.Fatalf("the login page is %d %s", page.code, page.body)
	}
	to, err := url.Parse(f.login(b, found[1], f.user.Name, secretPassword).header.Get("Location"))
	if err != nil {
		f.t.Fatal(err)
	}
	got, t := f.post(grant.PathToken,
		url.Values{"grant_type": {"authorization_code"}, "client_id": {"kubectl"}, "code": {to.Query().Get("code")},
			"redirect_uri": {redirect}, "code_verifier": {verifier}})
	if t.Refresh == "" {
		f.t.Fatalf("the code gives %d %s, want a refresh token", got.code, got.body)
	}
	return t
}

// refresh uses a refresh token.
func (f *fixture) refresh(raw string) (response, tokens) {
	f.t.Helper()
	return f.post(grant.PathToken, url.Values{"grant_type": {"refresh_token"}, "client_id": {"kubectl"},
		"refresh_token": {raw}})
}

// refreshed is refresh for a token that is valid.
func (f *fixture) refreshed(raw string) tokens {
	f.t.Helper()
	got, t := f.refresh(raw)
	if got.code != http.StatusOK || t.Refresh == "" || t.Access == "" {
		f.t.Fatalf("a valid refresh token gives %d %s", got.code, got.body)
	}
	return t
}

// ended fails the test unless neither token of a session is accepted any more.
func (f *fixture) ended(t tokens) {
	f.t.Helper()
	if got, answer := f.refresh(t.Refresh); answer.Problem != "invalid_grant" || got.code != http.StatusBadRequest {
		f.t.Errorf("the refresh token gives %d %s, want invalid_grant", got.code, got.body)
	}
	if _, err := f.identify(t.Access); err == nil {
		f.t.Error("the access token is accepted")
	}
}

func TestSessionIsRefreshedWithoutItsUser(t *testing.T) {
	f := newFixture(t)
	first, before := f.session(), f.objects()
	if first.Scope != "openid offline_access" {
		t.Errorf("the scope is %q", first.Scope)
	}
	ctx := oidc.ClientContext(t.Context(), f.server.Client())
	provider, err := oidc.NewProvider(ctx, f.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	claims := func(raw string) (nonce string, all struct {
		Session       string  `json:"sid"`
		Authenticated float64 `json:"auth_time"`
		Issued        float64 `json:"iat"`
	}) {
		t.Helper()
		got, err := provider.Verifier(&oidc.Config{ClientID: "kubectl", Now: f.now}).Verify(ctx, raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := got.Claims(&all); err != nil || got.Subject != "local:"+f.user.Name {
			t.Fatalf("the token is %+v (%v)", got, err)
		}
		return got.Nonce, all
	}
	_, want := claims(first.ID)
	last := first
	for range 3 {
		f.wait(10 * time.Minute)
		next, err := f.config().TokenSource(ctx, &oauth2.Token{RefreshToken: last.Refresh}).Token()
		if err != nil {
			t.Fatal(err)
		}
		raw, _ := next.Extra("id_token").(string)
		nonce, got := claims(raw)
		if nonce != "" || got.Session != want.Session || got.Authenticated != want.Authenticated ||
			got.Issued <= want.Issued || next.RefreshToken == last.Refresh {
			t.Errorf("after a refresh: nonce %q, %+v, want none, the same sid and auth_time as %+v, and another refresh token",
				nonce, got, want)
		}
		if _, err := f.identify(next.AccessToken); err != nil {
			t.Error(err)
		}
		last = tokens{Access: next.AccessToken, Refresh: next.RefreshToken}
	}
	if n := f.objects(); n != before {
		t.Errorf("three refreshes left %d objects", n-before)
	}
	if _, err := f.identify(first.Access); err == nil {
		t.Error("the first access token is accepted after its time")
	}
}

func TestClientThatDoesNotAskGetsNoRefreshToken(t *testing.T) {
	f := newFixture(t)
	verifier := oauth2.GenerateVerifier()
	got, err := f.redeem(f.code(verifier), verifier)
	if err != nil || got.RefreshToken != "" || got.Extra("scope") != "openid" {
		t.Errorf("the response is %+v (%v), want no refresh token", got, err)
	}
}

// RFC 9700 §4.14: if a rotated refresh token is used again, two clients have it.
func TestReusedRefreshTokenEndsItsSession(t *testing.T) {
	f := newFixture(t)
	stolen := f.session()
	other := f.session()
	f.wait(10 * time.Minute)
	own := f.refreshed(stolen.Refresh)
	f.wait(refresh.Grace)
	if again := f.refreshed(stolen.Refresh); again.Refresh != own.Refresh {
		t.Error("a client that lost the response gets another refresh token than the one that the session has")
	}
	if _, err := f.identify(own.Access); err != nil {
		t.Fatalf("within the grace the session ended: %v", err)
	}
	f.wait(time.Second)
	if got, answer := f.refresh(stolen.Refresh); answer.Problem != "invalid_grant" {
		t.Errorf("after the grace: %d %s", got.code, got.body)
	}
	f.ended(own)
	f.refreshed(other.Refresh)
}

// kubectl runs an exec plugin for each context and process at the same time.
func TestConcurrentRefreshesGetTheSameToken(t *testing.T) {
	f := newFixture(t)
	first := f.session()
	replicas := []*Server{f.issuer, f.replica(f.Client)}
	for range 3 {
		f.wait(10 * time.Minute)
		got := make([]grant.Granted, 8)
		errs := make([]error, len(got))
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i], errs[i] = f.exchangeAt(replicas[i%2], first.Refresh) })
		}
		wg.Wait()
		for i := range got {
			if errs[i] != nil || got[i].Refresh != got[0].Refresh || got[i].Refresh == first.Refresh {
				t.Fatalf("request %d gives %q (%v), want the token of the others, %q", i, got[i].Refresh, errs[i], got[0].Refresh)
			}
			if _, err := f.identify(got[i].Access); err != nil {
				t.Error(err)
			}
		}
		first.Refresh = got[0].Refresh
	}
}

// replica returns another replica, which reads from a cache.
func (f *fixture) replica(cache client.Client) *Server {
	return New(Options{Issuer: f.server.URL, Client: cache, Live: f.Client, Namespace: f.namespace, Sessions: bounds,
		Now: f.now, Log: logr.Discard(), MaxTTL: maxTTLForTest, Audiences: audiencesForTest})
}

func (f *fixture) exchangeAt(s *Server, raw string) (grant.Granted, error) {
	current, err := s.keyring.Current(f.t.Context())
	if err != nil {
		return grant.Granted{}, err
	}
	return s.grants.Refresh(f.t.Context(), current, url.Values{"refresh_token": {raw}})
}

// frozen is the cache of a replica that no longer receives events. Its sessions, users and passwords do not change.
type frozen struct {
	client.Client
	objects map[string]client.Object
}

func freeze(f *fixture, session string) *frozen {
	f.t.Helper()
	c := &frozen{f.Client, map[string]client.Object{}}
	for name, object := range map[types.NamespacedName]client.Object{
		f.key(sessions.Prefix + session): &corev1.Secret{}, {Name: f.user.Name}: &v1.User{}, f.key(v1.UserSecretPrefix + f.user.Name): &corev1.Secret{},
	} {
		if err := f.Client.Get(f.t.Context(), name, object); err != nil {
			f.t.Fatal(err)
		}
		c.objects[fmt.Sprintf("%T %s", object, name)] = object
	}
	return c
}

func (c *frozen) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	switch was := c.objects[fmt.Sprintf("%T %s", object, key)].(type) {
	case *corev1.Secret:
		was.DeepCopyInto(object.(*corev1.Secret))
	case *v1.User:
		was.DeepCopyInto(object.(*v1.User))
	default:
		return c.Client.Get(ctx, key, object, options...)
	}
	return nil
}

func TestReplicaWithALaggingCacheAsksTheAPIServer(t *testing.T) {
	f := newFixture(t)
	first := f.session()
	given, _ := refresh.Parse(first.Refresh)
	late := f.replica(freeze(f, given.Session))
	f.wait(10 * time.Minute)
	second := f.refreshed(first.Refresh)
	if again, err := f.exchangeAt(late, first.Refresh); err != nil || again.Refresh != second.Refresh {
		t.Errorf("a token that another replica has rotated just now gives %q, %v; want its successor",
			again.Refresh, err)
	}
	f.wait(10 * time.Minute)
	third, err := f.exchangeAt(late, second.Refresh)
	if err != nil {
		t.Fatalf("a token that another replica has given: %v", err)
	}
	f.wait(10 * time.Minute)
	if _, err := f.exchangeAt(late, first.Refresh); err == nil {
		t.Error("the first token, which the lagging cache takes for the present one, is accepted")
	}
	f.ended(tokens{Access: third.Access, Refresh: third.Refresh})
}

func TestLookupsOfUnknownSessionsAreLimited(t *testing.T) {
	f := newFixture(t)
	first := f.session()
	late := f.replica(noSessions{f.Client})
	if _, err := f.exchangeAt(late, first.Refresh); err != nil {
		t.Errorf("a session that began at another replica just now: %v", err)
	}
	unknown, _ := refresh.New(randomID(), f.now())
	refused, unavailable := 0, 0
	for range 10 * unseenPerSecond {
		if _, err := f.exchangeAt(late, unknown.String()); err != nil && strings.Contains(err.Error(), "invalid_grant") {
			refused++
		} else if err != nil {
			unavailable++
		}
	}
	if refused == 0 || unavailable == 0 {
		t.Errorf("of many unknown sessions %d were looked up and %d not, want some of both", refused, unavailable)
	}
	f.wait(time.Minute)
	codes := map[int]int{}
	for range 10 * unseenPerSecond {
		codes[f.end(randomID(), first.Access).code]++
	}
	if codes[http.StatusNotFound] == 0 || codes[http.StatusTooManyRequests] == 0 || len(codes) != 2 {
		t.Errorf("ending many unknown sessions: %v, want 404 for some and 429 for the others", codes)
	}
}

func TestSessionEndsWithItsUserPasswordAndKeys(t *testing.T) {
	remove := func(f *fixture, o client.Object) {
		if err := f.Client.Delete(f.t.Context(), o); err != nil {
			f.t.Fatal(err)
		}
	}
	disable := func(f *fixture, disabled bool) {
		testkit.Update(f.t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = disabled })
	}
	for name, end := range map[string]func(f *fixture, t tokens){
		"the user is disabled": func(f *fixture, _ tokens) { disable(f, true) },
		"the user was disabled at one refresh, and is enabled again": func(f *fixture, t tokens) {
			disable(f, true)
			f.ended(t)
			disable(f, false)
		},
		"the user is deleted": func(f *fixture, _ tokens) { remove(f, f.user) },
		"the user was made again": func(f *fixture, _ tokens) {
			remove(f, f.user)
			f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}}
			f.Apply(f.t, f.user)
		},
		"another password": func(f *fixture, _ tokens) {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
				Name: v1.UserSecretPrefix + f.user.Name}}
			testkit.Update(f.t, f.Client, secret, func(s *corev1.Secret) { s.Data[v1.UserSecretKey] = []byte("another hash") })
		},
		"no password": func(f *fixture, _ tokens) {
			remove(f, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
				Name: v1.UserSecretPrefix + f.user.Name}})
		},
		"the keys were made again": func(f *fixture, _ tokens) {
			keys := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret}}
			if err := f.Client.Get(f.t.Context(), client.ObjectKeyFromObject(keys), keys); err != nil {
				f.t.Fatal(err)
			}
			remove(f, keys)
			f.Apply(f.t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret},
				Data: keys.Data})
		},
		"its Secret is deleted": func(f *fixture, t tokens) {
			given, _ := refresh.Parse(t.Refresh)
			remove(f, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
				Name: sessions.Prefix + given.Session}})
		},
		"revoked by its refresh token": func(f *fixture, t tokens) {
			f.post(grant.PathRevoke, url.Values{"client_id": {"kubectl"}, "token": {t.Refresh},
				"token_type_hint": {"refresh_token"}})
		},
		"revoked by its access token": func(f *fixture, t tokens) {
			f.post(grant.PathRevoke, url.Values{"client_id": {"kubectl"}, "token": {t.Access}})
		},
		"not used for too long": func(f *fixture, _ tokens) { f.wait(bounds.Idle) },
		"at the end of its lifetime": func(f *fixture, t tokens) {
			for range 12 * 2 {
				f.wait(30 * time.Minute)
				if _, next := f.refresh(t.Refresh); next.Refresh != "" {
					t = next
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			session := f.session()
			f.wait(5 * time.Minute)
			session = f.refreshed(session.Refresh)
			f.wait(refresh.Pause)
			end(f, session)
			got, answer := f.refresh(session.Refresh)
			if answer.Problem != "invalid_grant" || got.code != http.StatusBadRequest ||
				got.header.Get("Cache-Control") != "no-store" {
				t.Errorf("the refresh token gives %d %s, want invalid_grant", got.code, got.body)
			}
		})
	}
}

func TestSessionLastsForItsLifetimeIfItIsUsed(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	for range 23 {
		f.wait(30 * time.Minute)
		session = f.refreshed(session.Refresh)
	}
	secrets := &corev1.SecretList{}
	if err := f.Client.List(t.Context(), secrets, client.InNamespace(f.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}); err != nil || len(secrets.Items) != 1 {
		t.Fatalf("there are %d sessions (%v)", len(secrets.Items), err)
	}
	if left := sessions.Ends(&secrets.Items[0]).Sub(f.now()); left < 29*time.Minute || left > 30*time.Minute+time.Second {
		t.Errorf("it is kept for another %s, want the half hour that is left of its lifetime", left)
	}
}

func TestInvalidRefreshTokensAreRefusedWithoutAWrite(t *testing.T) {
	f := newFixture(t)
	session := f.session()
	verifier := oauth2.GenerateVerifier()
	code := f.code(verifier)
	given, _ := refresh.Parse(session.Refresh)
	guess, _ := refresh.New(given.Session, f.now())
	count := &counted{Client: f.Client}
	f.cache.Client = count
	for name, tt := range map[string]struct {
		change func(url.Values)
		want   string
	}{
		"none": {func(v url.Values) { v.Del("refresh_token") }, "invalid_grant"},
		"two":  {func(v url.Values) { v.Add("refresh_token", "x") }, "invalid_request"},
		"cut": {
			func(v url.Values) { v.Set("refresh_token", session.Refresh[:len(session.Refresh)-1]) }, "invalid_grant",
		},
		"garbage": {
			func(v url.Values) { v.Set("refresh_token", strings.Repeat("x", refresh.Len)) }, "invalid_grant",
		},
		"an access token":           {func(v url.Values) { v.Set("refresh_token", session.Access) }, "invalid_grant"},
		"a code":                    {func(v url.Values) { v.Set("refresh_token", code) }, "invalid_grant"},
		"a guess for a session":     {func(v url.Values) { v.Set("refresh_token", guess.String()) }, "invalid_grant"},
		"another client's":          {func(v url.Values) { v.Set("client_id", "other") }, "invalid_client"},
		"of a client with a secret": {func(v url.Values) { v.Set("client_secret", "x") }, "invalid_client"},
		"of no client":              {func(v url.Values) { v.Del("client_id") }, "invalid_client"},
		"without bound (CVE-2024-58259)": {
			func(v url.Values) { v.Set("x", strings.Repeat("x", maxForm)) }, "invalid_request",
		},
		"for another grant, in its place": {func(v url.Values) { v.Set("grant_type", "refresh") }, "unsupported_grant_type"},
	} {
		fields := url.Values{"grant_type": {"refresh_token"}, "client_id": {"kubectl"}, "refresh_token": {session.Refresh}}
		tt.change(fields)
		if got, answer := f.post(grant.PathToken, fields); answer.Problem != tt.want || got.code/100 != 4 ||
			strings.Contains(got.body, given.String()) {
			t.Errorf("%s: %d %s, want %s", name, got.code, got.body, tt.want)
		}
	}
	if got, _ := f.post(grant.PathRevoke,
		url.Values{"client_id": {"kubectl"}, "token": {guess.String()}}); got.code != http.StatusOK {
		t.Errorf("a guess is revoked with %d %s", got.code, got.body)
	}
	if n := count.creates + count.patches + count.deletes + count.updates; n != 0 {
		t.Errorf("they were %d writes", n)
	}
	f.cache.Client = f.Client
	f.refreshed(session.Refresh)
}

func TestClientThatRefreshesTooOftenIsToldToWait(t *testing.T) {
	f := newFixture(t)
	next := f.refreshed(f.session().Refresh)
	got, answer := f.refresh(next.Refresh)
	if got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") != "1" ||
		answer.Problem != "temporarily_unavailable" {
		t.Errorf("a second rotation at once: %d %s", got.code, got.body)
	}
	f.wait(time.Second)
	f.refreshed(next.Refresh)
}

func TestSessionInUseIsKeptWhenItsUserSignsInManyTimes(t *testing.T) {
	f := newFixture(t)
	used, before := f.session(), f.objects()
	idle := f.session()
	const logins = 10 * maxSessions
	for i := range logins {
		if i%10 == 0 {
			f.wait(replay + time.Second)
			used = f.refreshed(used.Refresh)
		}
		current, err := f.issuer.keyring.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c := sessions.Code{ID: randomID(), Claims: account.Claims{User: f.user.Name, UID: f.user.UID}, Redirect: redirectURI,
			At: f.now(), Offline: i%2 == 0}
		if _, _, err := f.issuer.grants.Begin(t.Context(), current, c); err != nil {
			t.Fatal(err)
		}
	}
	if n := f.objects() - before; n >= maxSessions {
		t.Errorf("%d logins left %d sessions beside one, want at most %d", logins, n, maxSessions-1)
	}
	f.wait(time.Minute)
	f.refreshed(used.Refresh)
	f.ended(idle)
}

// The proxy reviews open requests every 30 s. A revoked session ends them, and the expiration of their token does not.
func TestRevokedSessionEndsOpenRequestsOfExpiredTokens(t *testing.T) {
	f := newFixture(t)
	revoked, expired := f.session(), f.session()
	for _, session := range []tokens{revoked, expired} {
		if _, err := f.identify(session.Access); err != nil {
			t.Fatal(err)
		}
	}
	f.wait(10 * time.Minute)
	if _, err := f.identify(revoked.Access); err == nil || errors.Is(err, identity.ErrEnded) {
		t.Errorf("an expired token of a session that lasts is refused with %v", err)
	}
	f.post(grant.PathRevoke, url.Values{"client_id": {"kubectl"}, "token": {revoked.Refresh}})
	if _, err := f.identify(revoked.Access); !errors.Is(err, identity.ErrEnded) {
		t.Errorf("an expired token of a session that was revoked is refused with %v", err)
	}
	if _, err := f.identify(expired.Access); err == nil || errors.Is(err, identity.ErrEnded) {
		t.Errorf("an expired token of another session is refused with %v", err)
	}
	f.post(grant.PathRevoke, url.Values{"client_id": {"kubectl"}, "token": {expired.Access}})
	if _, err := f.identify(expired.Access); !errors.Is(err, identity.ErrEnded) {
		t.Errorf("revoked by a token that has expired, the session is refused with %v", err)
	}
}
