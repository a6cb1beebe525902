// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/password"
	"github.com/drover-dev/drover/internal/signin/refresh"
	sessions "github.com/drover-dev/drover/internal/signin/session"
)

// A user who may write bindings in one workspace may name any groups in them.
func TestBindingsWithManyGroupsKeepNoUserFromSigningIn(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	f.issuer.accounts.Named = func(groups []string) ([]string, error) { return groups, nil }
	p.groups, p.padding = []string{"zz-of-another-workspace"}, strings.Repeat("x", 4000)
	for i := range 1000 {
		p.groups = append(p.groups, fmt.Sprintf("group-of-the-user-%03d", i))
	}
	tokens := f.signInAt(p)
	for range 2 {
		id, err := f.authenticated(tokens.AccessToken)
		if err != nil {
			t.Fatal(err)
		}
		if len(account.EncodeGroups(id.Groups)) > maxGroups || len(account.EncodeGroups(id.Groups)) < maxGroups-100 ||
			!slices.IsSorted(id.Groups) {
			t.Errorf("the token has %d groups of %d bytes, want as many as fit into %d, sorted", len(id.Groups),
				len(account.EncodeGroups(id.Groups)), maxGroups)
		}
		if !slices.Contains(id.Groups, provider.Name+":zz-of-another-workspace") {
			t.Error("the first group has no precedence")
		}
		f.wait(5 * time.Minute)
		r := f.again(tokens.RefreshToken)
		if r.code != http.StatusOK || json.Unmarshal([]byte(r.body), tokens) != nil {
			t.Fatalf("the refresh gets the response %d %s", r.code, r.body)
		}
	}
}

// CVE-2023-22648: a removed group counted until the next login. Here it counts until the next refresh, for all tokens
// and for open requests.
func TestGroupMissingAtARefreshIsLostForEarlierTokens(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	tokens := f.signInAt(p)
	f.wait(5 * time.Minute)
	p.set(func(p *openID) { p.groups = nil })
	if r := f.again(tokens.RefreshToken); r.code != http.StatusOK {
		t.Fatalf("the refresh gets the response %d %s", r.code, r.body)
	}
	if id, err := f.authenticated(tokens.AccessToken); err != nil || len(id.Groups) > 0 ||
		slices.Contains(id.Hub.Groups, "ops") {
		t.Errorf("the former token is %+v, %v; want its user without groups", id, err)
	}
	f.wait(6 * time.Minute) // the earlier token has expired: only requests that began with it continue
	if _, err := f.authenticated(tokens.AccessToken); !errors.Is(err, identity.ErrEnded) {
		t.Errorf("the expired token is refused with %v, which ends no request that is open", err)
	}
}

// CVE-2023-22650: requests of a user outlive the user. The hub queries the provider as long as the session exists, and
// not longer.
func TestOpenRequestsOfAProvidersUserEndWithTheirSession(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	tokens := f.signInAt(p)
	f.wait(11 * time.Minute)
	if _, err := f.authenticated(tokens.AccessToken); err == nil || errors.Is(err, identity.ErrEnded) {
		t.Errorf("while there is a session the expired token is refused with %v, want a refusal that ends no request that is open", err)
	}
	if err := f.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(f.namespace),
		client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.authenticated(tokens.AccessToken); !errors.Is(err, identity.ErrEnded) {
		t.Errorf("without its session the expired token is refused with %v, which ends no request that is open", err)
	}
}

// replacing is a client that replaces a password after it was read once.
type replacing struct {
	client.Client
	secret types.NamespacedName
	hash   string
	read   bool
}

func (r *replacing) Get(ctx context.Context, key client.ObjectKey, into client.Object, o ...client.GetOption) error {
	err := r.Client.Get(ctx, key, into, o...)
	if err != nil || key != r.secret || r.read {
		return err
	}
	r.read = true
	next := into.DeepCopyObject().(*corev1.Secret)
	next.Data[v1.UserSecretKey] = []byte(r.hash)
	return r.Update(ctx, next)
}

