// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// contexts are the servers and marks of a kubeconfig's contexts.
type contexts map[string]struct {
	server string
	mark   cli.Mark
}

// remembering returns options with a kubeconfig of the given contexts.
func remembering(t *testing.T, current string, all contexts) *options {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = current
	for name, c := range all {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: c.server}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "of-" + name}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
		if err := cli.SetMark(config, name, c.mark); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	return &options{Options: &cli.Options{Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}}}
}

func (o *options) loaded(t *testing.T) *clientcmdapi.Config {
	t.Helper()
	config, err := clientcmd.LoadFromFile(o.Loading.ExplicitPath)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

var (
	atA  = &login.Session{Issuer: "https://a.example.com", CA: []byte("ca")}
	prod = reachableCluster{Namespace: "team", Name: "prod"}
)

func TestUseDoesNotTakeAnUnmarkedContextForTheHubOfASession(t *testing.T) {
	o := remembering(t, "b", contexts{"b": {server: "https://10.0.0.2:6443"}})
	if _, err := o.merge(t.Context(), atA, []reachableCluster{prod}, true); err != nil {
		t.Fatal(err)
	}
	config := o.loaded(t)
	if mark := cli.MarkOf(config, "b"); !mark.Selected.IsZero() || mark.URL != "" {
		t.Errorf("the context of another hub got the mark %+v, want none", mark)
	}
	if mark := cli.MarkOf(config, "team/prod@a.example.com"); mark.Hub != "" || mark.URL != atA.Issuer {
		t.Errorf("the member has the mark %+v, want only the URL of its hub", mark)
	}
}

func TestOnlyUseSelectsTheHub(t *testing.T) {
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, current := range []bool{false, true} {
		o := remembering(t, "", contexts{"a": {"https://10.0.0.1:6443", cli.Mark{Selected: at, URL: atA.Issuer}}})
		if _, err := o.merge(t.Context(), atA, []reachableCluster{prod}, current); err != nil {
			t.Fatal(err)
		}
		config := o.loaded(t)
		if got := !cli.MarkOf(config, "a").Selected.Equal(at); got != current {
			t.Errorf("use is %v: the hub was selected anew: %v", current, got)
		}
		if hub := cli.MarkOf(config, "team/prod@a.example.com").Hub; hub != "a" {
			t.Errorf("the member belongs to the hub %q, want a", hub)
		}
	}
}

func TestTheHubThatWasSelectedLastDoesNotChooseTheSession(t *testing.T) {
	two := []*login.Session{{Issuer: "https://a.example.com"}, {Issuer: "https://b.example.com"}}
	all := contexts{
		"a":     {"https://10.0.0.1:6443", cli.Mark{Selected: time.Now(), URL: "https://a.example.com"}},
		"other": {server: "https://10.0.0.9:6443"},
	}
	for current, want := range map[string]string{"a": "https://a.example.com", "other": ""} {
		o := remembering(t, current, all)
		got, err := chooseHub(two, o.serversOf(o.loaded(t))...)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("context %s: the session is at %q (%v), want %q", current, got, err, want)
		}
	}
	o := remembering(t, "a", all)
	if got, err := chooseHub(two[1:], o.serversOf(o.loaded(t))...); err == nil {
		t.Errorf("the current context belongs to hub a, and the session is at %q", got)
	}
}

func TestTheOnlySessionDoesNotReplaceAnotherHub(t *testing.T) {
	const b, refused = "https://b.example.com", ""
	for name, tt := range map[string]struct {
		current, context, server string
		fansOut                  bool
		want                     string
	}{
		"a hub without an address is current":     {current: "a", want: refused},
		"--context with it":                       {current: "other", context: "a", want: refused},
		"--context with an unmarked context":      {current: "prod@b", context: "other", want: refused},
		"--context with a member of the hub":      {current: "a", context: "prod@b", want: b},
		"--server with another server":            {current: "prod@b", server: "https://10.0.0.9:6443", want: refused},
		"--server with the hub":                   {current: "a", server: b + "/k8s/local", want: b},
		"a member of a hub that is lost":          {current: "lost", want: refused},
		"the session's hub":                       {current: "b", want: b},
		"a member of the session's hub":           {current: "prod@b", want: b},
		"a context of no hub":                     {current: "other", want: b},
		"no context":                              {want: b},
		"for many Clusters, a context of no hub":  {current: "other", fansOut: true, want: refused},
		"for many Clusters, a member of the hub":  {current: "prod@b", fansOut: true, want: b},
		"for many Clusters, a context of the hub": {current: "b", fansOut: true, want: b},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			o := remembering(t, tt.current, contexts{
				"a":      {"https://10.0.0.1:6443", cli.Mark{Selected: time.Now()}},
				"b":      {"https://10.0.0.2:6443", cli.Mark{Selected: time.Now(), URL: b}},
				"prod@b": {server: b + "/k8s/clusters/team/prod"},
				"lost":   {"https://10.0.0.3:6443", cli.Mark{Hub: "deleted"}},
				"other":  {server: "https://10.0.0.9:6443"},
			})
			store, err := sessions()
			if err != nil {
				t.Fatal(err)
			}
			err = store.Change(t.Context(), b, func(*login.Session) (*login.Session, error) {
				return &login.Session{Issuer: b, Token: "of-b", Expires: time.Now().Add(time.Hour)}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			o.Overrides.CurrentContext, o.Overrides.ClusterInfo.Server = tt.context, tt.server
			o.fansOut = tt.fansOut
			_, got, err := o.session()
			if got != tt.want || (err == nil) != (tt.want != refused) {
				t.Errorf("the session is at %q (%v), want %q", got, err, tt.want)
			}
			if err != nil && !errors.Is(err, login.ErrSignedOut) {
				t.Errorf("the error is %v, want one that leaves the choice to the kubeconfig", err)
			}
			damaged := filepath.Join(t.TempDir(), "config")
			if err := os.WriteFile(damaged, []byte("clusters: ["), 0o600); err != nil {
				t.Fatal(err)
			}
			o.Loading.ExplicitPath = damaged
			if _, got, err := o.session(); err == nil {
				t.Errorf("with a kubeconfig that cannot be read, the session is at %q, want an error", got)
			}
		})
	}
}

