// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/gorilla/websocket"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// way is a path through which a user reaches an API server.
type way struct{ name, url, token string }

// trusting is for servers whose certificates these tests ignore.
var trusting = &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}

// send sends a request and returns the response with its body.
func (y way) send(t *testing.T, method, path string, header http.Header, body string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, y.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header.Clone()
	request.Header.Set("Authorization", "Bearer "+y.token)
	request.URL.Opaque = "" // send the path unchanged
	transport := &http.Transport{TLSClientConfig: trusting.Clone(), DisableCompression: true, DisableKeepAlives: true}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", y.name, method, path, err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", y.name, method, path, err)
	}
	return response, string(raw)
}

// open requests a WebSocket. It returns the server's response even if that is a refusal.
func (y way) open(
	t *testing.T, path string, header http.Header, protocols ...string,
) (*websocket.Conn, *http.Response) {
	t.Helper()
	dialer := websocket.Dialer{
		TLSClientConfig: trusting.Clone(), HandshakeTimeout: time.Minute, Subprotocols: protocols,
	}
	conn, response, err := dialer.DialContext(t.Context(), "wss"+strings.TrimPrefix(y.url, "https")+path, header)
	if response == nil {
		t.Fatalf("%s: %s: %v", y.name, path, err)
	}
	if conn != nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, response
}

// reached is an API server that is its own member, with each way to it. Two replicas of the hub serve it, and its agent
// is connected to the first replica.
type reached struct {
	*pair
	directly, byHub, byReplica, local, byAgent way
	agent                                      http.Handler // serves protocol.PathKubernetes
}

func (r *reached) all() []way { return []way{r.byHub, r.byReplica, r.local, r.byAgent} }

// reach connects the shared API server, and grants the user of each way rights on the objects in its namespace.
func reach(t *testing.T, rules ...rbacv1.PolicyRule) *reached {
	t.Helper()
	r := &reached{pair: newPair(t)}
	config := rest.CopyConfig(r.first.Config)
	transport, err := forward.Transport(config)
	if err != nil {
		t.Fatal(err)
	}
	base, err := forward.BaseURL(config)
	if err != nil {
		t.Fatal(err)
	}
	r.agent = forward.New(t.Context(), base, transport, logr.Discard())
	key, name := testkit.Key(t), types.NamespacedName{Namespace: r.first.namespace, Name: "member"}
	joined, code := r.first.register(r.first.cluster(name.Name), key, "member-uid")
	if code != http.StatusOK {
		t.Fatalf("join: %d, want 200", code)
	}
	dialer := tunnel.Dialer{TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: r.first.roots()}}
	bearer := http.Header{"Authorization": {"Bearer " + r.first.connectToken(key, joined)}}
	conn, err := dialer.Dial(t.Context(), "wss://"+r.first.base+protocol.PathConnect, bearer)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = conn.Serve(context.Background(), reporting(r.agent)) }()
	t.Cleanup(func() { _ = conn.Close() })
	for _, w := range []*world{r.first, r.second} {
		testkit.Eventually(t, 20*time.Second, func(context.Context) error {
			if !w.server.Members.State(name).Connected() {
				return errors.New("the member is not connected yet")
			}
			return nil
		})
	}
	reaching := rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
		Verbs: []string{"get"}}
	token := r.first.user("ways", reaching)
	prefix := "/k8s/clusters/" + name.String()
	r.directly = way{"directly", strings.TrimSuffix(base.String(), "/"), token}
	r.byHub = way{"by the hub", "https://" + r.first.base + prefix, token}
	r.byReplica = way{"by another replica", "https://" + r.second.base + prefix, token}
	r.local = way{"by /k8s/local", "https://" + r.first.base + "/k8s/local", token}
	r.byAgent.name = "by direct access"
	r.byAgent.url, r.byAgent.token = benchDirect(t, r.agent)
	r.grant(t, "ways", r.first.namespace, rules...)
	return r
}

// hubUser returns the name that the hub's API server gives the user of the ways.
func (r *reached) hubUser() string { return "system:serviceaccount:" + r.first.namespace + ":ways" }

// grant grants rights in a namespace to the user of each way.
func (r *reached) grant(t *testing.T, role, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	if len(rules) == 0 {
		return
	}
	r.first.Apply(t, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role}, Rules: rules})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role},
	}
	users := []string{r.hubUser(), "hub:" + r.hubUser(), "local:alice"}
	for _, user := range users {
		subject := rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}
		binding.Subjects = append(binding.Subjects, subject)
	}
	r.first.Apply(t, binding)
	for _, user := range users {
		r.first.AwaitRights(t, user, namespace, rules...)
	}
}

// reporting serves the agent's endpoints: its report, and requests for the API server.
func reporting(kubernetes http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, protocol.PathKubernetes) {
			kubernetes.ServeHTTP(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(testkit.HealthyReport())
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
}

// objects grants the rights to read and write ConfigMaps.
var objects = rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"*"}}

