// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/grant"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/test/testkit"
)

// directly makes the issuer issue tokens for direct access to team/prod.
func (f *fixture) directly(lifetime time.Duration) {
	f.issuer.Options = Direct{Path: "/k8s/clusters/",
		Lifetime: func(_ context.Context, _ identity.Identity, cluster types.NamespacedName) (time.Duration, error) {
			switch cluster.String() {
			case "team/prod":
				return lifetime, nil
			case "team/away":
				return 0, errors.New("the API server is away")
			}
			return 0, nil
		}}
}

func (f *fixture) askDirect(subject, cluster string) response {
	fields := exchangeFields(subject, cluster)
	fields.Set("audience", f.server.URL+"/k8s/clusters/"+cluster)
	return f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, fields, nil)
}

// direct returns a token for direct access to team/prod, with the claims that an agent reads.
func (f *fixture) direct(subject string) (grant.Granted, token.Claims) {
	f.t.Helper()
	got := f.askDirect(subject, "team/prod")
	var answer grant.Granted
	if err := json.Unmarshal([]byte(got.body), &answer); err != nil || got.code != http.StatusOK {
		f.t.Fatalf("the exchange gets the response %d %s (%v)", got.code, got.body, err)
	}
	raw, err := f.issuer.PublishedKeys(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	published, err := token.ParsePublished(raw)
	if err != nil {
		f.t.Fatal(err)
	}
	want := f.issuer.Audience(types.NamespacedName{Namespace: "team", Name: "prod"})
	claims, _, err := token.Verify(answer.Access, published, f.issuer.Issuer(), func(audience string) time.Duration {
		if audience != want {
			return 0
		}
		return token.LongestDirect
	})
	if err != nil {
		f.t.Fatalf("an agent refuses the token: %v", err)
	}
	return answer, claims
}

// sessions returns the sessions with tokens for direct access.
func (f *fixture) sessions() []corev1.Secret {
	f.t.Helper()
	var all corev1.SecretList
	if err := f.Client.List(f.t.Context(), &all, client.InNamespace(f.namespace)); err != nil {
		f.t.Fatal(err)
	}
	return slices.DeleteFunc(all.Items, func(one corev1.Secret) bool { return len(one.Data[sessions.KeyDirect]) == 0 })
}

func (f *fixture) denied() []string {
	f.t.Helper()
	denied, _, err := f.issuer.Denied(context.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	return denied
}

func TestTokenForDirectAccessIsValidForItsClusterOnly(t *testing.T) {
	f := newFixture(t)
	f.directly(8 * time.Hour)
	session := f.session()
	got, claims := f.direct(session.Access)
	if got.Expires < 8*3600-1 || got.Expires > 8*3600 || claims.Subject != "local:"+f.user.Name ||
		claims.UID != string(f.user.UID) {
		t.Errorf("the token is of %+v, for %d s", claims, got.Expires)
	}
	for _, path := range []string{inMember, "/k8s/local/api", "/v1/whoami", "/v1/clusters"} {
		if id, err := identifiedAt(t, f.issuer, path, got.Access); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: the hub takes it for %+v (%v)", path, id, err)
		}
	}
	for what, answer := range map[string]response{"another": f.askDirect(got.Access, "team/prod"),
		"a narrow one": f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken,
			exchangeFields(got.Access, "team/prod"), nil)} {
		if answer.code != http.StatusBadRequest {
			t.Errorf("it is exchanged for %s: %d %s", what, answer.code, answer.body)
		}
	}
	before := f.sessionOf(claims.Session).ResourceVersion
	f.direct(session.Access)
	if after := f.sessionOf(claims.Session).ResourceVersion; after != before {
		t.Error("a second token at once writes the session again")
	}
}

func (f *fixture) sessionOf(id string) *corev1.Secret {
	f.t.Helper()
	secret := &corev1.Secret{}
	if err := f.Client.Get(f.t.Context(), f.key(sessions.Prefix+id), secret); err != nil {
		f.t.Fatal(err)
	}
	return secret
}

