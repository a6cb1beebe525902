// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/oauth"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/testkit"
)

func exchangeFields(subject, cluster string) url.Values {
	return url.Values{"grant_type": {grantExchange}, "client_id": {"kubectl"}, "subject_token": {subject},
		"subject_token_type": {typeAccessToken}, "audience": {oauth.AudienceCluster + cluster}}
}

// narrowed exchanges a token for a token for one cluster.
func (f *fixture) narrowed(subject, cluster string) grant.Granted {
	f.t.Helper()
	got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, exchangeFields(subject, cluster), nil)
	var answer grant.Granted
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.code != http.StatusOK ||
		got.header.Get("Cache-Control") != "no-store" || answer.Access == "" {
		f.t.Fatalf("the exchange gets the response %d %s (%v)", got.code, got.body, err)
	}
	return answer
}

// identifiedAt sends a token to the authentication of a replica, for a path.
func identifiedAt(t testing.TB, s *Server, path, raw string) (identity.Identity, error) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Header.Set("Authorization", "Bearer "+raw)
	return s.Authenticate(func(*http.Request) (identity.Identity, error) {
		t.Error("a token of this issuer came to the TokenReview")
		return identity.Identity{}, nil
	})(r)
}

// A token for one cluster must not be accepted by another cluster or by the hub.
func TestExchangedTokenIsGoodForItsClusterOnly(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	before := f.objects()
	f.wait(4 * time.Minute)
	got := f.narrowed(access, "team/prod")
	if got.Issued != typeAccessToken || got.Type != "Bearer" || got.ID != "" || got.Refresh != "" || got.Expires < 359 ||
		got.Expires > 360 {
		t.Errorf("the response is %d s, %q %q, want an access token alone, for at most the 6 minutes that are left",
			got.Expires, got.Issued, got.Type)
	}
	if n := f.objects(); n != before {
		t.Errorf("the exchange left %d objects", n-before)
	}
	for path, good := range map[string]bool{
		inMember: true, "/k8s/clusters/team/prod": true, "/k8s/clusters/team/prod2/api": false, "/k8s/clusters/team2/prod/api": false, "/k8s/clusters/team/api": false,
		"/k8s/local/api": false, "/v1/whoami": false, "/v1/clusters": false, "/metrics": false, "/": false,
	} {
		id, err := identifiedAt(t, f.issuer, path, got.Access)
		if (err == nil) != good || !good && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %+v (%v), want it accepted: %t", path, id, err, good)
		}
		if good && (id.User != "local:"+f.user.Name || id.UID != string(f.user.UID)) {
			t.Errorf("%s: the user is %+v", path, id)
		}
	}
	for method, path := range map[string]string{http.MethodGet: "", http.MethodPost: "",
		http.MethodDelete: "/" + strings.Repeat("0", 40)} {
		if answer := f.tokens(method, path, got.Access, "{}"); answer.code != http.StatusForbidden {
			t.Errorf("tokens for scripts, %s: %d %s", method, answer.code, answer.body)
		}
	}
	for _, cluster := range []string{"team/prod", "team/prod2"} {
		if answer := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken,
			exchangeFields(got.Access, cluster), nil); answer.code != http.StatusBadRequest ||
			!strings.Contains(answer.body, "invalid_request") {
			t.Errorf("it is exchanged for one of %s: %d %s", cluster, answer.code, answer.body)
		}
	}
	if answer := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathRevoke,
		url.Values{"client_id": {"kubectl"}, "token": {got.Access}}, nil); answer.code != http.StatusBadRequest ||
		!strings.Contains(answer.body, "unsupported_token_type") {
		t.Errorf("it is revoked: %d %s", answer.code, answer.body)
	}
	if _, err := identifiedAt(t, f.issuer, inMember, access); err != nil {
		t.Errorf("the session has ended: %v", err)
	}
	f.wait(6 * time.Minute)
	if _, err := identifiedAt(t, f.issuer, inMember, got.Access); !apierrors.IsUnauthorized(err) {
		t.Errorf("it outlives the token that it was made of: %v", err)
	}
}

