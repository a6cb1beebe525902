// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// user runs the commands of this package with a kubeconfig and a home of their own.
type user struct{ kubeconfig string }

func newUser(t *testing.T, kubeconfig string) user {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv(cacheDir, "")
	return user{kubeconfig: kubeconfig}
}

func (u user) run(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	var all strings.Builder
	commands := func(o *cli.Options) []*cobra.Command {
		return []*cobra.Command{NewUse(o), NewClusters(o), NewWhoAmI(o), NewKubeconfig(o), NewExec(o)}
	}
	code = cli.Run(t.Context(), "test", commands, append([]string{"--kubeconfig", u.kubeconfig}, args...), &all, &all)
	return code, all.String()
}

func (u user) says(t *testing.T, what string, args ...string) string {
	t.Helper()
	code, out := u.run(t, args...)
	if code != cli.ExitAllowed || !strings.Contains(out, what) {
		t.Errorf("kubectl drover %v: exit code %d: %s, want %q", args, code, out, what)
	}
	return out
}

func (u user) refuses(t *testing.T, what string, args ...string) {
	t.Helper()
	if code, out := u.run(t, args...); code != cli.ExitError || !strings.Contains(out, what) {
		t.Errorf("kubectl drover %v: exit code %d: %s, want an error with %q", args, code, out, what)
	}
}

func (u user) config(t *testing.T) *clientcmdapi.Config {
	t.Helper()
	config, err := clientcmd.LoadFromFile(u.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// newProxy starts a proxy of a hub that knows one Cluster and one token.
func newProxy(t *testing.T, workspace, token string) (url, caFile string) {
	t.Helper()
	proxy := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, `{"kind":"Status","message":"no such token"}`, http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(reachable{Items: []reachableCluster{{Namespace: workspace, Name: "prod", Ready: "True"}}})
	}))
	t.Cleanup(proxy.Close)
	caFile = filepath.Join(t.TempDir(), "ca.crt")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: proxy.Certificate().Raw})
	if err := os.WriteFile(caFile, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	return proxy.URL, caFile
}

func TestAUserWithAPlainKubeconfigListsAndUsesClusters(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	hub.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "prod"}})
	u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "admin", Namespace: workspace, Env: hub}))
	u.says(t, "prod", "clusters", "-w", workspace)
	for _, output := range []string{"text", "wide", "name"} {
		u.says(t, "it does not exist, or has none that you may reach", "clusters", "-w", "nosuch", "-o", output)
	}
	u.says(t, "system:masters", "whoami")
	for _, args := range [][]string{{"use", "prod"}, {"exec", "prod", "--", "true"}, {"kubeconfig", "prod", "--merge"}} {
		u.refuses(t, `sign in with "kubectl drover login https://HUB --ca FILE"`, args...)
	}

	robot := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "robot"}}
	hub.Apply(t, robot)
	request := &authenticationv1.TokenRequest{}
	if err := hub.Client.SubResource("token").Create(t.Context(), robot, request); err != nil {
		t.Fatal(err)
	}
	token := request.Status.Token
	url, ca := newProxy(t, workspace, token)
	u.says(t, "Switched", "use", "--hub="+url, "--ca", ca, "--context", "admin")
	u.refuses(t, "accepts no client certificates", "use", "prod")
	config := u.config(t)
	config.AuthInfos["robot"] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["robot"] = &clientcmdapi.Context{Cluster: "admin", AuthInfo: "robot", Namespace: workspace}
	if err := clientcmd.WriteToFile(*config, u.kubeconfig); err != nil {
		t.Fatal(err)
	}
	u.refuses(t, "first run", "use", "prod", "--hub", url, "--ca", ca, "--context", "robot")
	u.says(t, "Switched", "use", "--hub="+url, "--ca", ca, "--context", "robot")
	u.says(t, "Switched", "use", "--hub="+url, "--context", "robot") // keeps the CA
	u.says(t, "As user robot of context robot", "use", "prod")
	config = u.config(t)
	made := config.Contexts[config.CurrentContext]
	if made.AuthInfo != "robot" || config.Clusters[made.Cluster].Server != url+cli.MemberPath(workspace, "prod") {
		t.Errorf("the context is %v of %v", made, config.Clusters[made.Cluster])
	}
	if mark := cli.MarkOf(config, "robot"); mark.URL != url || mark.Selected.IsZero() {
		t.Errorf("the hub's context has the mark %+v, want it to be remembered with its URL", mark)
	}
	u.says(t, "Switched to context \""+workspace+"/prod@", "use", "prod") // the URL and the CA are known now
	u.says(t, "prod", "clusters")
	u.says(t, "[\"system:", "exec", "prod", "--", "sh", "-c",
		`grep -q 'token: `+token+`' "$KUBECONFIG" && echo '["system:'`)
	u.refuses(t, "would contain the credentials", "kubeconfig", "prod")
	for _, flag := range []string{"--as=bob", "--as-group=x", "--token=y", "--user=admin"} {
		const problem = "flags that choose the user"
		u.refuses(t, problem, "exec", "prod", flag, "--", "true")
		u.refuses(t, problem, "use", "prod", flag)
		u.refuses(t, problem, "kubeconfig", "prod", "--merge", flag)
	}
	config = u.config(t)
	moved := config.Clusters["admin"].DeepCopy()
	moved.TLSServerName = "localhost"
	moved.Server = strings.Replace(moved.Server, "127.0.0.1", "localhost", 1)
	config.Clusters["admin"] = moved
	if err := clientcmd.WriteToFile(*config, u.kubeconfig); err != nil {
		t.Fatal(err)
	}
	u.refuses(t, "the address of the hub's proxy is not known", "kubeconfig", "prod", "--merge", "--context", "robot")
}

