// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

// apiAudience is the audience of the API server itself.
const apiAudience = "https://kubernetes.default.svc"

// reviewer is an API server that accepts tokens for their true audiences, as kube-apiserver does.
type reviewer struct {
	authenticationv1client.TokenReviewInterface
	truth  []string
	silent bool     // ignores audiences, like webhooks that predate them
	asked  []string // the audiences in the last review
	count  int
}

func (v *reviewer) Create(
	_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	v.asked, v.count = slices.Clone(review.Spec.Audiences), v.count+1
	wanted := review.Spec.Audiences
	if len(wanted) == 0 {
		wanted = []string{apiAudience}
	}
	var status authenticationv1.TokenReviewStatus
	status.User.Username = "system:serviceaccount:flux:web"
	for _, audience := range v.truth {
		if slices.Contains(wanted, audience) {
			status.Audiences = append(status.Audiences, audience)
		}
	}
	status.Authenticated = len(status.Audiences) > 0 || v.silent
	if v.silent {
		status.Audiences = nil
	}
	return &authenticationv1.TokenReview{Status: status}, nil
}

// says returns a token with these claims. Only the reviewer would verify its signature.
func says(t *testing.T, claims any) string {
	t.Helper()
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".c2ln"
}

func madeFor(t *testing.T, audiences ...string) string {
	return says(t, map[string]any{"aud": audiences})
}

// to returns a request to a member, to Local, or to another path of the hub if member is empty.
func to(member, token string) *http.Request {
	r := bearing(token)
	r.Header.Set("To", member)
	return r
}

func testAudiences() Audiences {
	return Audiences{
		Hub: []string{"https://hub.example.com", "https://10.0.0.1:8443"}, Clusters: "/k8s/clusters/",
		Member: func(r *http.Request) string { return r.Header.Get("To") },
	}
}

func TestTokenIsValidOnlyForItsAudiences(t *testing.T) {
	const (
		hub  = "https://hub.example.com"
		web  = "https://hub.example.com/k8s/clusters/team/web"
		mail = "https://hub.example.com/k8s/clusters/team/mail"
	)
	for name, tt := range map[string]struct {
		audiences []string
		good, bad []string
	}{
		"the API server": {[]string{apiAudience}, []string{"team/web", "team/mail", Local, ""}, nil},
		"one member": {
			[]string{web}, []string{"team/web"}, []string{"team/mail", "team/we", "team/webs", "team/web/x", Local, ""},
		},
		"one member, with a trailing slash": {[]string{web + "/"}, []string{"team/web"}, []string{"team/mail", Local, ""}},
		"one member, with the hub's other URL": {
			[]string{"https://10.0.0.1:8443/k8s/clusters/team/web"}, []string{"team/web"}, []string{"team/mail", Local, ""},
		},
		"two members": {
			[]string{web, mail}, []string{"team/web", "team/mail"}, []string{"team/db", Local, ""},
		},
		"the hub":                        {[]string{hub}, []string{"team/web", "team/mail", ""}, []string{Local}},
		"the hub, with a trailing slash": {[]string{hub + "/"}, []string{"team/web", ""}, []string{Local}},
		"a member and the API server": {
			[]string{web, apiAudience}, []string{"team/web"}, []string{"team/mail", Local, ""},
		},
		"no member in particular":      {[]string{hub + "/k8s/clusters/"}, nil, []string{"team/web", Local, ""}},
		"the URL of the hub's own API": {[]string{hub + "/k8s/local"}, nil, []string{"team/web", Local, ""}},
		"something else":               {[]string{"https://vault.example.com"}, nil, []string{"team/web", Local, ""}},
		"a hub with a longer name": {
			[]string{"https://hub.example.com.evil.example/k8s/clusters/team/web"}, nil, []string{"team/web", Local, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := NewAuthenticator(&reviewer{truth: tt.audiences}, testAudiences())
			token := madeFor(t, tt.audiences...)
			for _, member := range tt.good {
				id, err := a.Authenticate(to(member, token))
				if err != nil || id.User != "hub:system:serviceaccount:flux:web" {
					t.Errorf("to %q: got %q, %v, want the user", member, id.User, err)
				}
			}
			for _, member := range tt.bad {
				id, err := a.Authenticate(to(member, token))
				if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) || id.Valid() {
					t.Errorf("to %q: got %q, %v, want a refusal", member, id.User, err)
				}
			}
		})
	}
	t.Run("audiences that the API server does not confirm do not count", func(t *testing.T) {
		v := &reviewer{truth: []string{mail}}
		a := NewAuthenticator(v, testAudiences())
		if _, err := a.Authenticate(to("team/web", madeFor(t, web))); !apierrors.IsUnauthorized(err) {
			t.Errorf("got %v, want 401", err)
		}
		_, err := a.Authenticate(to("team/web", madeFor(t, web, mail)))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), mail) {
			t.Errorf("got %v, want 403 with the confirmed audience", err)
		}
	})
	t.Run("the answer of an API server that ignores audiences does not count", func(t *testing.T) {
		a := NewAuthenticator(&reviewer{silent: true}, testAudiences())
		if _, err := a.Authenticate(to("team/web", madeFor(t, web))); !apierrors.IsUnauthorized(err) {
			t.Errorf("got %v, want 401", err)
		}
		if _, err := a.Authenticate(to("team/web", "t-opaque")); err != nil {
			t.Errorf("a token without an audience: got %v, want the user", err)
		}
	})
	t.Run("one review serves all members", func(t *testing.T) {
		v := &reviewer{truth: []string{web}}
		a, token := NewAuthenticator(v, testAudiences()), madeFor(t, web)
		for _, member := range []string{"team/mail", "team/web", "team/mail", "team/web"} {
			if _, err := a.Authenticate(to(member, token)); (err == nil) != (member == "team/web") {
				t.Errorf("to %q: got %v, want an error for every member except team/web", member, err)
			}
		}
		if v.count != 1 {
			t.Errorf("got %d reviews, want 1", v.count)
		}
	})
	t.Run("at most eight audiences of a token are reviewed", func(t *testing.T) {
		v := &reviewer{}
		many := make([]string, 500)
		for i := range many {
			many[i] = fmt.Sprintf("https://hub.example.com/k8s/clusters/team/m%d", i)
		}
		_, _ = NewAuthenticator(v, testAudiences()).Authenticate(to("team/web", madeFor(t, many...)))
		if len(v.asked) != maxAudiences {
			t.Errorf("the review has %d audiences, want %d", len(v.asked), maxAudiences)
		}
	})
}