func TestRequestsForDirectAccessThatAreRefused(t *testing.T) {
	f := newFixture(t)
	f.directly(time.Hour)
	session, brief := f.session(), f.access()
	for name, tt := range map[string]struct {
		subject, cluster, want string
		code                   int
	}{
		"for a cluster without, or that the user may not reach": {session.Access, "team/other", "invalid_target", 400},
		"for another workspace":                                 {session.Access, "team2/prod", "invalid_target", 400},
		"for no cluster":                                        {session.Access, "team", "invalid_target", 400},
		"for a path":                                            {session.Access, "team/../prod", "invalid_target", 400},
		"while that is not known": {
			session.Access, "team/away", "temporarily_unavailable", 503,
		},
		"without a session that lasts": {brief, "team/prod", "offline_access", 400},
		"without a token":              {"x", "team/prod", "invalid_request", 400},
	} {
		if got := f.askDirect(tt.subject, tt.cluster); got.code != tt.code || !strings.Contains(got.body, tt.want) {
			t.Errorf("%s: %d %s, want %d %s", name, got.code, got.body, tt.code, tt.want)
		}
	}
}

// TestDirectTokenEndsWithItsUserAndSession covers CVE-2023-22650 and GHSA-c45c-39f6-6gw9. Members are informed of
// each ended session, as long as it may have tokens.
func TestDirectTokenEndsWithItsUserAndSession(t *testing.T) {
	for name, end := range map[string]func(*fixture, tokens){
		"revoked": func(f *fixture, s tokens) {
			f.post(grant.PathRevoke, url.Values{"client_id": {"kubectl"}, "token": {s.Refresh}})
		},
		"user disabled": func(f *fixture, _ tokens) {
			testkit.Update(f.t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = true })
		},
		"user deleted": func(f *fixture, _ tokens) {
			if err := f.Client.Delete(f.t.Context(), f.user); err != nil {
				f.t.Fatal(err)
			}
		},
		"session deleted": func(f *fixture, s tokens) {
			session := &f.sessions()[0]
			if err := errors.Join(f.Client.Delete(f.t.Context(), session),
				f.issuer.KeepDeleted(f.t.Context(), session)); err != nil {
				f.t.Fatal(err)
			}
		},
		"password changed": func(f *fixture, _ tokens) {
			secret := &corev1.Secret{}
			if err := f.Client.Get(f.t.Context(), f.key(v1.UserSecretPrefix+f.user.Name), secret); err != nil {
				f.t.Fatal(err)
			}
			testkit.Update(f.t, f.Client, secret, func(s *corev1.Secret) { s.Data[v1.UserSecretKey] = []byte("another") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.directly(8 * time.Hour) // longer than an idle session
			session := f.session()
			f.session()
			_, claims := f.direct(session.Access)
			if denied := f.denied(); len(denied) > 0 {
				t.Fatalf("%v are denied before", denied)
			}
			if owners := f.sessionOf(claims.Session).OwnerReferences; len(owners) > 0 {
				t.Errorf("the session goes with %v, and what it has to tell", owners)
			}
			end(f, session)
			if denied := f.denied(); !slices.Equal(denied, []string{claims.Session}) {
				t.Errorf("denied are %v, want %s, and not the session without a token for direct access", denied, claims.Session)
			}
			if sessions.Ends(f.sessionOf(claims.Session)).Before(claims.Expiry.Time()) {
				t.Error("the session is deleted before its token has ended")
			}
			if got := f.askDirect(session.Access, "team/prod"); got.code != http.StatusBadRequest &&
				got.code != http.StatusUnauthorized && name != "password changed" {
				t.Errorf("another token is given: %d %s", got.code, got.body)
			}
			f.wait(8*time.Hour + 10*time.Minute)
			if denied := f.denied(); len(denied) > 0 {
				t.Errorf("%v are denied although no token is left", denied)
			}
		})
	}
}
