// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/test/testkit"
)

const maxTTLForTest = 60 * 24 * time.Hour

// audiencesForTest are the audiences of a hub with one URL.
var audiencesForTest = identity.Audiences{Hub: []string{"https://hub.example.com"}, Clusters: "/k8s/clusters/",
	Member: memberForTest}

// memberForTest parses a path as the proxy does. The proxy has its own tests for it.
func memberForTest(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, "/k8s/local") {
		return identity.Local
	}
	rest, ok := strings.CutPrefix(r.URL.Path, "/k8s/clusters/")
	if parts := strings.SplitN(rest, "/", 3); ok && len(parts) > 1 {
		return parts[0] + "/" + parts[1]
	}
	return ""
}

// access signs in and returns an access token.
func (f *fixture) access() string {
	f.t.Helper()
	verifier := oauth2.GenerateVerifier()
	got, err := f.redeem(f.code(verifier), verifier)
	if err != nil {
		f.t.Fatal(err)
	}
	return got.AccessToken
}

// tokens sends a request to the endpoint of tokens.
func (f *fixture) tokens(method, path, access, body string) response {
	f.t.Helper()
	return f.call(method, scripttoken.Path+path, access, body)
}

// call sends a request with a token.
func (f *fixture) call(method, path, access, body string) response {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.server.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+access)
	req.Header.Set("Content-Type", "application/json")
	resp, err := f.server.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer resp.Body.Close()
	var read bytes.Buffer
	if _, err := read.ReadFrom(resp.Body); err != nil {
		f.t.Fatal(err)
	}
	return response{resp.StatusCode, read.String(), resp.Header}
}

// make creates a token.
func (f *fixture) make(access, body string) scripttoken.Info {
	f.t.Helper()
	got := f.tokens(http.MethodPost, "", access, body)
	var info scripttoken.Info
	if err := json.Unmarshal([]byte(got.body), &info); err != nil || got.code != http.StatusCreated ||
		got.header.Get("Cache-Control") != "no-store" {
		f.t.Fatalf("make a token: %d %s (%v)", got.code, got.body, err)
	}
	return info
}

// identifyAt sends a token to the proxy's authentication for a path.
func (f *fixture) identifyAt(path, raw string) (identity.Identity, error) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+raw)
	return f.issuer.Authenticate(func(*http.Request) (identity.Identity, error) {
		return identity.Identity{User: "other"},
			nil
	})(r)
}

const inMember = "/k8s/clusters/team/prod/api"

func TestUserCreatesListsAndRevokesATokenForScripts(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	made := f.make(access, `{"description":"CI of web","ttl":"24h"}`)
	if !made.Expires.Equal(f.now().UTC().Truncate(time.Second).Add(24*time.Hour)) || made.Description != "CI of web" {
		t.Errorf("the token is %+v", made)
	}
	id, err := f.identifyAt(inMember, made.Token)
	if err != nil || id.User != "local:"+f.user.Name || id.UID != string(f.user.UID) ||
		fmt.Sprint(id.Hub.Extra[credentialID]) != "[TOKEN="+made.ID+"]" ||
		id.Extra["hub:"+credentialID][0] != "TOKEN="+made.ID {
		t.Fatalf("the proxy takes it for %+v (%v)", id, err)
	}
	secret := &corev1.Secret{}
	if err := f.Client.Get(t.Context(), client.ObjectKey{Namespace: f.namespace, Name: scripttoken.Prefix + made.ID},
		secret); err != nil {
		t.Fatal(err)
	}
	_, words, _ := strings.Cut(made.Token, ":")
	// CVE-2021-36782 and similar vulnerabilities
	if raw, err := json.Marshal(secret); err != nil || strings.Contains(string(raw), words) ||
		len(secret.OwnerReferences) != 1 {
		t.Errorf("the Secret has the token's secret, or no owner: %v", err)
	}
	for _, value := range secret.Data {
		if bytes.Contains(value, []byte(words)) {
			t.Error("the token's secret is stored")
		}
	}
	listed := f.tokens(http.MethodGet, "", access, "")
	var list scripttoken.List
	if err := json.Unmarshal([]byte(listed.body), &list); err != nil || len(list.Items) != 1 ||
		list.Items[0].ID != made.ID || strings.Contains(listed.body, words) ||
		strings.Contains(listed.body, string(secret.Data["hash"])) {
		t.Errorf("the list is %s (%v)", listed.body, err)
	}
	t.Run("but no other user does", func(t *testing.T) {
		mallory := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "mallory-of-" + f.namespace}}
		f.addUser(mallory)
		alice := f.user
		f.user = mallory
		theirs := f.access()
		f.user = alice
		if got := f.tokens(http.MethodGet, "", theirs, ""); got.code != http.StatusOK || strings.Contains(got.body, made.ID) {
			t.Errorf("another user sees the token: %s", got.body)
		}
		if got := f.tokens(http.MethodDelete, "/"+made.ID, theirs, ""); got.code != http.StatusNotFound {
			t.Errorf("another user revokes the token: %d %s", got.code, got.body)
		}
		if _, err := f.identifyAt(inMember, made.Token); err != nil {
			t.Error(err)
		}
	})
	t.Run("nor does a token make another", func(t *testing.T) {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			if got := f.tokens(method, "", made.Token, "{}"); got.code != http.StatusUnauthorized {
				t.Errorf("%s with a token for scripts: %d %s", method, got.code, got.body)
			}
		}
	})
	if got := f.tokens(http.MethodDelete, "/"+made.ID, access, ""); got.code != http.StatusOK {
		t.Fatalf("revoke: %d %s", got.code, got.body)
	}
	if _, err := f.identifyAt(inMember, made.Token); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that was revoked is refused with %v", err)
	}
	if got := f.tokens(http.MethodDelete, "/"+made.ID, access, ""); got.code != http.StatusNotFound {
		t.Errorf("revoke again: %d", got.code)
	}
}