func TestNarrowAdmitsOnlyTheNamedMembers(t *testing.T) {
	const (
		hub  = "https://hub.example.com"
		web  = "https://hub.example.com/k8s/clusters/team/web"
		mail = "https://10.0.0.1:8443/k8s/clusters/team/mail"
	)
	for name, tt := range map[string]struct {
		audiences []string
		good, bad []string
	}{
		"only other audiences": {
			[]string{"drover", "https://hub.example.com.evil.example"}, []string{"team/web", "team/mail", Local, ""}, nil,
		},
		"no audience": {nil, []string{"team/web", Local, ""}, nil},
		"the hub":     {[]string{hub + "/"}, []string{"team/web", "team/mail", Local, ""}, nil},
		"one member": {
			[]string{web}, []string{"team/web"}, []string{"team/mail", "team/webs", "team/we", Local, ""},
		},
		"one member, with a slash": {[]string{web + "/"}, []string{"team/web"}, []string{"team/mail", Local, ""}},
		"one member and a service": {[]string{"drover", web}, []string{"team/web"}, []string{"team/mail", Local, ""}},
		"two members": {
			[]string{web, mail}, []string{"team/web", "team/mail"}, []string{"team/db", Local, ""},
		},
		"a member and the hub": {[]string{web, hub}, []string{"team/web", "team/mail", Local, ""}, nil},
		"a path in a member":   {[]string{web + "/api"}, nil, []string{"team/web", Local, ""}},
		"more audiences than a review has": {
			append(slices.Repeat([]string{hub + "/k8s/clusters/team/x"}, maxAudiences), web), []string{"team/web"},
			[]string{"team/mail", Local},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, member := range tt.good {
				if err := testAudiences().Narrow(to(member, ""), tt.audiences); err != nil {
					t.Errorf("to %q: got %v, want it admitted", member, err)
				}
			}
			for _, member := range tt.bad {
				if err := testAudiences().Narrow(to(member, ""), tt.audiences); !apierrors.IsForbidden(err) {
					t.Errorf("to %q: got %v, want 403", member, err)
				}
			}
		})
	}
}

func TestNamedReturnsThePathOfTheMember(t *testing.T) {
	const web, mail = "https://hub.example.com/k8s/clusters/team/web", "https://hub.example.com/k8s/clusters/team/mail"
	for name, tt := range map[string]struct {
		audiences []string
		want      string
	}{
		"one member":                    {[]string{web}, "/k8s/clusters/team/web"},
		"one member and something else": {[]string{"https://vault.example.com", web + "/"}, "/k8s/clusters/team/web"},
		"one member, with the hub's other URL": {
			[]string{"https://10.0.0.1:8443/k8s/clusters/team/web"}, "/k8s/clusters/team/web",
		},
		"two members":    {[]string{web, mail}, ""},
		"the hub":        {[]string{"https://hub.example.com"}, ""},
		"the API server": {[]string{apiAudience}, ""},
		"another hub":    {[]string{"https://other.example.com/k8s/clusters/team/web"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testAudiences().Named(to("", madeFor(t, tt.audiences...))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestAudienceIsAStringOrAList(t *testing.T) {
	for name, tt := range map[string]struct {
		claim any
		want  []string
	}{
		"one":                {"https://hub.example.com", []string{"https://hub.example.com"}},
		"a list":             {[]string{"x", "https://10.0.0.1:8443"}, []string{"https://10.0.0.1:8443"}},
		"a list of numbers":  {[]int{1}, nil},
		"an object":          {map[string]string{"a": "https://hub.example.com"}, nil},
		"null":               {nil, nil},
		"an empty string":    {"", nil},
		"a list with a null": {[]any{nil, "https://hub.example.com"}, []string{"https://hub.example.com"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := testAudiences().of(says(t, map[string]any{"aud": tt.claim})); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func FuzzUnverified(f *testing.F) {
	f.Add("e30.eyJhdWQiOlsiaHR0cHM6Ly9odWIuZXhhbXBsZS5jb20iXX0.c2ln")
	f.Add("e30.eyJhdWQiOiJhIiwiZXhwIjoxfQ.")
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		a := testAudiences()
		known := a.of(token)
		foreign := slices.ContainsFunc(known, func(audience string) bool { return !a.knows(audience) })
		if len(known) > maxAudiences || foreign {
			t.Errorf("%q has the audiences %q, want at most %d known ones", token, known, maxAudiences)
		}
	})
}
