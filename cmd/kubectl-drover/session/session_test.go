// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/base64"
	"errors"
	"os"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

func TestTheHubThatIsMeant(t *testing.T) {
	two := []*login.Session{{Issuer: "https://a.example.com"}, {Issuer: "https://b.example.com"}}
	for name, tt := range map[string]struct {
		sessions []*login.Session
		server   string
		want     string
		problem  string
	}{
		"none":                             {nil, "https://a.example.com/k8s/clusters/x/y", "", "kubectl drover login URL"},
		"the only one":                     {two[:1], "https://10.0.0.1:6443", "https://a.example.com", ""},
		"that of the context":              {two, "https://b.example.com/k8s/clusters/x/y", "https://b.example.com", ""},
		"another hub than the only one":    {two[:1], "https://b.example.com/k8s/local", "", "not signed in at https://b"},
		"a name that only begins alike":    {two, "https://b.example.com.evil/k8s/clusters/x/y", "", "--hub"},
		"several, and the context is none": {two, "", "", "https://a.example.com, https://b.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := chooseHub(tt.sessions, tt.server)
			if got != tt.want || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("the hub is %q (%v), expected %q (%s)", got, err, tt.want, tt.problem)
			}
			if len(tt.sessions) == 0 && !errors.Is(err, login.ErrSignedOut) {
				t.Errorf("without a session the error is %v", err)
			}
		})
	}
}

func TestExecCredentialInfoIsReadFromKubectl(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const hub = "https://hub.example.com"
	said := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":true,"cluster":{"server":"SERVER","certificate-authority-data":"Y2E="}}}`
	for name, tt := range map[string]struct {
		info, ca    string
		interactive bool
	}{
		"a member of the hub":   {strings.ReplaceAll(said, "SERVER", hub+"/k8s/clusters/a/b"), "ca", true},
		"another server":        {strings.ReplaceAll(said, "SERVER", hub+".evil/k8s/clusters/a/b"), "", true},
		"nothing":               {"", "", false},
		"what is no credential": {"{", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got := caller(tt.info, file)
			if got.Interactive != tt.interactive || string(got.ca(hub)) != tt.ca {
				t.Errorf("interactive is %v and the CA %q, expected %v and %q", got.Interactive, got.ca(hub), tt.interactive, tt.ca)
			}
		})
	}
}

func TestAUserIsToldWhatTheHubSaysOfTheLogin(t *testing.T) {
	session := &login.Session{Issuer: "https://hub.example.com", Notice: "the provider left your groups out\x1b[2J\nSigned in as admin"}
	if text := welcome(session, nil); strings.Count(text, "\n") != 2 || !strings.Contains(text, "\nWarning: the provider left your groups out") || strings.Contains(text, "\x1b") {
		t.Errorf("the user is told %q, want the notice on a line of its own, without control characters", text)
	}
	session.Notice = ""
	if text := welcome(session, nil); strings.Contains(text, "Warning") {
		t.Errorf("the user is told %q, want no warning without a notice", text)
	}
}