func TestWatchOverWebSocketIsServedOnEveryWay(t *testing.T) {
	t.Parallel()
	r := reach(t, objects)
	r.first.Apply(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.first.namespace, Name: "watched"}})
	path := "/api/v1/namespaces/" + r.first.namespace + "/configmaps"
	// fabric8 sends the server as Origin. kubectl proxy forwards the Origin of a page. Other clients send none, and an API
	// server refuses them.
	origins := map[string]func(way) string{
		"of the server": func(y way) string {
			scheme, rest, _ := strings.Cut(y.url, "://")
			host, _, _ := strings.Cut(rest, "/")
			return scheme + "://" + host
		},
		"of another page": func(way) string { return "http://localhost:8001" },
	}
	watches := map[string]string{
		"a watch": "?watch=1",
		"a watch that begins with a list": "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true" +
			"&resourceVersionMatch=NotOlderThan",
	}
	for _, y := range append(r.all(), r.directly) {
		for name, origin := range origins {
			for what, query := range watches {
				t.Run(fmt.Sprintf("%s, %s, with the Origin %s", y.name, what, name), func(t *testing.T) {
					header := http.Header{"Authorization": {"Bearer " + y.token}, "Origin": {origin(y)}}
					conn, response := y.open(t, path+query, header)
					if conn == nil {
						t.Fatalf("got %s, want 101", response.Status)
					}
					_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
					_, text, err := conn.ReadMessage()
					var event struct{ Type string }
					if err = errors.Join(err, json.Unmarshal(text, &event)); err != nil || event.Type != "ADDED" {
						t.Errorf("the first event is %q (%v), want a ConfigMap that was ADDED", text, err)
					}
				})
			}
		}
	}
	t.Run("a page that has the token sends it as a subprotocol", func(t *testing.T) {
		for _, y := range []way{r.byHub, r.byReplica, r.local, r.directly} {
			token := "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(y.token))
			page, chosen := http.Header{"Origin": {"https://console.example"}}, "base64.binary.k8s.io"
			conn, response := y.open(t, path+"?watch=1", page, token, chosen)
			if conn == nil || conn.Subprotocol() != chosen {
				t.Errorf("%s: got %s with the subprotocol %q, want 101 with %s",
					y.name, response.Status, response.Header.Get("Sec-WebSocket-Protocol"), chosen)
			}
		}
	})
	t.Run("CVE-2019-13209: a page of another host cannot open a WebSocket without the token", func(t *testing.T) {
		for _, y := range []way{r.byHub, r.byReplica, r.local} {
			header := http.Header{"Origin": {"https://evil.example"}, "Cookie": {"token=" + y.token}}
			if _, response := y.open(t, path+"?watch=1", header); response.StatusCode != http.StatusForbidden {
				t.Errorf("%s: got %s, want 403", y.name, response.Status)
			}
		}
	})
	t.Run("a list that requests a WebSocket gets the same response as from the API server", func(t *testing.T) {
		list := func(y way) string {
			_, response := y.open(t, path, http.Header{"Authorization": {"Bearer " + y.token}, "Origin": {y.url}})
			return response.Status + " " + response.Header.Get("Content-Type")
		}
		want := list(r.directly)
		for _, y := range r.all() {
			if got := list(y); got != want {
				t.Errorf("%s: got %s, want %s", y.name, got, want)
			}
		}
	})
}

// TestKubernetesJavaScriptClientIsServedOnEveryWay needs the client, which "npm ci" in test/kubernetesclient installs.
func TestKubernetesJavaScriptClientIsServedOnEveryWay(t *testing.T) {
	t.Parallel()
	dir := testkit.Path(t, "test/kubernetesclient")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("Node.js is not installed, which Kubernetes' JavaScript client needs")
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@kubernetes", "client-node")); err != nil {
		t.Skip("@kubernetes/client-node is not installed: run npm ci in test/kubernetesclient")
	}
	r := reach(t, objects)
	for _, y := range slices.Insert(r.all(), 0, r.directly) {
		t.Run(y.name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), node, "client.mjs")
			command.Dir = dir
			command.Env = append(os.Environ(), "SERVER="+y.url, "TOKEN="+y.token,
				"NAMESPACE="+r.first.namespace, "ORIGIN=https://console.example")
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("the client ended with %v, want it to list and watch\n%s", err, out)
			}
		})
	}
}

// jsonAs returns the header of a JSON request that impersonates a user.
func jsonAs(user string) http.Header {
	return http.Header{
		"Content-Type": {"application/json"}, "Accept": {"application/json"}, "Impersonate-User": {user},
	}
}