// CVE-2023-22650, GHSA-c45c-39f6-6gw9: tokens outlive their user.
func TestTokenForScriptsEndsWithItsUser(t *testing.T) {
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
		"expired": func(f *fixture) { f.wait(time.Hour) },
		"the hub became stricter": func(f *fixture) {
			f.issuer.scriptTokens.MaxTTL = time.Minute
			f.wait(time.Minute)
		},
		"moved to another user": func(f *fixture) {
			other := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "other-of-" + f.namespace}}
			f.Apply(f.t, other)
			f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), other) })
			var all corev1.SecretList
			if err := f.Client.List(f.t.Context(), &all, client.InNamespace(f.namespace),
				client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindToken}); err != nil || len(all.Items) != 1 {
				f.t.Fatal(len(all.Items), err)
			}
			testkit.Update(f.t, f.Client, &all.Items[0], func(s *corev1.Secret) { s.Labels[sessions.LabelUser] = other.Name })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			made := f.make(f.access(), `{"ttl":"1h"}`)
			if _, err := f.identifyAt(inMember, made.Token); err != nil {
				t.Fatal(err)
			}
			end(f)
			if id, err := f.identifyAt(inMember, made.Token); !apierrors.IsUnauthorized(err) {
				t.Errorf("the token is one of %s (%v)", id.User, err)
			}
		})
	}
}

func TestTokenForOneClusterIsRefusedElsewhere(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	one, all := f.make(access, `{"cluster":"team/prod"}`), f.make(access, `{}`)
	for path, want := range map[string][2]bool{
		inMember: {true, true}, "/k8s/clusters/team/prod2/api": {false, true}, "/k8s/clusters/team2/prod/api": {false,
			true}, "/k8s/local/api": {false, false}, "/metrics": {false, true},
	} {
		for n, token := range []string{one.Token, all.Token} {
			if id, err := f.identifyAt(path, token); (err == nil) != want[n] || err == nil && id.User == "other" {
				t.Errorf("%s with token %d of two: %+v (%v), want it accepted: %t", path, n, id, err, want[n])
			}
		}
	}
}

// counting counts the requests to the API server.
type counting struct {
	client.Client
	gets, patches atomic.Int32
}

func (c *counting) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	c.gets.Add(1)
	return c.Client.Get(ctx, key, object, options...)
}

func (c *counting) Patch(ctx context.Context, object client.Object, patch client.Patch,
	options ...client.PatchOption) error {
	defer c.patches.Add(1)
	return c.Client.Patch(ctx, object, patch, options...)
}

// noTokens is a cache that has no tokens yet.
type noTokens struct{ client.Client }

func (c noTokens) Get(ctx context.Context, key client.ObjectKey, object client.Object,
	options ...client.GetOption) error {
	if strings.HasPrefix(key.Name, scripttoken.Prefix) {
		return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}
	return c.Client.Get(ctx, key, object, options...)
}

