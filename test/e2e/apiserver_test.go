// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// way is a member whose API server accepts users' tokens because of a file in docs/operations.
type way struct {
	*system // its member
	page    string
	file    string
	cluster types.NamespacedName
	beside  *framework.Agent
	pod     *kubelet
	alice   *computer
	bob     *computer
}

// TestLong_UsersGoOnWithoutTheHubAtTheAPIServer uses real API servers with the files and flags of
// docs/operations/direct-access.md. While the hub is killed, get, exec and port-forward continue to work, even after a
// restart of the API server and of the webhook server that it calls. With the webhook, an earlier revocation stays in
// effect. With --authentication-config it does not, as the page says.
func TestLong_UsersGoOnWithoutTheHubAtTheAPIServer(t *testing.T) {
	t.Parallel()
	s := build(t)
	webhook, config := &way{system: s, page: "member-token-review.yaml"}, &way{system: s, page: "member-authentication.yaml"}
	ways := map[string]*way{"webhook": webhook, "config": config}
	s.startSignIn(t)
	awaitKeys(t, s)
	passwords := map[string]string{"alice": makeUser(t, s, "alice"), "bob": makeUser(t, s, "bob")}
	for name, w := range ways {
		w.install(t, name)
		w.alice, w.bob = newComputer(t, s, "alice", passwords["alice"]), newComputer(t, s, "bob", passwords["bob"])
	}
	s.bindAdmins(t, "webhook", "alice", "bob")
	for _, user := range []string{"alice", "bob"} {
		create(t, s.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: user + "-config"}, Spec: v1.ClusterRoleTemplateBindingSpec{
			ClusterTarget: v1.ClusterTarget{ClusterName: "config"}, RoleTemplateName: "direct-admin", Subject: v1.Subject{Kind: "User", Name: "local:" + user}}})
	}
	for name, w := range ways {
		t.Run(name+": before the API server is set up, the plugin goes by the hub", w.isByHub)
		t.Run(name+": then it goes to the API server, as the same user", w.isDirect)
		t.Run(name+": tokens", w.tokens)
	}
	stolen := map[*way]string{}
	for _, w := range ways {
		stolen[w] = w.bob.home + "/stolen"
		keepToken(t, w.bob, w.cluster.String(), stolen[w])
		if out, err := w.bob.drover(t, "logout"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
	t.Run("webhook: a session that was ended is refused", func(t *testing.T) { webhook.refuses(t, stolen[webhook]) })
	t.Run("config: a session that was ended is served, without the rights that are taken away", func(t *testing.T) { config.serves(t, stolen[config]) })

	kill(t, s.hub.Manager)
	if err := s.hub.Kill(); err != nil {
		t.Fatal(err)
	}
	for name, w := range ways {
		t.Run(name+": without the hub", func(t *testing.T) { w.goesOn(t) })
		t.Run(name+": after the API server was restarted", func(t *testing.T) {
			if err := w.member.Restart(within(t, 2*time.Minute), lab.APIServer); err != nil {
				t.Fatal(err)
			}
			w.goesOn(t)
		})
	}
	t.Run("webhook: without what it asks the API server refuses users, and serves them once that is back", func(t *testing.T) {
		kill(t, webhook.beside.Process)
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if _, err := webhook.alice.kubectl(t, "get", "pods"); err == nil {
				return errors.New("the user is still served")
			}
			return nil
		})
		s.startAgent(t, webhook.beside)
		webhook.goesOn(t)
	})
	webhook.refuses(t, stolen[webhook])
}

