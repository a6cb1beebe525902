// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/spf13/cobra"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

func TestAKubeconfigPrefersTheAddressOfAClusterIfItAnswers(t *testing.T) {
	code := http.StatusUnauthorized
	own := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("a token is sent to find out whether the address answers")
		}
		w.WriteHeader(code)
	}))
	defer own.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate().Raw}))
	session := &login.Session{Issuer: "https://hub:8443", Token: "secret", Refresh: "secret"}
	const byHub, direct = "a/prod@hub:8443", "a/prod@hub:8443-direct"
	for name, tt := range map[string]struct {
		direct *directAccess
		code   int
		want   string
	}{
		"it answers":                 {&directAccess{Server: own.URL, CA: ca}, http.StatusUnauthorized, direct},
		"it serves no one now":       {&directAccess{Server: own.URL, CA: ca}, http.StatusServiceUnavailable, byHub},
		"it is something else":       {&directAccess{Server: own.URL, CA: ca}, http.StatusOK, byHub},
		"it has another certificate": {&directAccess{Server: own.URL, CA: ""}, http.StatusUnauthorized, byHub},
		"it is not there":            {&directAccess{Server: "https://127.0.0.1:1", CA: ca}, http.StatusUnauthorized, byHub},
		"the Cluster has no own":     {nil, http.StatusUnauthorized, byHub},
		"its CA cannot be read":      {&directAccess{Server: own.URL, CA: "x"}, http.StatusUnauthorized, byHub},
	} {
		t.Run(name, func(t *testing.T) {
			code = tt.code
			o := &options{Options: &cli.Options{Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: t.TempDir() + "/config"}}, namespace: "web"}
			chosen, err := o.merge(t.Context(), session, []reachableCluster{{Namespace: "a", Name: "prod", Direct: tt.direct}}, true)
			if err != nil || chosen != tt.want {
				t.Fatalf("the context is %s (%v), want %s", chosen, err, tt.want)
			}
			got, err := clientcmd.LoadFromFile(o.Loading.ExplicitPath)
			if err != nil {
				t.Fatal(err)
			}
			if got.CurrentContext != tt.want || got.Contexts[byHub] == nil || (got.Contexts[direct] != nil) != (tt.direct != nil) || got.Contexts[tt.want].Namespace != "web" {
				t.Errorf("the contexts are %v, and the current one is %s", got.Contexts, got.CurrentContext)
			}
			if tt.direct == nil {
				return
			}
			cluster, user := got.Clusters[direct], got.AuthInfos[direct]
			if cluster.Server != tt.direct.Server || string(cluster.CertificateAuthorityData) != tt.direct.CA || !slices.Equal(user.Exec.Args, []string{"get-token", "--hub", "https://hub:8443", "--cluster", "a/prod", "--direct"}) {
				t.Errorf("the direct context is for %+v by %v", cluster, user)
			}
		})
	}
}

// An API server responds to everyone, even if it does not accept tokens of the hub.
func TestAnAPIServerIsPreferredIfItTakesTheUsersToken(t *testing.T) {
	var without, with int
	own := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("Authorization") {
		case "":
			w.WriteHeader(without)
		case "Bearer mine":
			w.WriteHeader(with)
		default:
			t.Errorf("it is sent %q", r.Header.Get("Authorization"))
		}
	}))
	defer own.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate().Raw}))
	for name, tt := range map[string]struct {
		server, ca    string
		without, with int
		fails         bool
		want          bool
		asked         int
	}{
		"it takes the token":                        {own.URL, ca, 200, 200, false, true, 1},
		"it serves no one without a token":          {own.URL, ca, 401, 200, false, true, 1},
		"it takes the token, and there is no right": {own.URL, ca, 403, 403, false, true, 1},
		"it was not set up":                         {own.URL, ca, 200, 401, false, false, 1},
		"it leads elsewhere":                        {own.URL, ca, 200, 302, false, false, 1},
		"the hub gives no token":                    {own.URL, ca, 200, 200, true, false, 1},
		"it has another certificate":                {own.URL, "", 200, 200, false, false, 0},
		"it is not there":                           {"https://127.0.0.1:1", ca, 200, 200, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			without, with = tt.without, tt.with
			asked := 0
			c := reachableCluster{Namespace: "a", Name: "prod", Direct: &directAccess{Server: tt.server, CA: tt.ca, Mode: v1.AuthorizedEndpointAPIServer}}
			got := c.answers(t.Context(), func(context.Context) (string, error) {
				if asked++; tt.fails {
					return "", errors.New("no")
				}
				return "mine", nil
			})
			if got != tt.want || asked != tt.asked {
				t.Errorf("it answers: %t, after %d tokens; want %t and %d", got, asked, tt.want, tt.asked)
			}
		})
	}
}