func TestPasswordThatIsReplacedDuringALoginLeavesNoSessionBehind(t *testing.T) {
	f := newFixture(t)
	next, err := password.Hash("another-password")
	if err != nil {
		t.Fatal(err)
	}
	f.cache.Client = &replacing{Client: f.Client, secret: f.key(v1.UserSecretPrefix + f.user.Name), hash: next}
	tokens := f.session()
	f.wait(time.Minute)
	if r := f.again(tokens.Refresh); r.code != http.StatusBadRequest {
		t.Errorf("a session that began with the former password is refreshed: %d %s", r.code, r.body)
	}
}

// A browser in which a user has signed in has its own count of attempts. A browser of an earlier user with the same
// name must not.
func TestBrowserOfADeletedUserIsNotTrustedForANewUserWithTheName(t *testing.T) {
	f := newFixture(t)
	former := f.browser()
	if got := f.login(former, f.open(former, oauth2.GenerateVerifier()), f.user.Name,
		secretPassword); got.code != http.StatusSeeOther {
		t.Fatalf("the login gets the response %d", got.code)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
		Name: v1.UserSecretPrefix + f.user.Name}}
	// no garbage collector runs
	if err := errors.Join(f.Client.Delete(t.Context(), f.user), f.Client.Delete(t.Context(), secret)); err != nil {
		t.Fatal(err)
	}
	f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}}
	f.addUser(f.user)
	stranger := f.browser()
	for range 5 {
		f.login(stranger, f.open(stranger, oauth2.GenerateVerifier()), f.user.Name, "wrong-password")
	}
	if got := f.login(former, f.open(former, oauth2.GenerateVerifier()), f.user.Name,
		"wrong-password"); got.code != http.StatusTooManyRequests {
		t.Errorf("the browser of the former user gets the response %d, want it to wait as all others", got.code)
	}
}

// Anyone who has a login page can invent answers of the provider. The provider must not mistake the hub for an
// attacker.
func TestForgedProviderResponsesAreLimited(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	login := func(browser *http.Client) int {
		return f.send(browser, http.MethodGet, f.throughProvider(p, browser, f.config(), oauth2.GenerateVerifier()), nil,
			nil).code
	}
	attacker, known := f.browser(), f.browser()
	if code := login(known); code != http.StatusSeeOther {
		t.Fatalf("a login gets the response %d", code)
	}
	callback := f.throughProvider(p, attacker, f.config(), oauth2.GenerateVerifier())
	p.set(func(p *openID) { p.asks = 0 })
	last, most := 0, 2*failuresAtOnce // x/oauth2 sends each code in two styles
	for i := range 2 * most {
		last = f.send(attacker, http.MethodGet, strings.Replace(callback, "code=c-1", fmt.Sprintf("code=invented-%d", i), 1),
			nil, nil).code
	}
	p.set(func(p *openID) {
		if p.asks > most || last != http.StatusTooManyRequests {
			t.Errorf("the provider was asked %d times about invented codes, and the last was answered with %d; want %d at most, and %d", p.asks, last, most, http.StatusTooManyRequests)
		}
	})
	if code := login(known); code != http.StatusSeeOther {
		t.Errorf("a browser in which a user has signed in before gets the response %d", code)
	}
	f.wait(6 * time.Second)
	for range 3 { // successful logins do not count
		f.signInAt(p)
	}
}