func TestUseKeepsWhatOthersAddToTheKubeconfigMeanwhile(t *testing.T) {
	o := remembering(t, "", contexts{})
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		config := clientcmdapi.NewConfig()
		config.Contexts["meanwhile"] = clientcmdapi.NewContext()
		if err := clientcmd.WriteToFile(*config, o.Loading.ExplicitPath); err != nil {
			t.Error(err)
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer server.Close()
	direct := prod
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	direct.Direct = &directAccess{Server: server.URL, CA: string(ca)}
	if _, err := o.merge(t.Context(), atA, []reachableCluster{direct}, true); err != nil {
		t.Fatal(err)
	}
	config := o.loaded(t)
	if config.Contexts["meanwhile"] == nil || config.CurrentContext != "team/prod@a.example.com-direct" {
		t.Errorf("the contexts are %v, and %q is current", config.Contexts, config.CurrentContext)
	}
}

// accepting starts a hub whose API server accepts the tokens of sign-in.
func accepting(t *testing.T) *login.Session {
	t.Helper()
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(hub.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
	return &login.Session{Issuer: hub.URL, CA: ca, Token: "secret"}
}

func TestLoginRenewsTheCAOfItsContexts(t *testing.T) {
	o, session := remembering(t, "", contexts{}), accepting(t)
	if err := o.loginContext(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	if _, err := o.merge(t.Context(), session, []reachableCluster{prod}, true); err != nil {
		t.Fatal(err)
	}
	config := o.loaded(t)
	names := slices.Collect(func(yield func(string) bool) {
		for name, cluster := range config.Clusters {
			cluster.CertificateAuthorityData = []byte("old")
			if !yield(name) {
				return
			}
		}
	})
	if err := clientcmd.WriteToFile(*config, o.Loading.ExplicitPath); err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	if err := o.loginContext(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	for name, cluster := range o.loaded(t).Clusters {
		if string(cluster.CertificateAuthorityData) != string(session.CA) {
			t.Errorf("%s has the old CA", name)
		}
	}
}

func TestASignInSucceedsWithAReadOnlyKubeconfig(t *testing.T) {
	o, session := remembering(t, "", contexts{}), accepting(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Loading.ExplicitPath = filepath.Join(file, "config")
	var said strings.Builder
	o.rememberLogin(t.Context(), &said, session)
	if !strings.Contains(said.String(), "Warning: your kubeconfig did not get a context") {
		t.Errorf("the user is told %q, want a warning", &said)
	}
}

func TestUseRefusesServer(t *testing.T) {
	o := remembering(t, "a", contexts{"a": {server: "https://10.0.0.1:6443"}})
	u := user{kubeconfig: o.Loading.ExplicitPath}
	t.Setenv("HOME", t.TempDir())
	u.refuses(t, "does not support --server", "use", "--hub", "--server", "https://10.0.0.1:6443")
	u.refuses(t, "--ca requires", "use", "--hub", "--ca", "x")
}

func TestLoginAddsAContextOfItsHubWhateverServerSays(t *testing.T) {
	o, session := remembering(t, "a", contexts{"a": {server: "https://10.0.0.1:6443"}}), accepting(t)
	o.Overrides.ClusterInfo.Server = session.Issuer + cli.PathLocal
	if err := o.loginContext(t.Context(), session); err != nil {
		t.Fatal(err)
	}
	config, name := o.loaded(t), "hub@"+strings.TrimPrefix(session.Issuer, "https://")
	if server := cli.ServerOf(config, name); server != session.Issuer+cli.PathLocal {
		t.Errorf("context %s has the server %q, want the hub's", name, server)
	}
	if mark := cli.MarkOf(config, name); mark.Selected.IsZero() || mark.URL != session.Issuer {
		t.Errorf("context %s has the mark %+v, want it to be remembered", name, mark)
	}
	if server, mark := cli.ServerOf(config, "a"), cli.MarkOf(config, "a"); server != "https://10.0.0.1:6443" ||
		!mark.Selected.IsZero() || config.CurrentContext != "a" {
		t.Errorf("the current context has the server %q and the mark %+v, want it unchanged", server, mark)
	}
}