// install starts the member with its agent, and the server that the agent runs beside the API server. The API server is
// not configured to use that server yet.
func (w *way) install(t *testing.T, name string) {
	t.Helper()
	own := *w.system
	w.system, w.file = &own, filepath.Join(t.TempDir(), "file.yaml")
	flags := []string{"--authentication-config=" + w.file}
	before := []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n")
	if name == "webhook" { // kube-apiserver does not start without a CA in it
		ca, err := trust.NewAuthority(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		flags, before = w.flags(t), w.content(t, "127.0.0.1:1", string(ca.Cert))
	}
	if err := os.WriteFile(w.file, before, 0o600); err != nil {
		t.Fatal(err)
	}
	w.programs.APIServerArgs = flags
	var err error
	if w.member, err = w.plane(name); err != nil {
		t.Fatal(err)
	}
	member := w.member
	t.Cleanup(func() { _ = member.Kill() })
	cluster, manifest := w.created(t, name)
	w.cluster = cluster
	w.agent(t, manifest, name, w.member, protocol.AgentNamespace)
	w.await(t, cluster, time.Minute, framework.Ready)
	w.pod = startKubelet(t, w.member)
	testkit.Update(t, w.member.Client, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}, func(n *corev1.Node) {
		n.Labels = map[string]string{"node-role.kubernetes.io/control-plane": "", corev1.LabelOSStable: "linux"}
	})
	testkit.Update(t, w.hub.Client, w.system.cluster(t, cluster), func(c *v1.Cluster) {
		c.Spec.AuthorizedEndpoint = v1.AuthorizedEndpoint{Mode: v1.AuthorizedEndpointAPIServer, Server: w.member.URL(), CABundle: string(w.member.CA())}
	})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if manifest = w.registrationOf(t, cluster).Data[registration.KeyManifest]; !bytes.Contains(manifest, []byte(v1.AnnotationDirectAccess)) {
			return errors.New("the manifest is that of before")
		}
		return framework.ApplyManifest(ctx, w.member, manifest, protocol.AgentNamespace)
	})
	w.startBeside(t, name)
}

// startBeside waits for the DaemonSet, and starts its only pod.
func (w *way) startBeside(t *testing.T, name string) {
	t.Helper()
	set := &appsv1.DaemonSet{}
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		d := w.deployment(t)
		if d.Annotations[v1.AnnotationDirectAccess] == "" {
			return errors.New("the Deployment is that of before")
		}
		w.runPods(t, d)
		if err := w.member.Client.Get(ctx, client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.DirectName}, set); err != nil {
			return err
		}
		if set.Status.CurrentNumberScheduled != 1 {
			return fmt.Errorf("the DaemonSet has %d pods for one node of the control plane", set.Status.CurrentNumberScheduled)
		}
		return nil
	})
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if w.beside, err = framework.InstallBeside(within(t, time.Minute), w.member, set, name+"-beside", address); err != nil {
		t.Fatal(err)
	}
	w.startAgent(t, w.beside)
	w.await(t, w.cluster, time.Minute, func(c *v1.Cluster) bool {
		return c.Status.DirectAuthority != "" && meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionDirectAccess)
	})
}

// flags returns the flags in the first line of the file in docs/operations.
func (w *way) flags(t *testing.T) []string {
	t.Helper()
	line, _, _ := strings.Cut(w.read(t), "\n")
	_, flags, found := strings.Cut(line, "kube-apiserver: ")
	if !found {
		t.Fatalf("%s names no flags", w.page)
	}
	return strings.Fields(strings.ReplaceAll(flags, "<this file>", w.file))
}

func (w *way) read(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(w.programs.Root, "docs", "operations", w.page))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// content returns the file in docs/operations with the address and the CA of the webhook server filled in.
func (w *way) content(t *testing.T, address, ca string) []byte {
	t.Helper()
	text := w.read(t)
	for from, to := range map[string]string{
		"https://drover.example.com/k8s/clusters/team-a/prod-eu": w.hub.URL() + "/k8s/clusters/" + w.cluster.String(),
		"https://drover.example.com\n":                           w.hub.URL() + "\n",
		"127.0.0.1:6440":                                         address,
		"      -----BEGIN CERTIFICATE-----\n      (status.directAuthority)\n      -----END CERTIFICATE-----\n": "      " + strings.ReplaceAll(strings.TrimSpace(ca), "\n", "\n      ") + "\n",
		base64.StdEncoding.EncodeToString([]byte("(status.directAuthority)")):                                  base64.StdEncoding.EncodeToString([]byte(ca)),
	} {
		text = strings.ReplaceAll(text, from, to)
	}
	if strings.Contains(text, "drover.example.com") || strings.Contains(text, ":6440") {
		t.Fatalf("a value is left:\n%s", text)
	}
	return []byte(text)
}