func TestAuditDistinguishesSignedInUsersFromClaimedUsers(t *testing.T) {
	f := newFixture(t)
	for name, tt := range map[string]struct{ password, user, claimed string }{
		"a wrong password": {"wrong-password", "", "local:" + f.user.Name},
		"the right one":    {secretPassword, "local:" + f.user.Name, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "audit.log")
			log, err := audit.Open(audit.Settings{Level: audit.LevelMetadata, Mode: audit.ModeBlocking, Path: file},
				audit.Observer{}, logr.Discard())
			if err != nil {
				t.Fatal(err)
			}
			b := f.browser()
			form := url.Values{"request": {f.open(b, oauth2.GenerateVerifier())}, "user": {f.user.Name},
				"password": {tt.password}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, login.PathLogin, strings.NewReader(form.Encode()))
			r.Header = http.Header{"Origin": {f.server.URL}, "Content-Type": {"application/x-www-form-urlencoded"}}
			at, err := url.Parse(f.server.URL)
			if err != nil {
				t.Fatal(err)
			}
			for _, cookie := range b.Jar.Cookies(at) {
				r.AddCookie(cookie)
			}
			mux := http.NewServeMux()
			f.issuer.Register(mux)
			log.Wrap(mux).ServeHTTP(httptest.NewRecorder(), r)
			if err := log.Close(); err != nil {
				t.Fatal(err)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var line struct {
				User    struct{ Name string }
				Claimed string `json:"claimedUser"`
			}
			if err := json.Unmarshal(raw, &line); err != nil || line.User.Name != tt.user || line.Claimed != tt.claimed {
				t.Errorf("the line is %s, %v; want the user %q and the claimed one %q", raw, err, tt.user, tt.claimed)
			}
		})
	}
}

// CVE-2024-22424: a page of another site can send a browser to the hub. The hub must not make the browser ask its user
// for a password.
func TestCrossSiteFormDoesNotPromptForAPassword(t *testing.T) {
	f := newFixture(t)
	for name, header := range map[string]http.Header{"": {}, "Basic": {"Authorization": {"Basic eDp5"}}} {
		got := f.send(f.browser(), http.MethodPost, f.server.URL+grant.PathToken, url.Values{"client_id": {"x"}}, header)
		if got.code != http.StatusUnauthorized || got.header.Get("WWW-Authenticate") != name {
			t.Errorf("with %v the answer is %d with WWW-Authenticate %q, want %q", header, got.code,
				got.header.Get("WWW-Authenticate"), name)
		}
	}
}

// A provider that rotates its refresh tokens ends the session when an earlier one is used again.
func TestConcurrentRefreshAtTwoReplicasAsksTheProviderOnce(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	raw := f.signInAt(p).RefreshToken
	other := f.replica(f.Client)
	other.accounts.Disabled, other.accounts.Named = f.disabled, f.named
	replicas := []*Server{f.issuer, other}
	for range 3 {
		f.wait(5 * time.Minute)
		asked := 0
		p.set(func(p *openID) { asked = p.asks })
		got, errs := make([]grant.Granted, 8), make([]error, 8)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() { got[i], errs[i] = f.exchangeAt(replicas[i%2], raw) })
		}
		wg.Wait()
		for i := range got {
			if errs[i] != nil || got[i].Refresh != got[0].Refresh {
				t.Fatalf("request %d gives %q, %v; want the token of the others, %q", i, got[i].Refresh, errs[i], got[0].Refresh)
			}
		}
		p.set(func(p *openID) {
			if p.asks != asked+1 {
				t.Errorf("the provider was asked %d times", p.asks-asked)
			}
		})
		raw = got[0].Refresh
	}
}

// A replica that stops while it queries a provider must not end the session.
func TestSessionIsRefreshedAfterItsReplicaStoppedDuringAQuery(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	raw := f.signInAt(p).RefreshToken
	f.wait(5 * time.Minute)
	given, _ := refresh.Parse(raw)
	session := &corev1.Secret{}
	if err := f.Client.Get(t.Context(), f.key(sessions.Prefix+given.Session), session); err != nil {
		t.Fatal(err)
	}
	if err := f.issuer.Sessions.ClaimAsking(t.Context(), sessions.Session{Secret: session}); err != nil {
		t.Fatal(err)
	}
	if err := f.issuer.Sessions.ClaimAsking(t.Context(), sessions.Session{Secret: session}); !errors.Is(err,
		sessions.ErrAsking) {
		t.Errorf("a session whose provider is asked is claimed again: %v", err)
	}
	f.wait(sessions.AskLimit + 2*time.Second)
	if r := f.again(raw); r.code != http.StatusOK {
		t.Errorf("the refresh gets the response %d %s", r.code, r.body)
	}
}