// whoIs asks an API server who the caller is, while the caller impersonates a user.
func (y way) whoIs(t *testing.T, as string) (int, authenticationv1.UserInfo, string) {
	t.Helper()
	header := jsonAs(as)
	response, body := y.send(t, http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", header,
		`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	var review authenticationv1.SelfSubjectReview
	if response.StatusCode == http.StatusCreated && json.Unmarshal([]byte(body), &review) != nil {
		t.Errorf("%s: got %s, want a review", y.name, body)
	}
	return response.StatusCode, review.Status.UserInfo, body
}

// actsWithTheRightsOf creates a ConfigMap as an account, as Argo CD does, and watches over a WebSocket as the account.
// The user of the way has neither right.
func (y way) actsWithTheRightsOf(t *testing.T, namespace, account string) {
	t.Helper()
	path := "/api/v1/namespaces/" + namespace + "/configmaps"
	as := jsonAs("system:serviceaccount:" + namespace + ":" + account)
	object := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"site-"}}`
	response, body := y.send(t, http.MethodPost, path, http.Header{"Content-Type": {"application/json"}}, object)
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("without the account: got %s: %s, want 403", response.Status, body)
	}
	if response, body = y.send(t, http.MethodPost, path, as, object); response.StatusCode != http.StatusCreated {
		t.Errorf("as the account: got %s: %s, want 201", response.Status, body)
	}
	as.Set("Authorization", "Bearer "+y.token)
	if conn, response := y.open(t, path+"?watch=1", as); conn == nil {
		t.Errorf("a watch over a WebSocket as the account: got %s, want 101", response.Status)
	}
}

func TestMemberServiceAccountIsImpersonatedOnEveryWay(t *testing.T) {
	t.Parallel()
	impersonate := func(name string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{"serviceaccounts"}, ResourceNames: []string{name},
			Verbs: []string{"impersonate"},
		}
	}
	r := reach(t, impersonate("deployer"))
	namespace := r.first.namespace
	deployer := metav1.ObjectMeta{Namespace: namespace, Name: "deployer"}
	r.first.Apply(t, &rbacv1.Role{ObjectMeta: deployer, Rules: []rbacv1.PolicyRule{objects}})
	r.first.Apply(t, &rbacv1.RoleBinding{
		ObjectMeta: deployer, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "deployer"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: namespace, Name: "deployer"}},
	})
	r.first.AwaitRights(t, "system:serviceaccount:"+namespace+":deployer", namespace, objects)
	r.first.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}})
	r.grant(t, namespace, protocol.AgentNamespace, impersonate(protocol.AgentName)) // an administrator's mistake
	ways := []way{r.byHub, r.byReplica, r.byAgent}
	for _, y := range ways {
		t.Run(y.name, func(t *testing.T) {
			account := "system:serviceaccount:" + namespace + ":deployer"
			code, user, body := y.whoIs(t, account)
			groups := []string{"system:authenticated", "system:serviceaccounts", "system:serviceaccounts:" + namespace}
			slices.Sort(user.Groups)
			if code != http.StatusCreated || user.Username != account || !slices.Equal(user.Groups, groups) {
				t.Errorf("got %d as %q in %v: %s, want the account in %v",
					code, user.Username, user.Groups, body, groups)
			}
			callers := []string{"hub:" + r.hubUser(), "local:alice"}
			by := user.Extra["cluster.drover.dev/impersonator"]
			if len(by) != 1 || !slices.Contains(callers, by[0]) {
				t.Errorf("the member's audit log names %v as the impersonating user, want the caller", by)
			}
			y.actsWithTheRightsOf(t, namespace, "deployer")
			for name, as := range map[string]string{
				"another account of the namespace":                    "system:serviceaccount:" + namespace + ":other",
				"the account with the same name in another namespace": "system:serviceaccount:default:deployer",
				"the agent's own account, although it was granted": "system:serviceaccount:" + protocol.AgentNamespace + ":" +
					protocol.AgentName,
				"a system user":                      "system:admin",
				"a system controller":                "system:kube-controller-manager",
				"a name that resembles an account":   "system:serviceaccount:" + namespace,
				"a user who may not be impersonated": "bob",
			} {
				if code, user, body := y.whoIs(t, as); code != http.StatusForbidden {
					t.Errorf("as %s: got %d as %q: %s, want 403", name, code, user.Username, body)
				}
			}
		})
	}
	t.Run("after the right was revoked", func(t *testing.T) {
		binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ways"}}
		if err := r.first.Client.Delete(t.Context(), binding); err != nil {
			t.Fatal(err)
		}
		for _, y := range ways {
			testkit.Eventually(t, 20*time.Second, func(context.Context) error { // the API server notices it a moment later
				code, _, body := y.whoIs(t, "system:serviceaccount:"+namespace+":deployer")
				if code != http.StatusForbidden {
					return fmt.Errorf("%s: got %d: %s, want 403", y.name, code, body)
				}
				return nil
			})
		}
	})
}