func (w *way) isByHub(t *testing.T) {
	for _, at := range []*computer{w.alice, w.bob} {
		if out, err := at.drover(t, "login", w.hub.URL(), "--ca", at.ca, "--timeout", "2m"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error { // the hub learns of the binding, and the member of its own
		out, err := w.alice.drover(t, "use", w.cluster.Name)
		if err == nil && strings.Contains(out, "-direct") {
			t.Errorf("an API server that does not take the user's token is preferred: %s", out)
		}
		if err == nil {
			_, err = w.alice.kubectl(t, "get", "pods")
		}
		return err
	})
}

// isDirect configures the API server, and enables direct access for users.
func (w *way) isDirect(t *testing.T) {
	next := w.file + ".next" // renamed, so that the API server never reads half of it
	content := w.content(t, w.beside.Address, w.system.cluster(t, w.cluster).Status.DirectAuthority)
	if err := errors.Join(os.WriteFile(next, content, 0o600), os.Rename(next, w.file)); err != nil {
		t.Fatal(err)
	}
	if w.page == "member-token-review.yaml" { // the other file is read again by itself
		if err := w.member.Restart(within(t, 2*time.Minute), lab.APIServer); err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range []*computer{w.alice, w.bob} {
		testkit.Eventually(t, 3*time.Minute, func(context.Context) error {
			out, err := at.drover(t, "use", w.cluster.Name)
			if err == nil && !strings.Contains(out, "-direct") {
				err = fmt.Errorf("the chosen context is not that of the API server: %s", out)
			}
			return err
		})
	}
	out, err := w.alice.kubectl(t, "auth", "whoami", "-o", "json")
	got, err := reviewed(t, out, err)
	user := &v1.User{}
	if err := w.hub.Client.Get(t.Context(), types.NamespacedName{Name: "alice"}, user); err != nil {
		t.Fatal(err)
	}
	if err != nil || got.Username != "local:alice" || got.UID != string(user.UID) || strings.Join(got.Groups, ",") != "system:authenticated" {
		t.Errorf("the API server knows the user as %+v (%v)", got, err)
	}
	if config, err := os.ReadFile(w.alice.home + "/.kube/config"); err != nil || !bytes.Contains(config, []byte("server: "+w.member.URL())) {
		t.Errorf("the context is not for %s (%v)", w.member.URL(), err)
	}
	w.goesOn(t)
}

// goesOn waits until the member accepts alice's requests, and then reads, executes and forwards a port as alice.
func (w *way) goesOn(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(context.Context) error { // an API server that was restarted reads the keys within 10 s
		_, err := w.alice.kubectl(t, "get", "pods")
		return err
	})
	checkGoesOn(t, w.system, w.alice, w.pod)
}

// refuses waits until the API server no longer accepts the token in a kubeconfig. The API server caches reviews for 10
// s.
func (w *way) refuses(t *testing.T, file string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		out, err := w.bob.kubectl(t, "--kubeconfig", file, "get", "pods")
		if err == nil {
			return fmt.Errorf("a revoked session is served: %s", out)
		}
		if !strings.Contains(err.Error(), "logged in") && !strings.Contains(err.Error(), "Unauthorized") {
			return fmt.Errorf("a revoked session is not refused as such: %w", err)
		}
		return nil
	})
}

// serves checks what docs/operations/direct-access.md says about using only --authentication-config.
func (w *way) serves(t *testing.T, file string) {
	w.awaitDenied(t, file)
	if err := w.hub.Client.Delete(t.Context(), &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "bob-config"}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		out, err := w.bob.kubectl(t, "--kubeconfig", file, "get", "pods")
		if err == nil {
			return fmt.Errorf("without a binding the user gets %s", out)
		}
		if !strings.Contains(err.Error(), "forbidden") {
			return fmt.Errorf("the user is not refused for want of a right: %w", err)
		}
		return nil
	})
	if out, err := w.bob.kubectl(t, "--kubeconfig", file, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); err != nil || out != "local:bob" {
		t.Errorf("the page says that the token is good until it ends, and the user is %q (%v)", out, err)
	}
}