func TestOnlyTokensOfTheHubAreLookedUpAtTheAPIServer(t *testing.T) {
	f := newFixture(t)
	made := f.make(f.access(), `{}`)
	live := &counting{Client: f.Client}
	f.issuer.scriptTokens.Live, f.cache.Client = live, noTokens{f.Client}
	secret := made.Token[strings.Index(made.Token, ":"):]
	recent := fmt.Sprintf("%08x", f.now().Unix())
	for n := range 200 {
		for _, id := range []string{fmt.Sprintf("%s%032x", recent, n), fmt.Sprintf("%040x", n),
			made.ID[:32] + fmt.Sprintf("%08x", n)} {
			if _, err := f.identifyAt(inMember, "token-"+id+secret); !apierrors.IsUnauthorized(err) {
				t.Fatalf("%s: %v", id, err)
			}
		}
	}
	for _, cut := range []string{made.Token[:len(made.Token)-1], "token-" + made.ID + ":", made.Token + "A"} {
		if id, err := f.identifyAt(inMember, cut); !apierrors.IsUnauthorized(err) || id.User == "other" {
			t.Errorf("%d bytes of a token: %+v (%v); it must not go on to a TokenReview", len(cut), id, err)
		}
	}
	if n := live.gets.Load(); n != 0 {
		t.Errorf("garbage asked the API server %d times", n)
	}
	if _, err := f.identifyAt(inMember, made.Token); err != nil || live.gets.Load() != 1 {
		t.Errorf("a token that another replica made just now: %v, with %d questions", err, live.gets.Load())
	}
	if _, err := f.identifyAt(inMember, made.Token[:len(made.Token)-2]+"AA"); !apierrors.IsUnauthorized(err) {
		t.Errorf("its ID with another secret: %v", err)
	}
	f.wait(sessions.Settle + time.Second)
	if _, err := f.identifyAt(inMember, made.Token); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that no cache has after a minute is accepted (%v)", err)
	}
}

func TestLastUseOfATokenIsWrittenRarely(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	var made []scripttoken.Info
	for range 4 {
		made = append(made, f.make(access, `{}`))
	}
	writes := &counting{Client: f.Client}
	f.cache.Client = writes
	use := func() {
		for range 50 {
			for _, token := range made {
				if _, err := f.identifyAt(inMember, token.Token); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	await := func(want int32) {
		t.Helper()
		testkit.Eventually(t, 20*time.Second, func(context.Context) error {
			if n := writes.patches.Load(); n != want {
				return fmt.Errorf("%d writes, want %d", n, want)
			}
			return nil
		})
	}
	use()
	await(1) // of four tokens at once, of which the rest is kept in the next seconds
	for range len(made) - 1 {
		f.wait(time.Second)
		use()
	}
	await(int32(len(made)))
	f.wait(usedEvery / 2)
	use()
	var list scripttoken.List
	if err := json.Unmarshal([]byte(f.tokens(http.MethodGet, "", f.access(), "").body), &list); err != nil ||
		len(list.Items) != len(made) {
		t.Fatal(list, err)
	}
	for _, item := range list.Items {
		if item.LastUsed == nil || f.now().Sub(*item.LastUsed) > usedEvery {
			t.Errorf("the last use is %v", item.LastUsed)
		}
	}
	if n := writes.patches.Load(); n != int32(len(made)) {
		t.Errorf("%d writes within the hour, want %d", n, len(made))
	}
	f.wait(usedEvery / 2)
	use()
	await(int32(len(made)) + 1)
}

func TestInvalidRequestsForTokensAreRefused(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	for name, body := range map[string]string{
		"no JSON": "description=x", "an unknown field": `{"user":"admin"}`, "two bodies": `{}{}`, "no end": `{"ttl":"0s"}`, "longer than the hub allows": `{"ttl":"1441h"}`, "the past": `{"ttl":"-1h"}`,
		"a number": `{"ttl":3600}`, "a long description": `{"description":"` + strings.Repeat("x",
			maxDescription+1) + `"}`, "a description that moves the cursor": `{"description":"\u001b[2J"}`,
		"a description that turns text round": `{"description":"\u202e"}`, "no cluster": `{"cluster":"prod"}`, "a path": `{"cluster":"team/../prod"}`, "capitals": `{"cluster":"Team/prod"}`,
		// CVE-2025-23388
		"large": `{"description":"` + strings.Repeat(" ", maxForm) + `"}`, "deep": strings.Repeat("[", 15<<10),
	} {
		if got := f.tokens(http.MethodPost, "", access, body); got.code != http.StatusBadRequest {
			t.Errorf("%s: %d %.200s", name, got.code, got.body)
		}
	}
	if got := f.tokens(http.MethodPost, "", "not-a-token", "{}"); got.code != http.StatusUnauthorized {
		t.Errorf("without having signed in: %d", got.code)
	}
	for range maxTokens {
		f.make(access, `{}`)
	}
	if got := f.tokens(http.MethodPost, "", access, `{}`); got.code != http.StatusForbidden ||
		!strings.Contains(got.body, "revoke one") {
		t.Errorf("one more token than a user may have: %d %s", got.code, got.body)
	}
}