func TestUseGoesBackAndToTheHub(t *testing.T) {
	hub, member := testkit.Shared(t), testkit.Shared(t)
	workspace := hub.Workspace(t)
	hub.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "prod"}})
	u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "own", Namespace: workspace, Env: member},
		testkit.Context{Name: "hub", Namespace: workspace, Env: hub}))
	current := func(want string) {
		t.Helper()
		if got := u.config(t).CurrentContext; got != want {
			t.Errorf("the current context is %s, want %s", got, want)
		}
	}
	u.refuses(t, "there is no context to return to", "use", "-")
	u.refuses(t, "requires a Cluster", "use")
	u.refuses(t, "not both prod and --hub", "use", "prod", "--hub")
	u.says(t, `Switched to context "hub"`, "use", "--hub=hub")
	current("hub")
	u.says(t, `Switched to context "own"`, "use", "-")
	current("own")
	u.says(t, `Switched to context "hub"`, "use", "-")
	u.says(t, `Switched to context "own"`, "use", "-")
	u.says(t, `Switched to context "hub"`, "use", "--hub")
	current("hub")
	if names := slices.Sorted(func(yield func(string) bool) {
		for name := range u.config(t).AuthInfos {
			if !yield(name) {
				return
			}
		}
	}); !slices.Equal(names, []string{"hub", "own"}) {
		t.Errorf("the users are %q, want no other ones", names)
	}
}

func TestUseRefusesAContextThatDoesNotLeadToAHub(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["x"], config.AuthInfos["x"] = &clientcmdapi.Cluster{Server: server.URL}, &clientcmdapi.AuthInfo{Token: "x"}
	config.Contexts["x"], config.CurrentContext = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}, "x"
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	u := newUser(t, file)
	u.refuses(t, "does not lead to a hub", "use", "--hub")
	if !cli.MarkOf(u.config(t), "x").Selected.IsZero() {
		t.Error("the context was remembered as a hub")
	}
}

// secretive starts a server that fails the test if anything connects to it.
func secretive(t *testing.T) string {
	t.Helper()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			t.Errorf("%s connected to a server that must not get credentials", conn.RemoteAddr())
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

func TestCredentialsOfAContextAreNotSentToAnotherURL(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	for name, marked := range map[string]bool{"a hub is current": false, "a hub is remembered": true} {
		t.Run(name, func(t *testing.T) {
			other := secretive(t)
			u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "robot", Namespace: workspace, Env: hub}))
			config := u.config(t)
			config.AuthInfos["robot"].Token = "of-hub-a"
			if marked {
				mark := cli.Mark{Selected: time.Now(), URL: "https://hub-a.example.com"}
				if err := cli.SetMark(config, "robot", mark); err != nil {
					t.Fatal(err)
				}
			}
			if err := clientcmd.WriteToFile(*config, u.kubeconfig); err != nil {
				t.Fatal(err)
			}
			for _, args := range [][]string{
				{"clusters"}, {"whoami"}, {"exec", "prod"}, {"kubeconfig", "prod"}, {"use", "prod"},
				{cobra.ShellCompRequestCmd, "exec"},
			} {
				args = append(args, "--hub", other)
				if args[0] == "exec" {
					args = append(args, "--", "true")
				}
				if args[0] == cobra.ShellCompRequestCmd {
					args = append(args, "")
					u.run(t, args...)
					continue
				}
				u.refuses(t, "no context of the kubeconfig leads to", args...)
			}
		})
	}
}