// awaitDenied waits until the server beside the API server rejects the token in a kubeconfig.
func (w *way) awaitDenied(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(authenticationv1.TokenReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}, Spec: authenticationv1.TokenReviewSpec{Token: textBetween(string(raw), "token: ", "}")},
	})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(w.system.cluster(t, w.cluster).Status.DirectAuthority))
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.beside.Address+"/v1/authenticate", bytes.NewReader(review))
		if err != nil {
			return err
		}
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var answer authenticationv1.TokenReview
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
			return err
		}
		if answer.Status.Authenticated || answer.Status.Error != "" {
			return fmt.Errorf("the review says %+v", answer.Status)
		}
		return nil
	})
}

// tokens tries tokens that are signed with the issuer's own key, so that each token is rejected because of one rule
// only.
func (w *way) tokens(t *testing.T) {
	set := (&trustingHub{system: w.system}).keys(t)
	now := time.Now()
	audience := w.hub.URL() + "/k8s/clusters/" + w.cluster.String()
	claims := func(change map[string]any) map[string]any {
		all := map[string]any{"iss": w.hub.URL(), "sub": "github:bob", "aud": []string{audience}, "sid": "s", "uid": "u", "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
			"groups": []string{"github:acme/web"}}
		maps.Copy(all, change)
		maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
		return all
	}
	if user, err := w.whoami(t, signed(t, set[0], claims(nil))); err != nil || user.Username != "github:bob" || strings.Join(user.Groups, ",") != "github:acme/web,system:authenticated" {
		t.Errorf("a user with a group is %v (%v)", user, err)
	}
	foreign, err := keys.New(now)
	if err != nil {
		t.Fatal(err)
	}
	disguised := foreign
	disguised.ID = set[0].ID
	for name, tt := range map[string]struct {
		key    keys.Key
		change map[string]any
	}{
		"of a foreign key under the name of ours": {disguised, nil},
		"that has expired":                        {set[0], map[string]any{"iat": now.Add(-time.Hour).Unix(), "exp": now.Add(-time.Second).Unix()}},
		"that lives for too long":                 {set[0], map[string]any{"exp": now.Add(2 * time.Hour).Unix()}},
		"for another member":                      {set[0], map[string]any{"aud": []string{audience + "-2"}}},
		"for the hub":                             {set[0], map[string]any{"aud": []string{"kubectl"}}},
		"for the hub as well":                     {set[0], map[string]any{"aud": []string{audience, "kubectl"}}},
		"of another issuer":                       {set[0], map[string]any{"iss": "https://other.example.com"}},
		"of system:admin":                         {set[0], map[string]any{"sub": "system:admin"}},
		"of a user of the hub":                    {set[0], map[string]any{"sub": "hub:admin"}},
		"of a user without a provider":            {set[0], map[string]any{"sub": "kubernetes-admin"}},
		"with a group of the system":              {set[0], map[string]any{"groups": []string{"github:acme", "system:masters"}}},
		"with a group of another provider":        {set[0], map[string]any{"groups": []string{"local:admins"}}},
		"with a group without a provider":         {set[0], map[string]any{"groups": []string{"admins"}}},
		"without a UID":                           {set[0], map[string]any{"uid": nil}},
		"without a session":                       {set[0], map[string]any{"sid": nil}},
		"without a time":                          {set[0], map[string]any{"iat": nil}},
	} {
		t.Run("one "+name+" is refused", func(t *testing.T) {
			user, err := w.whoami(t, signed(t, tt.key, claims(tt.change)))
			if err == nil || !strings.Contains(err.Error(), "logged in") && !strings.Contains(err.Error(), "Unauthorized") {
				t.Errorf("the user is %v (%v)", user, err)
			}
		})
	}
}

// whoami sends a request with a token to the member's API server and returns the user.
func (w *way) whoami(t *testing.T, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := framework.WriteKubeconfig(file, w.member.URL(), w.member.CA(), token); err != nil {
		t.Fatal(err)
	}
	out, err := framework.Kubectl(within(t, 30*time.Second), w.programs, file, nil, "auth", "whoami", "-o", "json")
	return reviewed(t, out, err)
}