// CVE-2023-22650, CVE-2022-31677: tokens outlive their user or session. An exchanged token ends with them, at every
// replica.
func TestExchangedTokenEndsWithItsUserAndSession(t *testing.T) {
	for name, end := range map[string]func(f *fixture, access string){
		"user disabled": func(f *fixture, _ string) {
			testkit.Update(f.t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = true })
		},
		"user made again": func(f *fixture, _ string) {
			if err := f.Client.Delete(f.t.Context(), f.user); err != nil {
				f.t.Fatal(err)
			}
			f.Apply(f.t, &v1.User{ObjectMeta: metav1.ObjectMeta{Name: f.user.Name}})
		},
		"session revoked": func(f *fixture, access string) {
			if got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathRevoke,
				url.Values{"client_id": {"kubectl"}, "token": {access}}, nil); got.code != http.StatusOK {
				f.t.Fatal(got)
			}
		},
		"session removed": func(f *fixture, _ string) {
			if err := f.Client.DeleteAllOf(f.t.Context(), &corev1.Secret{}, client.InNamespace(f.namespace),
				client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}); err != nil {
				f.t.Fatal(err)
			}
		},
		"keys removed": func(f *fixture, _ string) {
			if err := f.Client.Delete(f.t.Context(),
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: KeysSecret}}); err != nil {
				f.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			access, other := f.access(), f.replica(f.Client)
			narrow := f.narrowed(access, "team/prod").Access
			for _, s := range []*Server{f.issuer, other} {
				if _, err := identifiedAt(t, s, inMember, narrow); err != nil {
					t.Fatal(err)
				}
			}
			end(f, access)
			for n, s := range []*Server{f.issuer, other} {
				if id, err := identifiedAt(t, s, inMember, narrow); !apierrors.IsUnauthorized(err) {
					t.Errorf("replica %d takes it for %s (%v)", n, id.User, err)
				}
				if got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken,
					exchangeFields(access, "team/prod"), nil); got.code == http.StatusOK {
					t.Errorf("the token is exchanged again: %s", got.body)
				}
			}
		})
	}
}

// CVE-2023-22648: a token has groups that its user no longer has.
func TestExchangedTokenHasTheGroupsOfItsSession(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	tokens := f.signInAt(p)
	first := f.narrowed(tokens.AccessToken, "team/prod").Access
	if id, err := identifiedAt(t, f.issuer, inMember, first); err != nil || len(id.Groups) != 1 ||
		id.Groups[0] != provider.Name+":ops" {
		t.Fatalf("the user is %+v (%v)", id, err)
	}
	f.wait(5 * time.Minute)
	p.set(func(p *openID) { p.groups = nil })
	if r := f.again(tokens.RefreshToken); r.code != http.StatusOK {
		t.Fatalf("the refresh gets the response %d %s", r.code, r.body)
	}
	for name, raw := range map[string]string{"before": first,
		"after": f.narrowed(tokens.AccessToken, "team/prod").Access} {
		if id, err := identifiedAt(t, f.issuer, inMember, raw); err != nil || len(id.Groups) > 0 {
			t.Errorf("a token that was exchanged %s the group was lost is of %+v (%v)", name, id, err)
		}
	}
	testkit.Update(t, f.Client, provider, func(p *v1.AuthProvider) { p.Spec.Disabled = true })
	if _, err := identifiedAt(t, f.issuer, inMember, first); !apierrors.IsUnauthorized(err) {
		t.Errorf("with the provider disabled it is refused with %v", err)
	}
}

func TestExchangeTakesOneTokenOfASessionOnly(t *testing.T) {
	f := newFixture(t)
	access := f.access()
	forScripts := f.make(access, `{}`).Token
	current, err := f.issuer.keyring.Current(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	noSession, err := token.Sign(current.Active,
		token.Claims{Issuer: f.server.URL, Subject: "local:" + f.user.Name, Audience: []string{"kubectl"}, Session: "none",
			UID: string(f.user.UID)}, f.now().Add(-2*sessions.Settle))
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string]string{"text": "x", "a token for scripts": forScripts, "cut": access[:len(access)-4],
		"of no session": noSession, "long": strings.Repeat("x", token.Max+1)} {
		got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, exchangeFields(raw, "team/prod"), nil)
		if got.code != http.StatusBadRequest || !strings.Contains(got.body, `"invalid_request"`) ||
			strings.Contains(got.body, raw) && len(raw) > 1 {
			t.Errorf("%s: %d %s", name, got.code, got.body)
		}
	}
	fields := exchangeFields(access, "team/prod")
	fields.Add("audience", "cluster:team/other")
	if got := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, fields,
		nil); got.code != http.StatusBadRequest || !strings.Contains(got.body, `"invalid_request"`) {
		t.Errorf("two audiences: %d %s", got.code, got.body)
	}
	if got := f.send(f.server.Client(), http.MethodGet, f.server.URL+PathDiscovery, nil, nil); !strings.Contains(got.body,
		grantExchange) {
		t.Errorf("discovery does not name the exchange: %s", got.body)
	}
}
