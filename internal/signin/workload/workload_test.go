// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const audience = "https://hub.example.com"

// upstream is an issuer, which may be hostile.
type upstream struct {
	*httptest.Server
	t    testing.TB
	asks atomic.Int32

	mu       sync.Mutex // guards what follows
	keys     map[string]*ecdsa.PrivateKey
	document func() any // in place of the discovery document
	set      func() any // in place of the keys
	down     bool
	redirect string        // where the keys are, instead of an answer
	hold     chan struct{} // no request is answered until it is closed
	now      time.Time
}

func newUpstream(t testing.TB) *upstream {
	t.Helper()
	u := &upstream{t: t, keys: map[string]*ecdsa.PrivateKey{"a": newKey(t)},
		now: time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	u.Server = httptest.NewTLSServer(http.HandlerFunc(u.serve))
	t.Cleanup(u.Close)
	return u
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (u *upstream) with(change func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	change()
}

func (u *upstream) time() time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now
}

func (u *upstream) serve(w http.ResponseWriter, r *http.Request) {
	u.asks.Add(1)
	u.mu.Lock()
	hold, down, redirect := u.hold, u.down, u.redirect
	var answer any
	switch {
	case strings.HasSuffix(r.URL.Path, "/keys") && u.set != nil:
		answer = u.set()
	case strings.HasSuffix(r.URL.Path, "/keys"):
		set := jose.JSONWebKeySet{}
		for id, key := range u.keys {
			set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id, Algorithm: "ES256", Use: "sig"})
		}
		answer = set
	case u.document != nil:
		answer = u.document()
	default:
		answer = map[string]string{"issuer": u.URL, "jwks_uri": u.URL + "/keys"}
	}
	u.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
	}
	if down {
		http.Error(w, "down", http.StatusServiceUnavailable)
		return
	}
	if redirect != "" && r.Host == u.Listener.Addr().String() && strings.HasSuffix(r.URL.Path, "/keys") {
		http.Redirect(w, r, redirect, http.StatusFound)
		return
	}
	if text, is := answer.(string); is {
		_, _ = w.Write([]byte(text))
		return
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func (u *upstream) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(u.Certificate())
	return pool
}

func (u *upstream) spec() v1.JWTProvider {
	return v1.JWTProvider{
		Issuer: v1.JWTIssuer{URL: u.URL, Audiences: []string{audience, "other"}},
		ClaimMappings: v1.JWTClaimMappings{
			Username: v1.JWTClaimOrExpression{Expression: "claims.repository.lowerAscii().replace('/', '@')"}, Groups: &v1.JWTClaimOrExpression{Claim: "groups"},
		},
		ClaimValidationRules: []v1.JWTClaimRule{{Claim: "kind", RequiredValue: "branch"},
			{Expression: "claims.number < 5", Message: "the number is too large"}},
		UserValidationRules: []v1.JWTUserRule{{Expression: "user.username != 'ci:root@octo' && user.groups.all(g, g.startsWith('ci:'))", Message: "not root"}},
	}
}

func (u *upstream) verifier(change func(*v1.JWTProvider)) *Verifier {
	u.t.Helper()
	spec := u.spec()
	if change != nil {
		change(&spec)
	}
	v, err := New("ci", spec, u.roots(), u.time)
	if err != nil {
		u.t.Fatal(err)
	}
	return v
}

func (u *upstream) claims() map[string]any {
	now := u.time()
	return map[string]any{"iss": u.URL, "sub": "repo:Octo/App:ref:main", "aud": audience, "iat": now.Unix(),
		"exp": now.Add(10 * time.Minute).Unix(), "jti": "j",
		"repository": "Octo/App", "kind": "branch", "number": 4, "groups": []string{"ops", "dev"}}
}

func sign(t testing.TB, algorithm jose.SignatureAlgorithm, key any, header map[jose.HeaderKey]any, claims any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key},
		&jose.SignerOptions{ExtraHeaders: header})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// token signs the usual claims, changed.
func (u *upstream) token(change func(map[string]any)) string {
	u.t.Helper()
	claims := u.claims()
	if change != nil {
		change(claims)
	}
	return sign(u.t, jose.ES256, u.keys["a"], map[jose.HeaderKey]any{"kid": "a", "typ": "JWT"}, claims)
}

