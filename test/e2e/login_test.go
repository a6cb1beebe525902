// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// These variables make a process of this test's binary act as the browser of the user of a computer.
const browserAddress, browserCA, browserUser, browserPassword = "TEST_BROWSER_ADDRESS", "TEST_BROWSER_CA", "TEST_BROWSER_USER", "TEST_BROWSER_PASSWORD"

// computer is a computer with a browser, where a user runs the plugin and kubectl.
type computer struct {
	system *system
	home   string
	env    []string
	ca     string
}

// newComputer returns a computer whose user types the right password.
func newComputer(t *testing.T, s *system, user, secret string) *computer {
	t.Helper()
	c := &computer{system: s, home: t.TempDir()}
	c.ca = filepath.Join(c.home, "hub-ca.crt")
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	history := filepath.Join(c.home, "browser.log")
	script := "#!/bin/sh\nexport " + browserAddress + `="$1"` + "\nexec '" + self + "' -test.run='^TestBrowserOfAComputer$' >>'" + history + "' 2>&1\n"
	t.Cleanup(func() {
		if raw, err := os.ReadFile(history); t.Failed() {
			t.Logf("the browser: %s (%v)", raw, err)
		}
	})
	if err := errors.Join(os.WriteFile(c.ca, bundle, 0o600), os.WriteFile(filepath.Join(c.home, "xdg-open"), []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{c.home, pluginDir(t), filepath.Dir(s.programs.Kubectl), "/usr/bin", "/bin"}, string(filepath.ListSeparator))
	c.env = []string{"HOME=" + c.home, "PATH=" + path, browserCA + "=" + c.ca, browserUser + "=" + user, browserPassword + "=" + secret}
	return c
}

// run runs a program on the computer, and returns its output.
func (c *computer) run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	var out, complaints bytes.Buffer
	command := exec.CommandContext(within(t, time.Minute), program, args...)
	command.Env, command.Dir, command.Stdout, command.Stderr = c.env, c.home, &out, &complaints
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %v: %w: %s", filepath.Base(program), args, err, complaints.String())
	}
	return out.String() + complaints.String(), nil
}

func (c *computer) drover(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return c.run(t, filepath.Join(pluginDir(t), "kubectl-drover"), args...)
}

func (c *computer) kubectl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return c.run(t, c.system.programs.Kubectl, args...)
}

// token returns the token that kubectl gets on the computer.
func (c *computer) token(t *testing.T) string {
	t.Helper()
	out, err := c.drover(t, "get-token", "--hub", c.system.hub.URL())
	var credential clientauthenticationv1.ExecCredential
	if err = errors.Join(err, json.Unmarshal([]byte(out), &credential)); err != nil || credential.Status == nil || credential.Status.ExpirationTimestamp == nil {
		t.Errorf("get-token prints no credential: %v", err)
		return ""
	}
	return credential.Status.Token
}

// expire makes the computer's token expire now, by the clock of the computer.
func (c *computer) expire(t *testing.T) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(c.home, ".kube", "cache", "drover", "*.json"))
	if err != nil || len(files) != 1 {
		t.Fatalf("sessions are in %v (%v)", files, err)
	}
	var session map[string]any
	raw, err := os.ReadFile(files[0])
	if err = errors.Join(err, json.Unmarshal(raw, &session)); err != nil {
		t.Fatal(err)
	}
	session["expires"] = time.Now()
	if raw, err = json.Marshal(session); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestBrowserOfAComputer acts as that browser. It opens the address, types the user's name and password into the form,
// and follows redirects.
func TestBrowserOfAComputer(t *testing.T) {
	address := os.Getenv(browserAddress)
	if address == "" {
		t.Skip("kubectl drover login runs it")
	}
	bundle, err := os.ReadFile(os.Getenv(browserCA))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}}
	page, err := fetch(t.Context(), browser, address)
	if err != nil {
		t.Fatal(err)
	}
	found, at := signInRequest.FindStringSubmatch(page), must(url.Parse(address))
	if found == nil {
		t.Fatalf("the login page has no form: %s", page)
	}
	form := url.Values{"request": {found[1]}, "user": {os.Getenv(browserUser)}, "password": {os.Getenv(browserPassword)}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.Scheme+"://"+at.Host+"/v1/auth/login", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Origin", at.Scheme+"://"+at.Host)
	resp, err := browser.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Request.URL.Path != "/callback" {
		t.Errorf("the browser ends at %s with %s", resp.Request.URL.Path, resp.Status)
	}
}

func must(u *url.URL, err error) *url.URL {
	if err != nil {
		panic(err)
	}
	return u
}