func TestCredentialsOfAGuessedHubAreNotUsedToChangeSomething(t *testing.T) {
	hub, member := testkit.Shared(t), testkit.Shared(t)
	u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "own", Env: member},
		testkit.Context{Name: "hub", Env: hub}))
	u.says(t, "Switched", "use", "--hub=hub")
	u.says(t, "Switched", "use", "-")
	config := u.config(t)
	config.Contexts["own"].Extensions = nil
	if err := clientcmd.WriteToFile(*config, u.kubeconfig); err != nil {
		t.Fatal(err)
	}
	const problem = "does not say which hub is meant"
	u.refuses(t, problem, "exec", "prod", "--", "true")
	u.refuses(t, problem, "use", "prod")
	u.refuses(t, problem, "kubeconfig", "prod", "--merge")
}

func TestWhoAmIRefusesAClusterThatIsNotAHub(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := clientcmdapi.NewConfig()
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: server.URL}
	config.AuthInfos["x"] = &clientcmdapi.AuthInfo{Token: "x"}
	config.Contexts["x"], config.CurrentContext = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}, "x"
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	newUser(t, file).refuses(t, "does not lead to a hub", "whoami")
}

// publish writes the addresses of a hub's proxy as its manager does. They are gone after the test.
func publish(t *testing.T, hub *testkit.Env, servers ...string) {
	t.Helper()
	published := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: managerNamespace, Name: "drover-ca"},
		Data: map[string]string{"ca.crt": "the CA", "servers": strings.Join(servers, "\n")}}
	withdraw := func(ctx context.Context) {
		if err := hub.Client.Delete(ctx, published.DeepCopy()); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	err := hub.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: managerNamespace}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	withdraw(t.Context())
	hub.Apply(t, published)
	t.Cleanup(func() { withdraw(context.WithoutCancel(t.Context())) })
}

// signIn stores a session of the user at a hub whose proxy accepts the token.
func (u user) signIn(t *testing.T, url, caFile, token string) {
	t.Helper()
	store, err := sessions()
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(caFile)
	if err != nil {
		t.Fatal(err)
	}
	err = store.Change(t.Context(), url, func(*login.Session) (*login.Session, error) {
		return &login.Session{Issuer: url, CA: ca, Token: token, Expires: time.Now().Add(time.Hour)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestUseAdvisesButDoesNotRememberTheContextThatPublishesTheHub(t *testing.T) {
	server := testkit.Shared(t)
	workspace := server.Workspace(t)
	url, ca := newProxy(t, workspace, "of-alice")
	command := `"kubectl drover use --hub=` + url + ` --ca FILE --context admin"`
	for name, tt := range map[string]struct {
		servers []string
		advised bool
	}{
		"the hub, or a member that imitates it":      {[]string{"https://10.0.0.1", url + "/"}, true},
		"another hub publishes its own address":      {[]string{"https://hub-b.example.com"}, false},
		"a hub's address that only begins the same":  {[]string{url + "1"}, false},
		"a hub that publishes no address, or no hub": {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			publish(t, server, tt.servers...)
			u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "admin", Namespace: workspace, Env: server}))
			u.signIn(t, url, ca, "of-alice")
			if out := u.says(t, "Switched", "use", "prod"); strings.Contains(out, command) != tt.advised {
				t.Errorf("use prints %q, want advice: %v", out, tt.advised)
			}
			config := u.config(t)
			if mark := cli.MarkOf(config, "admin"); mark.URL != "" || !mark.Selected.IsZero() {
				t.Errorf("the context has the mark %+v, want it not remembered as the hub", mark)
			}
			if mark := cli.MarkOf(config, config.CurrentContext); mark.Hub != "" {
				t.Errorf("the member's context has the hub %q, want none", mark.Hub)
			}
			got, _, err := (&cli.Options{}).FindHub(config)
			if err == nil || !strings.Contains(err.Error(), "--hub="+url+" --ca FILE --context CONTEXT") {
				t.Errorf("from the member, the hub is %q (%v), want the command that remembers it", got, err)
			}
			if !tt.advised {
				return
			}
			u.says(t, "Switched", "use", "--hub="+url, "--ca", ca, "--context", "admin")
			u.says(t, "Switched", "use", "-")
			if got, guessed, err := (&cli.Options{}).FindHub(u.config(t)); got != "admin" || guessed || err != nil {
				t.Errorf("after the command, the hub is %q (guessed %v, %v), want admin", got, guessed, err)
			}
			if out := u.says(t, "Switched", "use", "prod", "--context", "admin"); strings.Contains(out, command) {
				t.Errorf("use prints %q, want no advice for a hub that is known", out)
			}
		})
	}
}