func TestTokenOfTheIssuerAuthenticatesItsWorkload(t *testing.T) {
	u := newUpstream(t)
	v := u.verifier(nil)
	got, err := v.Verify(t.Context(), u.token(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got.Name != "octo@app" || got.UID != "repo:Octo/App:ref:main" ||
		!slices.Equal(got.Groups, []string{"ops", "dev"}) || got.ID != "j" || !got.Expiry.Equal(u.now.Add(10*time.Minute)) ||
		!v.Holds(got) {
		t.Errorf("the user is %+v", got)
	}
	for name, change := range map[string]func(map[string]any){
		"two audiences":   func(c map[string]any) { c["aud"] = []string{"x", "other"} },
		"a group alone":   func(c map[string]any) { c["groups"] = "ops" },
		"no groups":       func(c map[string]any) { delete(c, "groups") },
		"a clock ahead":   func(c map[string]any) { c["iat"] = u.now.Add(20 * time.Second).Unix() },
		"the longest one": func(c map[string]any) { c["exp"] = u.now.Add(time.Hour).Unix() },
	} {
		if _, err := v.Verify(t.Context(), u.token(change)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := u.asks.Load(); n != 2 {
		t.Errorf("the issuer was asked %d times, want for its configuration and its keys once", n)
	}
}

// CVE-2023-22482: a token for another audience is accepted.
func TestClaimsOfATokenAreChecked(t *testing.T) {
	u := newUpstream(t)
	v := u.verifier(nil)
	set := func(key string, value any) func(map[string]any) {
		return func(c map[string]any) { c[key] = value }
	}
	for name, tt := range map[string]struct {
		change func(map[string]any)
		want   string
	}{
		"another issuer":                  {set("iss", "https://evil.example"), "another issuer"},
		"another audience":                {set("aud", "sts"), "another audience"},
		"audiences, none of them ours":    {set("aud", []string{"sts", audience + "/"}), "another audience"},
		"no audience":                     {set("aud", []string{}), "another audience"},
		"an audience that is a number":    {set("aud", 5), "malformed"},
		"an audience that is an object":   {set("aud", map[string]any{audience: true}), "malformed"},
		"expired":                         {set("exp", u.now.Unix()), "expired"},
		"no exp":                          {func(c map[string]any) { delete(c, "exp") }, "lacks"},
		"no iat":                          {func(c map[string]any) { delete(c, "iat") }, "lacks"},
		"an exp that is a text":           {set("exp", "later"), "malformed"},
		"an exp without end":              {set("exp", 1e18), "lives for longer"},
		"a clock far ahead":               {set("iat", u.now.Add(time.Minute).Unix()), "future"},
		"not yet":                         {set("nbf", u.now.Add(time.Minute).Unix()), "future"},
		"too long":                        {set("exp", u.now.Add(time.Hour+time.Second).Unix()), "lives for longer than 1h"},
		"a claim that is not as required": {set("kind", "tag"), "claim kind"},
		"a required claim of a list":      {set("kind", []string{"branch"}), "claim kind"},
		"no required claim":               {func(c map[string]any) { delete(c, "kind") }, "claim kind"},
		"a rule that is not true":         {set("number", 5), "the number is too large"},
		"a rule of another type":          {set("number", "4"), "cannot be evaluated"},
		"a user that is not let in":       {set("repository", "root/octo"), "not root"},
		"no name":                         {func(c map[string]any) { delete(c, "repository") }, "cannot be evaluated"},
		"a name that is a number":         {set("repository", 5), "cannot be evaluated"},
		"an empty name":                   {set("repository", ""), "not a string, or is empty"},
		"groups that are a number":        {set("groups", 5), "not a list of strings"},
		"groups that are an object":       {set("groups", map[string]any{"ops": true}), "not a list of strings"},
		"a group that is a number":        {set("groups", []any{"ops", 5}), "not a string"},
		"a group that is a list":          {set("groups", []any{[]string{"ops"}}), "not a string"},
		"too many groups":                 {set("groups", slices.Repeat([]string{"g"}, maxGroups+1)), "more than 1000"},
		"an empty sub":                    {set("sub", ""), "lacks"},
		"a long sub":                      {set("sub", strings.Repeat("x", maxUID+1)), "too long"},
	} {
		got, err := v.Verify(t.Context(), u.token(tt.change))
		if !errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), tt.want) || got.Name != "" {
			t.Errorf("%s: %+v, %v; want it refused with %q", name, got, err, tt.want)
		}
	}
}

func TestOnlyKeysOfTheIssuerVerify(t *testing.T) {
	u := newUpstream(t)
	v, key := u.verifier(nil), u.keys["a"]
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	good := u.token(nil)
	parts := strings.Split(good, ".")
	header := func(more map[jose.HeaderKey]any) map[jose.HeaderKey]any {
		all := map[jose.HeaderKey]any{"kid": "a"}
		maps.Copy(all, more)
		return all
	}
	for name, raw := range map[string]string{
		"nothing": "", "text": "a.b.c", "cut": good[:len(good)-4], "long": good + strings.Repeat("A", Max),
		"without a signature":          "eyJhbGciOiJub25lIiwia2lkIjoiYSJ9." + parts[1] + ".",
		"an HMAC with the public key":  sign(t, jose.HS256, public, header(nil), u.claims()),
		"a foreign key of the same ID": sign(t, jose.ES256, newKey(t), header(nil), u.claims()),
		"a key that the token brings": sign(t, jose.ES256, newKey(t),
			map[jose.HeaderKey]any{"kid": "b", "jku": u.URL + "/mine"}, u.claims()),
		"no key": sign(t, jose.ES256, key, nil, u.claims()),
		"a long name of a key": sign(t, jose.ES256, key,
			map[jose.HeaderKey]any{"kid": strings.Repeat("a", maxKeyID+1)}, u.claims()),
		"another type": sign(t, jose.ES256, key, header(map[jose.HeaderKey]any{"typ": "logout+jwt"}),
			u.claims()),
		"a type that is a number":        sign(t, jose.ES256, key, header(map[jose.HeaderKey]any{"typ": 1}), u.claims()),
		"the claims of another":          parts[0] + ".e30." + parts[2],
		"in another form of signed text": `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
	} {
		if got, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) || got.Name != "" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	embedded := newKey(t)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: embedded, KeyID: "a"}},
		&jose.SignerOptions{EmbedJWK: true})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(u.claims()).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) {
		t.Errorf("a key in the header: %v", err)
	}
}

// A key that is published for one algorithm must not verify another algorithm, for which it may be weaker.
func TestKeyVerifiesOnlyItsPublishedAlgorithm(t *testing.T) {
	u := newUpstream(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for published, good := range map[string]map[jose.SignatureAlgorithm]bool{
		"RS256": {jose.RS256: true, jose.PS256: false, jose.RS512: false},
		"PS256": {jose.RS256: false, jose.PS256: true},
		"":      {jose.RS256: true, jose.PS256: true},
	} {
		u.with(func() {
			u.set = func() any {
				return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "r", Algorithm: published}}}
			}
		})
		v := u.verifier(nil)
		for algorithm, want := range good {
			if _, err := v.Verify(t.Context(),
				sign(t, algorithm, key, map[jose.HeaderKey]any{"kid": "r"}, u.claims())); (err == nil) != want || err != nil &&
				!errors.Is(err, connector.ErrRefused) {
				t.Errorf("a key for %q and a token with %s: %v, want it taken: %t", published, algorithm, err, want)
			}
		}
	}
}

// Keycloak publishes keys of several algorithms with one ID (keycloak/keycloak#14794), which RFC 7517 allows.
func TestKeysOfOneIDAreToldApart(t *testing.T) {
	u := newUpstream(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve, other, foreign := newKey(t), newKey(t), newKey(t)
	named := map[jose.HeaderKey]any{"kid": "k"}
	for name, keys := range map[string][]jose.JSONWebKey{
		"of two algorithms": {
			{Key: key.Public(), Algorithm: "RS256"}, {Key: curve.Public(), Algorithm: "ES256"},
		},
		"of two kinds, without an algorithm": {{Key: curve.Public()}, {Key: key.Public()}},
		"of one algorithm": {
			{Key: key.Public(), Algorithm: "RS256"}, {Key: other.Public(), Algorithm: "ES256"},
			{Key: curve.Public(), Algorithm: "ES256"},
		},
		"one key twice, also for encryption": {
			{Key: key.Public(), Algorithm: "RS256"}, {Key: key.Public(), Algorithm: "RSA-OAEP", Use: "enc"},
			{Key: curve.Public()}, {Key: curve.Public()},
		},
		"one key for two algorithms, and other": {
			{Key: key.Public(), Algorithm: "PS256"}, {Key: key.Public(), Algorithm: "RS256"},
			{Key: curve.Public(), Algorithm: "ES256"},
		},
	} {
		for i := range keys {
			keys[i].KeyID = "k"
		}
		u.with(func() { u.set = func() any { return jose.JSONWebKeySet{Keys: keys} } })
		v := u.verifier(nil)
		for _, raw := range []string{sign(t, jose.RS256, key, named, u.claims()),
			sign(t, jose.ES256, curve, named, u.claims())} {
			if got, err := v.Verify(t.Context(), raw); err != nil || !v.Holds(got) {
				t.Errorf("keys %s: %v, want the token taken and its key held", name, err)
			}
		}
		for _, raw := range []string{sign(t, jose.ES256, foreign, named, u.claims()),
			sign(t, jose.RS512, key, named, u.claims())} {
			if _, err := v.Verify(t.Context(), raw); keys[0].Algorithm != "" && !errors.Is(err, connector.ErrRefused) {
				t.Errorf("keys %s: %v for a token that none of them signs, want it refused", name, err)
			}
		}
	}
}

func TestIssuerThatOftenChangesItsKeysIsQueriedRarely(t *testing.T) {
	u := newUpstream(t)
	v := u.verifier(nil)
	old := u.token(nil)
	before, err := v.Verify(t.Context(), old)
	if err != nil {
		t.Fatal(err)
	}
	next := newKey(t)
	u.with(func() { u.keys = map[string]*ecdsa.PrivateKey{"b": next}; u.now = u.now.Add(askEvery) })
	fresh := sign(t, jose.ES256, next, map[jose.HeaderKey]any{"kid": "b"}, u.claims())
	if _, err := v.Verify(t.Context(), fresh); err != nil {
		t.Errorf("a new key: %v", err)
	}
	if _, err := v.Verify(t.Context(), old); !errors.Is(err, connector.ErrRefused) || v.Holds(before) {
		t.Errorf("a key that the issuer has no longer: %v", err)
	}
	asked := u.asks.Load()
	for i := range 200 { // whoever sends tokens with keys of their own
		raw := sign(t, jose.ES256, next, map[jose.HeaderKey]any{"kid": fmt.Sprint(i)}, u.claims())
		if _, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) {
			t.Fatal(err)
		}
	}
	if n := u.asks.Load() - asked; n != 0 {
		t.Errorf("200 tokens with unknown keys asked the issuer %d times within %s", n, askEvery)
	}
	t.Run("and is done without for an hour", func(t *testing.T) {
		u.with(func() { u.down, u.now = true, u.now.Add(50*time.Minute) })
		raw := sign(t, jose.ES256, next, map[jose.HeaderKey]any{"kid": "b"}, u.claims())
		user, err := v.Verify(t.Context(), raw)
		if err != nil || !v.Holds(user) {
			t.Errorf("with keys of 50 minutes: %v", err)
		}
		u.with(func() { u.now = u.now.Add(11 * time.Minute) })
		raw = sign(t, jose.ES256, next, map[jose.HeaderKey]any{"kid": "b"}, u.claims())
		if _, err := v.Verify(t.Context(), raw); err == nil || errors.Is(err, connector.ErrRefused) || v.Holds(user) {
			t.Errorf("with keys of more than an hour: %v; want that the issuer cannot be asked", err)
		}
		u.with(func() { u.down, u.now = false, u.now.Add(askEvery) })
		if err := v.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := v.Verify(t.Context(), raw); err != nil {
			t.Errorf("with an issuer that is back: %v", err)
		}
	})
}

func TestKeysAreFetchedAgainWithoutWaitingForThem(t *testing.T) {
	u := newUpstream(t)
	v := u.verifier(nil)
	user, err := v.Verify(t.Context(), u.token(nil))
	if err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	u.with(func() {
		u.hold, u.now, u.keys = hold, u.now.Add(freshFor), map[string]*ecdsa.PrivateKey{"a": newKey(t)}
	})
	for range 100 {
		if !v.Holds(user) {
			t.Fatal("the key is gone before the issuer has answered")
		}
	}
	close(hold)
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if v.Holds(user) {
			return errors.New("another key of the same ID is taken for the former one")
		}
		return nil
	})
	if n := u.asks.Load(); n > 4 {
		t.Errorf("the issuer was asked %d times", n)
	}
}

// A hub that verifies no token for a while does not query the issuer either. Its cached keys must not let in a token
// whose key was stolen and has been removed since.
func TestRemovedKeyIsRefusedWithinTenMinutesEvenByAnIdleHub(t *testing.T) {
	for _, idle := range []time.Duration{dueFor, 30 * time.Minute, keptFor - time.Second, keptFor} {
		u := newUpstream(t)
		v := u.verifier(nil)
		before, err := v.Verify(t.Context(), u.token(nil))
		if err != nil {
			t.Fatal(err)
		}
		stolen := u.keys["a"]
		u.with(func() { u.keys, u.now = map[string]*ecdsa.PrivateKey{"b": newKey(t)}, u.now.Add(idle) })
		if v.Holds(before) {
			t.Errorf("after %s: a token that was verified before is taken without asking", idle)
		}
		raw := sign(t, jose.ES256, stolen, map[jose.HeaderKey]any{"kid": "a"}, u.claims())
		if got, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) || got.Name != "" {
			t.Errorf("after %s: %+v, %v", idle, got, err)
		}
	}
	t.Run("and one that did not answer long ago is asked again before its keys count", func(t *testing.T) {
		u := newUpstream(t)
		v := u.verifier(nil)
		before, err := v.Verify(t.Context(), u.token(nil))
		if err != nil {
			t.Fatal(err)
		}
		u.with(func() { u.down, u.now = true, u.now.Add(dueFor) })
		if _, err := v.Verify(t.Context(), u.token(nil)); err != nil {
			t.Fatal(err)
		}
		stolen := u.keys["a"]
		u.with(func() {
			u.down, u.keys, u.now = false, map[string]*ecdsa.PrivateKey{"b": newKey(t)}, u.now.Add(failedFor)
		})
		raw := sign(t, jose.ES256, stolen, map[jose.HeaderKey]any{"kid": "a"}, u.claims())
		if got, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) || v.Holds(before) {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("and an issuer that does not answer holds a token up once a minute at most", func(t *testing.T) {
		u := newUpstream(t)
		v := u.verifier(nil)
		before, err := v.Verify(t.Context(), u.token(nil))
		if err != nil {
			t.Fatal(err)
		}
		u.with(func() { u.down, u.now = true, u.now.Add(30*time.Minute) })
		if _, err := v.Verify(t.Context(), u.token(nil)); err != nil || !v.Holds(before) {
			t.Fatalf("the keys that are known: %v", err)
		}
		hold := make(chan struct{})
		defer close(hold)
		u.with(func() { u.hold, u.now = hold, u.now.Add(askEvery) })
		for range 100 {
			// does not block: the issuer delays all responses
			if _, err := v.Verify(t.Context(), u.token(nil)); err != nil || !v.Holds(before) {
				t.Fatal(err)
			}
		}
	})
}

func TestResponsesOfALyingIssuerAreRefused(t *testing.T) {
	for name, change := range map[string]func(u *upstream){
		"another issuer": func(u *upstream) {
			u.document = func() any { return map[string]string{"issuer": "https://evil.example", "jwks_uri": u.URL + "/keys"} }
		},
		"keys without TLS": func(u *upstream) {
			plain := httptest.NewServer(http.HandlerFunc(u.serve)) // which holds the right ones
			u.t.Cleanup(plain.Close)
			u.document = func() any { return map[string]string{"issuer": u.URL, "jwks_uri": plain.URL + "/keys"} }
		},
		"keys in a file": func(u *upstream) {
			u.document = func() any { return map[string]string{"issuer": u.URL, "jwks_uri": "file:///etc/passwd"} }
		},
		"no JSON": func(u *upstream) { u.document = func() any { return "<html>" } },
		// CVE-2025-23388
		"a deep document": func(u *upstream) { u.document = func() any { return strings.Repeat("[", 1<<20) } },
		"no keys":         func(u *upstream) { u.set = func() any { return map[string]any{"keys": []any{}} } },
		"keys of no form": func(u *upstream) { u.set = func() any { return map[string]any{"keys": "none"} } },
		"a key to encrypt": func(u *upstream) {
			u.set = func() any {
				return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: u.keys["a"].Public(), KeyID: "a", Use: "enc"}}}
			}
		},
		"a key that is a secret": func(u *upstream) {
			u.set = func() any { return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: []byte("secret"), KeyID: "a"}}} }
		},
		"many keys": func(u *upstream) {
			u.set = func() any { return map[string]any{"keys": slices.Repeat([]map[string]string{{"kty": "EC"}}, 65)} }
		},
		"many bytes": func(u *upstream) { // CVE-2024-58259
			raw, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: u.keys["a"].Public(), KeyID: "a"}}})
			if err != nil {
				u.t.Fatal(err)
			}
			u.set = func() any { return strings.Repeat(" ", 5<<20) + string(raw) }
		},
		"keys at another place": func(u *upstream) { // CVE-2019-14435: a redirect leads to internal addresses
			inside := httptest.NewTLSServer(http.HandlerFunc(u.serve)) // which holds the right ones, and the same certificate
			u.t.Cleanup(inside.Close)
			u.redirect = inside.URL + "/keys"
		},
		"down": func(u *upstream) { u.down = true },
	} {
		t.Run(name, func(t *testing.T) {
			u := newUpstream(t)
			u.with(func() { change(u) })
			v := u.verifier(nil)
			if err := v.Check(t.Context()); err == nil || len(err.Error()) > 512 {
				t.Errorf("the condition says %v", err)
			}
			if got, err := v.Verify(t.Context(), u.token(nil)); err == nil || errors.Is(err, connector.ErrRefused) ||
				got.Name != "" {
				t.Errorf("a token: %+v, %v; want that the issuer cannot be asked", got, err)
			}
		})
	}
	t.Run("one that does not answer", func(t *testing.T) {
		u := newUpstream(t)
		hold := make(chan struct{})
		defer close(hold)
		u.with(func() { u.hold = hold })
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		v := u.verifier(nil)
		if _, err := v.Verify(ctx, u.token(nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a token: %v", err)
		}
	})
	t.Run("one with another certificate", func(t *testing.T) {
		u := newUpstream(t)
		v, err := New("ci", u.spec(), x509.NewCertPool(), u.time)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Check(t.Context()); err == nil {
			t.Error("its certificate is not checked")
		}
	})
}

// CVE-2024-32476, CVE-2026-65834: an expression of a user takes too much time, or an invalid one panics.
func TestExpressionsAreCompiledAndBounded(t *testing.T) {
	u := newUpstream(t)
	for name, tt := range map[string]struct {
		change func(*v1.JWTProvider)
		want   string
	}{
		"no CEL": {
			func(s *v1.JWTProvider) { s.ClaimMappings.Username.Expression = "claims.a +" },
			"claimMappings.username: compilation failed",
		},
		"an unknown function": {
			func(s *v1.JWTProvider) { s.ClaimMappings.Groups = &v1.JWTClaimOrExpression{Expression: "exec('x')"} },
			"claimMappings.groups",
		},
		"an unknown variable": {
			func(s *v1.JWTProvider) { s.ClaimMappings.UID = &v1.JWTClaimOrExpression{Expression: "user.uid"} },
			"claimMappings.uid",
		},
		"a rule that is no bool": {
			func(s *v1.JWTProvider) { s.ClaimValidationRules[1].Expression = "'true'" },
			"claimValidationRules[1]: must evaluate to bool",
		},
		"a user without a field": {
			func(s *v1.JWTProvider) { s.UserValidationRules[0].Expression = "user.password == ''" }, "userValidationRules[0]",
		},
		"both":        {func(s *v1.JWTProvider) { s.ClaimMappings.Username.Claim = "sub" }, "exactly one"},
		"no audience": {func(s *v1.JWTProvider) { s.Issuer.Audiences = nil }, "issuer.audiences"},
	} {
		spec := u.spec()
		tt.change(&spec)
		if _, err := New("ci", spec, nil, time.Now); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	for expression, groups := range map[string]int{
		// costs more than our limit, and less than Kubernetes' limit
		"dyn(claims.groups).all(a, dyn(claims.groups).all(b, string(a) == string(b)))": 300,
		// 7·10⁸ steps
		"dyn(claims.groups).all(a, dyn(claims.groups).all(b, dyn(claims.groups).all(c, string(a) + string(b) != string(c))))": 900,
	} {
		v := u.verifier(func(s *v1.JWTProvider) {
			s.ClaimValidationRules = []v1.JWTClaimRule{{Expression: expression}}
		})
		raw := u.token(func(c map[string]any) { c["groups"] = slices.Repeat([]string{"g"}, groups) })
		if _, err := v.Verify(t.Context(), raw); !errors.Is(err, connector.ErrRefused) ||
			!strings.Contains(err.Error(), "takes too long") {
			t.Errorf("%s of %d groups: %v", expression, groups, err)
		}
	}
	short := u.verifier(func(s *v1.JWTProvider) { s.MaxTokenLifetime = &metav1.Duration{Duration: 5 * time.Minute} })
	if _, err := short.Verify(t.Context(), u.token(nil)); !errors.Is(err, connector.ErrRefused) ||
		!strings.Contains(err.Error(), "longer than 5m") {
		t.Errorf("a token that lives for longer than the provider lets it: %v", err)
	}
}

// A user who may set any address in an account of the issuer must not be mistaken for the owner of the address.
func TestUnverifiedAddressOfAWorkloadIsRefused(t *testing.T) {
	u := newUpstream(t)
	const address = "bot@example.com"
	for name, change := range map[string]func(*v1.JWTProvider){
		"as the name":                  func(s *v1.JWTProvider) { s.ClaimMappings.Username = v1.JWTClaimOrExpression{Claim: "email"} },
		"as the name in an expression": func(s *v1.JWTProvider) { s.ClaimMappings.Username.Expression = "claims['email']" },
		"as the uid in an expression": func(s *v1.JWTProvider) {
			s.ClaimMappings.UID = &v1.JWTClaimOrExpression{Expression: "claims.email"}
		},
		"as a claim that must be so": func(s *v1.JWTProvider) {
			s.ClaimValidationRules = []v1.JWTClaimRule{{Claim: "email", RequiredValue: address}}
		},
		"in a rule": func(s *v1.JWTProvider) {
			s.ClaimValidationRules = []v1.JWTClaimRule{{Expression: "claims.email.endsWith('@example.com')"}}
		},
	} {
		v := u.verifier(change)
		for _, verified := range []any{nil, false, "true", 1, true} {
			_, err := v.Verify(t.Context(), u.token(func(c map[string]any) {
				c["email"], c["email_verified"] = address,
					verified
			}))
			if (err == nil) != (verified == true) || err != nil &&
				(!errors.Is(err, connector.ErrRefused) || strings.Contains(err.Error(), address)) {
				t.Errorf("%s, with email_verified %v: %v", name, verified, err)
			}
		}
	}
}

// examples returns the providers in the documentation and in config/samples, by the URL of the issuer and the file.
func examples(t *testing.T) map[string]v1.JWTProvider {
	t.Helper()
	all := map[string]v1.JWTProvider{}
	for _, file := range []string{"docs/operations/sign-in-jwt.md", "config/samples/authprovider_jwt.yaml"} {
		raw, err := os.ReadFile(filepath.Join("../../..", file))
		if err != nil {
			t.Fatal(err)
		}
		blocks := []string{string(raw)}
		if strings.HasSuffix(file, ".md") {
			blocks = strings.Split(string(raw), "```")
		}
		for _, block := range blocks {
			if !strings.Contains(block, "jwt:\n") {
				continue
			}
			var got struct {
				v1.AuthProviderSpec `json:",inline"`
				Spec                v1.AuthProviderSpec `json:"spec"`
			}
			if err := yaml.Unmarshal([]byte(strings.TrimPrefix(block, "yaml\n")), &got); err != nil {
				t.Fatalf("%s: %v in %s", file, err, block)
			}
			if got.Spec.JWT == nil {
				got.Spec.JWT = got.JWT
			}
			all[got.Spec.JWT.Issuer.URL+" "+filepath.Ext(file)] = *got.Spec.JWT
		}
	}
	return all
}

// The issuers document these claims.
func TestPipelinesAndServiceAccountsAreLetInByTheExamples(t *testing.T) {
	github := map[string]any{"sub": "repo:Acme/My.App:ref:refs/heads/main", "repository": "Acme/My.App", "repository_id": "74", "repository_owner_id": "1234567", "ref": "refs/heads/main", "environment": "prod"}
	gitlab := map[string]any{"sub": "project_path:Group/sub/project:ref_type:branch:ref:main", "project_path": "Group/sub/project", "project_id": "22", "ref_protected": "true"}
	account := map[string]any{"sub": "system:serviceaccount:ci:deployer", "kubernetes.io": map[string]any{"namespace": "ci", "serviceaccount": map[string]any{"name": "deployer", "uid": "5"}}}
	tests := map[string]struct {
		claims  map[string]any
		want    User
		foreign map[string]any // changes for which it is refused
	}{
		"https://token.actions.githubusercontent.com .md":   {github, User{Name: "acme@my.app", UID: "74", Groups: []string{"environment-prod"}}, map[string]any{"repository_owner_id": "7654321", "ref": "refs/pull/1/merge"}},
		"https://token.actions.githubusercontent.com .yaml": {github, User{Name: "acme@my.app", UID: "74", Groups: []string{"environment-prod"}}, map[string]any{"repository_owner_id": "7654321", "ref": "refs/heads/main2"}},
		"https://gitlab.example.com .md":                    {gitlab, User{Name: "group+sub+project", UID: "22"}, map[string]any{"ref_protected": "false"}},
		"https://kubernetes.default.svc.cluster.local .md":  {account, User{Name: "deployer@ci", UID: "5"}, map[string]any{"kubernetes.io": map[string]any{}}},
	}
	found := examples(t)
	if len(found) != len(tests) {
		t.Errorf("there are %d examples, and %d are tried: %v", len(found), len(tests), slices.Collect(maps.Keys(found)))
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r, err := compile(found[name])
			if err != nil {
				t.Fatal(err)
			}
			if got, err := r.user(t.Context(), "ci", tt.claims); err != nil || got.Name != tt.want.Name || got.UID != tt.want.UID || !slices.Equal(got.Groups, tt.want.Groups) {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
			for claim, value := range tt.foreign {
				other := maps.Clone(tt.claims)
				other[claim] = value
				if got, err := r.user(t.Context(), "ci", other); err == nil {
					t.Errorf("with %s %v it is %+v", claim, value, got)
				}
				delete(other, claim)
				if got, err := r.user(t.Context(), "ci", other); err == nil {
					t.Errorf("without %s it is %+v", claim, got)
				}
			}
		})
	}
}

// FuzzVerify: nothing but what the issuer has signed is a token.
func FuzzVerify(f *testing.F) {
	u := newUpstream(f)
	v := u.verifier(nil)
	good := u.token(nil)
	for _, seed := range []string{good, good[:20], "a.b.c", "..", "eyJhbGciOiJub25lIn0.e30.", strings.ToUpper(good)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := v.Verify(t.Context(), raw)
		if (err == nil) != (got.Name != "") || err == nil && got.Name != "octo@app" {
			t.Errorf("%q is a token of %+v (%v)", raw, got, err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	u := newUpstream(b)
	v, raw := u.verifier(nil), u.token(nil)
	for b.Loop() {
		if _, err := v.Verify(b.Context(), raw); err != nil {
			b.Fatal(err)
		}
	}
}