// TestAUserWorksWithTheHubByThePlugin runs login, whoami, clusters, use, kubeconfig and logout, and in between kubectl
// through the proxy.
func TestAUserWorksWithTheHubByThePlugin(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startSignIn)
	cluster, _ := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, time.Minute, framework.Ready)
	if _, err := s.hub.CreateCluster(within(t, 20*time.Second), client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "secret-plans"}); err != nil {
		t.Fatal(err)
	}
	at := newComputer(t, s, "alice", makeUser(t, s, "alice"))
	says := func(what string, args ...string) string {
		t.Helper()
		out, err := at.drover(t, args...)
		if err != nil || !strings.Contains(out, what) {
			t.Errorf("kubectl drover %v prints %q (%v), expected %q in it", args, out, err, what)
		}
		return out
	}
	refuses := func(what string, args ...string) {
		t.Helper()
		if out, err := at.drover(t, args...); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("kubectl drover %v prints %q (%v), expected to fail with %q", args, out, err, what)
		}
	}
	refuses("you are not signed in", "whoami")
	refuses("--ca FILE", "login", s.hub.URL())
	awaitKeys(t, s)
	says("Signed in to "+s.hub.URL()+" as local:alice", "login", s.hub.URL(), "--ca", at.ca, "--timeout", "2m")
	says("local:alice\n", "whoami")
	says("You cannot reach any Cluster", "clusters")
	refuses("you cannot reach a Cluster member", "use", "member")

	for _, o := range []client.Object{
		&v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, External: "view"}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "alice"}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: cluster.Name}, RoleTemplateName: "reader", Subject: v1.Subject{Kind: "User", Name: "local:alice"}}},
	} {
		if err := s.hub.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		_, err := at.drover(t, "use", "member", "-n", "kube-system")
		return err
	})
	if out := says("default     member", "clusters"); strings.Contains(out, "secret-plans") {
		t.Errorf("a Cluster is listed that the user may not reach: %s", out)
	}
	says("default/member", "__complete", "use", "")

	testkit.Eventually(t, time.Minute, func(context.Context) error { // the member gets the binding
		_, err := at.kubectl(t, "get", "configmaps")
		return err
	})
	if out, err := at.kubectl(t, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil || out != "local:alice" {
		t.Errorf("the member knows the user as %q (%v)", out, err)
	}
	t.Run("a command runs for all Clusters that the user may reach", func(t *testing.T) {
		says("[default/member] local:alice\n1 of 1 Clusters: succeeded\n", "exec", "--all", "--", s.programs.Kubectl, "auth", "whoami", "-o", `jsonpath={.status.userInfo.username}`)
		refuses("You cannot reach any Cluster with the labels env=none", "exec", "--all", "-l", "env=none", "--", "true")
		if out, err := at.drover(t, "exec", "member", "-o", "json", "--", s.programs.Kubectl, "delete", "namespace", "kube-system"); err == nil || !strings.Contains(out, `"exitCode": 1`) || !strings.Contains(out, "Forbidden") {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("a kubeconfig for others has no token", func(t *testing.T) {
		file := filepath.Join(at.home, "shared.kubeconfig")
		says("", "kubeconfig", "default/member", "-o", file)
		refuses("exists", "kubeconfig", "--all", "-o", file)
		raw, err := os.ReadFile(file)
		if err != nil || bytes.Contains(raw, []byte("eyJ")) || bytes.Contains(raw, []byte("token:")) {
			t.Errorf("the kubeconfig is %s (%v)", raw, err)
		}
		if _, err := at.kubectl(t, "--kubeconfig", file, "get", "configmaps"); err != nil {
			t.Error(err)
		}
	})
	t.Run("a kubeconfig for programs has a token for its Cluster, if that is asked for", func(t *testing.T) {
		file := filepath.Join(at.home, "ci.kubeconfig")
		refuses("requires --static-token", "kubeconfig", "default/member", "--ttl", "1h")
		says("", "kubeconfig", "default/member", "--static-token", "--ttl", "1h", "-o", file)
		raw, err := os.ReadFile(file)
		if err != nil || bytes.Count(raw, []byte("token: token-")) != 1 || bytes.Contains(raw, []byte("exec:")) {
			t.Errorf("the kubeconfig is %s (%v)", raw, err)
		}
		if out, err := at.kubectl(t, "--kubeconfig", file, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil || out != "local:alice" {
			t.Errorf("the program is known as %q (%v)", out, err)
		}
		if out := says("a kubeconfig", "token", "list"); !strings.Contains(out, "default/member") {
			t.Errorf("the tokens are %s", out)
		}
	})
	t.Run("several kubectl at once get a token", func(t *testing.T) {
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := at.kubectl(t, "get", "configmaps"); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	})
	t.Run("the right to get clusters/proxy is as good as a binding", func(t *testing.T) {
		for _, o := range []client.Object{
			&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "reach"}, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}, ResourceNames: []string{"secret-plans"}}}},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: "reach"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reach"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "local:alice"}}},
		} {
			if err := s.hub.Client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if out, err := at.drover(t, "clusters", "-w", cluster.Namespace); err != nil || !strings.Contains(out, "secret-plans") {
				return fmt.Errorf("the Cluster is not listed: %s (%w)", out, err)
			}
			return nil
		})
	})

	t.Run("a Cluster is used by a right to it alone, if its workspace is named", func(t *testing.T) {
		says(`Switched to context "default/secret-plans@`, "use", "default/secret-plans")
		says(`Switched to context "default/member@`, "use", "member")
		says(`Switched to context "default/secret-plans@`, "use", "-")
		says(`Switched to context "default/member@`, "use", "-")
		refuses("no context of that hub is known", "agents")
	})
	t.Run("a token for one Cluster is worthless elsewhere", func(t *testing.T) { testClusterToken(t, s, at, cluster) })
	t.Run("a computer without a browser is signed in by a code", func(t *testing.T) { testDeviceLogin(t, s, at) })
	t.Run("a token for scripts is good for its Cluster until it is revoked", func(t *testing.T) { testScriptToken(t, at, s.hub.URL()) })
	t.Run("a script gets the changes that its user may watch", func(t *testing.T) { testSubscribe(t, at, s.hub.URL()) })
	t.Run("processes that come at once with a token that has ended all get the same new one", func(t *testing.T) {
		before := at.token(t)
		at.expire(t)
		tokens := make([]string, 8)
		var all sync.WaitGroup
		for i := range tokens {
			all.Go(func() { tokens[i] = at.token(t) })
		}
		all.Wait()
		for _, token := range tokens {
			if token != tokens[0] || token == before || token == "" {
				t.Fatal("the tokens differ, or are the one of before")
			}
		}
		says("then it is renewed without a question", "whoami")
	})
	t.Run("a session that was ended at the hub is begun anew for a person, and for no one else", func(t *testing.T) {
		if err := s.hub.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace("drover-system"), client.MatchingLabels{v1.LabelSecretKind: v1.SecretKindSession}); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if out, err := at.drover(t, "whoami"); err == nil {
				return fmt.Errorf("the hub still says %s", out)
			}
			return nil
		})
		at.expire(t)
		refuses(`the session has ended`, "get-token", "--hub", s.hub.URL())
		person := *at
		person.env = append(slices.Clone(at.env), `KUBERNETES_EXEC_INFO={"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":true}}`)
		if out, err := person.drover(t, "get-token", "--hub", s.hub.URL()); err != nil || !strings.Contains(out, "Signed in to") {
			t.Errorf("a person gets %s (%v)", out, err)
		}
		says("local:alice", "whoami")
	})

	token, err := at.drover(t, "get-token", "--hub", s.hub.URL())
	if err != nil {
		t.Fatal(err)
	}
	says("Signed out", "logout")
	refuses(`run "kubectl drover login `+s.hub.URL(), "get-token", "--hub", s.hub.URL())
	refuses("you are not signed in", "logout")
	if _, err := at.kubectl(t, "get", "configmaps"); err == nil || !strings.Contains(err.Error(), "kubectl drover login") {
		t.Errorf("without a session kubectl says %v", err)
	}
	revoked := strings.Split(strings.Split(token, `"token":"`)[1], `"`)[0]
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if _, err := s.kubectl(t, cluster, revoked, "get", "configmaps"); err == nil || !strings.Contains(err.Error(), "session has ended") {
			return fmt.Errorf("the token of before is answered with %w", err)
		}
		return nil
	})
}