// sessionOf returns a session of a user.
func sessionOf(user string) *login.Session {
	claims := base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"` + user + `"}`))
	return &login.Session{Issuer: "https://hub.example.com", Token: "x." + claims + ".x"}
}

func TestALoginThatReplacesAnotherUsersSessionSaysSo(t *testing.T) {
	const same = "Signed in to https://hub.example.com as local:bob.\n"
	for name, tt := range map[string]struct {
		before *login.Session
		want   string
	}{
		"no session":                 {nil, same},
		"a session of the same user": {sessionOf("local:bob"), same},
		"a damaged session":          {&login.Session{}, same},
		"another user's session": {sessionOf("local:alice"), "Signed in to https://hub.example.com as local:bob; " +
			"the session of local:alice on this hub is replaced"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := welcome(sessionOf("local:bob"), tt.before); !strings.HasPrefix(got, tt.want) {
				t.Errorf("the user is told %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTwoUsersKeepTheirSessionsWithTwoCacheFolders(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	const hub = "https://hub.example.com"
	folders := map[string]string{"local:alice": "", "local:bob": t.TempDir()}
	for user, folder := range folders {
		t.Setenv(cacheDir, folder)
		store, err := sessions()
		if err == nil {
			err = store.Change(t.Context(), hub, func(*login.Session) (*login.Session, error) { return sessionOf(user), nil })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for user, folder := range folders {
		t.Setenv(cacheDir, folder)
		store, err := sessions()
		if err != nil {
			t.Fatal(err)
		}
		if session, err := store.Load(hub); err != nil || session.Claims().Subject != user {
			t.Errorf("with %s=%q the session is %v (%v), want the session of %s", cacheDir, folder, session, err, user)
		}
	}
}

func TestSessionsAreNotReadFromTheWorkingDirectory(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, folder := range []string{"cache", ".", "../cache", "~/cache"} {
		t.Setenv(cacheDir, folder)
		if store, err := sessions(); err == nil || !strings.Contains(err.Error(), "must be an absolute path") {
			t.Errorf("with %s=%q the sessions are in %q (%v), want an error", cacheDir, folder, store.Dir, err)
		}
	}
}

func TestTheClustersThatArgumentsName(t *testing.T) {
	list := reachable{Items: []reachableCluster{{Namespace: "a", Name: "prod"}, {Namespace: "b", Name: "prod"}, {Namespace: "b", Name: "test"}}}
	for name, tt := range map[string]struct {
		names         []string
		want, problem string
	}{
		"by name":                    {[]string{"test"}, "b/test", ""},
		"with the workspace":         {[]string{"b/prod", "test"}, "b/prod or b/test", ""},
		"of several workspaces":      {[]string{"prod"}, "", "a/prod or b/prod"},
		"that is not there":          {[]string{"x\x1b[2J"}, "", `cannot reach a Cluster x\u001b[2J`},
		"of another workspace":       {[]string{"a/test"}, "", "cannot reach a Cluster a/test"},
		"one of them does not exist": {[]string{"test", "none"}, "", "cannot reach a Cluster none"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := list.choose(tt.names)
			if joined(got) != tt.want || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("chosen are %q (%v), expected %q (%s)", joined(got), err, tt.want, tt.problem)
			}
		})
	}
}

func TestTextOfOthersInAListOfClustersDoesNotReachTheTerminal(t *testing.T) {
	list := reachable{Items: []reachableCluster{{Namespace: "a", Name: "prod", Reason: "x\x1b]0;y\x07\nb\tfake", Version: "v1\r"}}}
	text := list.text("", "")
	if strings.ContainsAny(text, "\x1b\x07\r") || strings.Count(text, "\n") != 2 {
		t.Errorf("the table is %q", text)
	}
}

func TestAKubeconfigForAClusterKeepsWhatElseIsThere(t *testing.T) {
	o := &options{Options: &cli.Options{Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: t.TempDir() + "/config"}}}
	before := clientcmdapi.NewConfig()
	before.Clusters["own"], before.AuthInfos["own"] = &clientcmdapi.Cluster{Server: "https://own"}, &clientcmdapi.AuthInfo{Token: "own"}
	before.Contexts["own"], before.CurrentContext = &clientcmdapi.Context{Cluster: "own", AuthInfo: "own"}, "own"
	if err := clientcmd.WriteToFile(*before, o.Loading.ExplicitPath); err != nil {
		t.Fatal(err)
	}
	session := &login.Session{Issuer: "https://hub:8443", CA: []byte("ca"), Token: "secret", Refresh: "secret"}
	prod, test := reachableCluster{Namespace: "a", Name: "prod"}, reachableCluster{Namespace: "a", Name: "test"}
	o.namespace = "web"
	if _, err := o.merge(t.Context(), session, []reachableCluster{prod}, true); err != nil {
		t.Fatal(err)
	}
	o.namespace = ""
	if name, err := o.merge(t.Context(), session, []reachableCluster{prod, test}, false); err != nil || name != "a/test@hub:8443" {
		t.Fatalf("%s %v", name, err)
	}
	got, err := clientcmd.LoadFromFile(o.Loading.ExplicitPath)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Contexts) != 3 || got.AuthInfos["own"].Token != "own" || got.CurrentContext != "a/prod@hub:8443" || got.Contexts["a/prod@hub:8443"].Namespace != "web" {
		t.Errorf("the contexts are %v, and the current one is %s", got.Contexts, got.CurrentContext)
	}
	cluster, user := got.Clusters["a/prod@hub:8443"], got.AuthInfos["drover@hub:8443"]
	if cluster.Server != "https://hub:8443/k8s/clusters/a/prod" || string(cluster.CertificateAuthorityData) != "ca" {
		t.Errorf("the server is %s with CA %s", cluster.Server, cluster.CertificateAuthorityData)
	}
	if user.Token != "" || user.Exec == nil || strings.Join(user.Exec.Args, " ") != "get-token --hub https://hub:8443" {
		t.Errorf("the user is %v", user)
	}
	raw, err := os.ReadFile(o.Loading.ExplicitPath)
	if err != nil || strings.Contains(string(raw), "secret") {
		t.Errorf("a token is in the kubeconfig (%v)", err)
	}
}