func TestAHubsPublishedAddressIsAdvised(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	url, ca := newProxy(t, workspace, "of-alice")
	publish(t, hub, url)
	u := newUser(t, testkit.Kubeconfig(t, testkit.Context{Name: "admin", Namespace: workspace, Env: hub}))
	const other = "https://other.example.com"
	for _, args := range [][]string{{"use", "prod"}, {"exec", "prod", "--", "true"}, {"kubeconfig", "prod", "--merge"}} {
		u.refuses(t, `sign in with "kubectl drover login `+url+` --ca FILE". This address comes from context admin: use it `+
			`only if that context leads to your hub. "kubectl --context admin -n drover-system `+
			`get configmap drover-ca -o jsonpath='{.data.ca\.crt}'" prints the CA for FILE`, args...)
	}
	config := u.config(t)
	config.AuthInfos["admin"].Token = "of-admin"
	if err := clientcmd.WriteToFile(*config, u.kubeconfig); err != nil {
		t.Fatal(err)
	}
	u.refuses(t, `"kubectl drover use --hub=`+url+` --ca FILE --context admin"`, "exec", "prod", "--", "true")
	u.signIn(t, other, ca, "of-alice")
	u.refuses(t, `"kubectl drover login `+url+` --ca FILE"`, "exec", "prod", "--", "true")
	u.signIn(t, url, ca, "of-alice")
	const advice = "context admin does not say which hub is meant. Its API server publishes the address "
	u.refuses(t, advice+url+", where you are signed in: add --hub="+url+" if this is your hub",
		"exec", "prod", "--", "true")
	u.says(t, "1 of 1 Clusters: succeeded", "exec", "--hub="+url, "prod", "--", "true")
	for _, command := range []string{"whoami", "clusters"} { // would act as another user than exec
		u.refuses(t, advice+url, command, "--context", "admin")
		u.says(t, "As user admin", command, "--context", "admin", "--as=bob", "--as-group=system:masters")
	}
	u.says(t, "prod", "clusters", "--hub="+url)

	config = u.config(t) // another hub was selected since
	config.Clusters["b"] = &clientcmdapi.Cluster{Server: "https://10.0.0.2:6443"}
	config.Contexts["b"] = &clientcmdapi.Context{Cluster: "b", AuthInfo: "admin"}
	err := cli.SetMark(config, "b", cli.Mark{Selected: time.Now(), URL: other})
	if err == nil {
		err = clientcmd.WriteToFile(*config, u.kubeconfig)
	}
	if err != nil {
		t.Fatal(err)
	}
	u.refuses(t, advice+url, "exec", "prod", "--", "true")
	publish(t, hub, "https://hub-c.example.com")
	u.refuses(t, "does not say which hub is meant", "exec", "prod", "--", "true")
}

func TestAPublishedAddressWithShellCharactersIsNotAdvised(t *testing.T) {
	for server, want := range map[string]string{
		"https://hub.example.com/":       "https://hub.example.com",
		"https://Hub-1.example.com:8443": "https://hub-1.example.com:8443",
		"https://[2001:DB8::1]:8443":     "https://[2001:db8::1]:8443",
		"https://hub.example.com/path":   "",
		"https://hub/$(touch${IFS}x)":    "",
		"https://$(id).example.com":      "",
		"https://hub;id":                 "",
		"https://hub'":                   "",
	} {
		got := publishedIn(&corev1.ConfigMap{Data: map[string]string{"servers": server}})
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got the addresses %q, want %q", server, got, want)
		}
	}
	p := plainHub{context: "it's $(id)", published: []string{"https://hub"}}
	err := p.unknownProxy(true)
	for _, want := range []string{
		`"kubectl drover use --hub=https://hub --ca FILE --context 'it'\''s $(id)'"`,
		`"kubectl --context 'it'\''s $(id)' -n drover-system get configmap`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the advice is %q, want %s", err, want)
		}
	}
}

func TestWithoutAnyHubTheUserIsToldBothWays(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*clientcmdapi.NewConfig(), file); err != nil {
		t.Fatal(err)
	}
	u := newUser(t, file)
	for _, args := range [][]string{{"clusters"}, {"use", "prod"}, {"exec", "prod", "--", "true"}, {"whoami"}} {
		u.refuses(t, `run "kubectl drover login URL", where URL is the address of the hub, or select a kubeconfig of the `+
			`hub with --kubeconfig`, args...)
	}
}