// testScriptToken creates a token for one Cluster, uses it with kubectl without a kubeconfig, and revokes it.
func testScriptToken(t *testing.T, at *computer, hub string) {
	if out, err := at.drover(t, "token", "create", "--cluster", "default/nosuch"); err == nil || !strings.Contains(err.Error(), "you cannot reach a Cluster default/nosuch") {
		t.Errorf("a token for a Cluster that its user does not reach: %v, %s, want an error that names it", err, out)
	}
	out, err := at.drover(t, "token", "create", "--description", "the pipeline", "--cluster", "default/member", "--ttl", "1h")
	found := regexp.MustCompile(`(?m)^token-([0-9a-f]{40}):\S+$`).FindStringSubmatch(out)
	if err != nil || found == nil || !strings.Contains(out, "is valid for default/member until ") {
		t.Fatalf("token create prints %q (%v)", out, err)
	}
	script := func(cluster string) error {
		_, err := at.kubectl(t, "--kubeconfig", os.DevNull, "--server", hub+"/k8s/clusters/default/"+cluster, "--certificate-authority", at.ca, "--token", found[0], "get", "configmaps")
		return err
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error { return script("member") })
	if err := script("secret-plans"); err == nil || !strings.Contains(err.Error(), `the token is valid for cluster "default/member" only`) {
		t.Errorf("at another Cluster the token gets %v, expected to be refused", err)
	}
	if out, err := at.drover(t, "token", "list"); err != nil || !strings.Contains(out, found[1]) || !strings.Contains(out, "the pipeline") || strings.Contains(out, found[0]) {
		t.Errorf("token list prints %q (%v), expected the token's ID and description, and not the token", out, err)
	}
	if out, err := at.drover(t, "token", "revoke", found[1]); err != nil || !strings.Contains(out, "Revoked "+found[1]) {
		t.Errorf("token revoke prints %q (%v)", out, err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if script("member") == nil {
			return errors.New("the revoked token is accepted")
		}
		return nil
	})
	if out, err := at.drover(t, "token", "revoke", found[1]); err == nil || !strings.Contains(err.Error(), "you have no token with that ID") {
		t.Errorf("to revoke it again prints %q (%v)", out, err)
	}
}