func TestATokenForDirectAccessLastsWhileThereIsNoHub(t *testing.T) {
	now := time.Now()
	issuer := "https://127.0.0.1:1" // no hub is there
	for name, tt := range map[string]struct {
		token login.DirectToken
		want  bool
	}{
		"a fresh one":                        {login.DirectToken{Token: "kept", From: now.Add(-time.Minute), Until: now.Add(time.Hour)}, true},
		"past the half, and the hub is away": {login.DirectToken{Token: "kept", From: now.Add(-time.Hour), Until: now.Add(10 * time.Minute)}, true},
		"at its end":                         {login.DirectToken{Token: "kept", From: now.Add(-time.Hour), Until: now.Add(time.Second)}, false},
		"none":                               {login.DirectToken{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			store := login.Store{Dir: t.TempDir(), Now: func() time.Time { return now }}
			if err := store.Change(t.Context(), issuer, func(*login.Session) (*login.Session, error) {
				return &login.Session{Issuer: issuer, Token: "x", Refresh: "x", Expires: now.Add(-time.Minute)}, nil
			}); err != nil {
				t.Fatal(err)
			}
			if err := store.KeepDirect(t.Context(), issuer, "a/prod", tt.token); err != nil {
				t.Fatal(err)
			}
			var out, complaints bytes.Buffer
			c := &cobra.Command{}
			c.SetContext(t.Context())
			c.SetOut(&out)
			c.SetErr(&complaints)
			o := &options{cluster: "a/prod", direct: true}
			err := o.getDirectToken(c, signing{timeout: time.Second}, store, issuer)
			var credential clientauthenticationv1.ExecCredential
			if err == nil {
				err = json.Unmarshal(out.Bytes(), &credential)
			}
			if got := err == nil && credential.Status.Token == "kept" && credential.Status.ExpirationTimestamp.Time.Before(tt.token.Until); got != tt.want {
				t.Errorf("the credential is %s (%v, %s)", out.String(), err, complaints.String())
			}
			o.cluster = "a/other"
			if err := o.getDirectToken(c, signing{timeout: time.Second}, store, issuer); err == nil {
				t.Error("a token of another Cluster is given")
			}
		})
	}
}

func TestASessionKeepsFewTokensForDirectAccess(t *testing.T) {
	now := time.Now()
	store := login.Store{Dir: t.TempDir(), Now: func() time.Time { return now }}
	if err := store.KeepDirect(t.Context(), "https://hub", "a/b", login.DirectToken{}); err == nil {
		t.Error("a token is kept without a session")
	}
	if err := store.Change(t.Context(), "https://hub", func(*login.Session) (*login.Session, error) { return &login.Session{Issuer: "https://hub"}, nil }); err != nil {
		t.Fatal(err)
	}
	keep := func(ctx context.Context, name string, until time.Time) int {
		t.Helper()
		if err := store.KeepDirect(ctx, "https://hub", name, login.DirectToken{Token: "x", From: now, Until: until}); err != nil {
			t.Fatal(err)
		}
		session, err := store.Load("https://hub")
		if err != nil {
			t.Fatal(err)
		}
		return len(session.Direct)
	}
	keep(t.Context(), "a/past", now)
	if n := keep(t.Context(), "a/b", now.Add(time.Hour)); n != 1 {
		t.Errorf("%d tokens are kept, want that which is valid", n)
	}
	n := 0
	for i := range 80 {
		n = keep(t.Context(), fmt.Sprintf("a/%d", i), now.Add(time.Hour))
	}
	if n != 64 {
		t.Errorf("%d tokens are kept, want 64", n)
	}
}