// testDeviceLogin signs the user of a computer in on another computer without a browser.
func testDeviceLogin(t *testing.T, s *system, at *computer) {
	server := *at
	server.home = t.TempDir()
	server.env = append(slices.Clone(at.env), "HOME="+server.home)
	command := exec.CommandContext(within(t, time.Minute), filepath.Join(pluginDir(t), "kubectl-drover"), "login", s.hub.URL(), "--ca", at.ca, "--device")
	command.Env, command.Dir = server.env, server.home
	says, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	shown := regexp.MustCompile(`(https://\S+/v1/auth/device)\s+and enter the code\s+(\S+)\n`)
	for lines := bufio.NewScanner(says); !shown.MatchString(said.String()) && lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
	}
	found := shown.FindStringSubmatch(said.String())
	if found == nil {
		t.Fatalf("no address and code is shown: %s", said.String())
	}
	secret := strings.TrimPrefix(at.env[slices.IndexFunc(at.env, func(v string) bool { return strings.HasPrefix(v, browserPassword+"=") })], browserPassword+"=")
	v := newVisitor(t, s, "alice", secret)
	resp, err := v.send(t.Context(), found[1]+"?"+url.Values{"user_code": {found[2]}}.Encode()) // as a person who types it
	if err != nil {
		t.Fatal(err, said.String())
	}
	resp.Body.Close()
	rest, _ := io.ReadAll(says)
	if err := command.Wait(); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(rest), "Signed in to "+s.hub.URL()+" as local:alice") {
		t.Fatalf("the page is answered with %s, and the plugin ends with %v: %s%s", resp.Status, err, said.String(), rest)
	}
	if out, err := server.drover(t, "whoami"); err != nil || !strings.Contains(out, "local:alice") {
		t.Errorf("whoami prints %q (%v)", out, err)
	}
}

// testClusterToken exchanges the user's token, and does the same with a tool that reads ClusterProfiles.
func testClusterToken(t *testing.T, s *system, at *computer, cluster types.NamespacedName) {
	token := func(out string, err error) string {
		t.Helper()
		var credential clientauthenticationv1.ExecCredential
		if err = errors.Join(err, json.Unmarshal([]byte(out), &credential)); err != nil || credential.Status == nil {
			t.Fatalf("no credential: %s (%v)", out, err)
		}
		return credential.Status.Token
	}
	profile := *at
	info := `{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","spec":{"interactive":false,"cluster":{"server":"` + s.hub.URL() + `/k8s/clusters/` + cluster.String() + `"}}}`
	profile.env = append(slices.Clone(at.env), "KUBERNETES_EXEC_INFO="+info)
	for name, only := range map[string]string{
		"get-token":  token(at.drover(t, "get-token", "--cluster", cluster.String())),
		"credential": token(profile.drover(t, "credential")),
	} {
		if _, err := s.kubectl(t, cluster, only, "get", "configmaps"); err != nil {
			t.Errorf("%s: in the Cluster: %v", name, err)
		}
		if _, err := s.kubectl(t, types.NamespacedName{Namespace: cluster.Namespace, Name: "secret-plans"}, only, "get", "configmaps"); err == nil || !strings.Contains(err.Error(), "valid for") {
			t.Errorf("%s: in another Cluster: %v, want a refusal that names the Cluster", name, err)
		}
	}
	if out, err := at.drover(t, "get-token", "--cluster", "nonsense"); err == nil || !strings.Contains(err.Error(), "refused a token for cluster:nonsense: invalid_target") {
		t.Errorf("for what is no Cluster: %s (%v)", out, err)
	}
}
