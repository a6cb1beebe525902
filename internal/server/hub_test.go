// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is a hub's port, set up as in the manager's main, with a real API server and without controllers.
type world struct {
	*testkit.Env
	t         *testing.T
	server    *Server
	manager   ctrl.Manager
	ca        trust.KeyPair
	address   chan string       // receives the address once the hub serves
	base      string            // the address, then the path
	operators map[string]string // addresses of the ports for probes and metrics, by name; guarded by mu
	namespace string

	mu      sync.Mutex // guards the fields below
	logged  bytes.Buffer
	secrets []string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	env := testkit.Shared(t)
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return newReplica(t, env, env.Workspace(t), ca, "drain: {delay: 0s}")
}

// newReplica returns one of several hub ports that share an API server. more is additional configuration.
func newReplica(t *testing.T, env *testkit.Env, namespace string, ca trust.KeyPair, more string) *world {
	t.Helper()
	w := &world{Env: env, t: t, address: make(chan string, 1), namespace: namespace, ca: ca,
		operators: map[string]string{}}
	if !strings.Contains(more, "server:") {
		more += `, server: {listen: "127.0.0.1:0", urls: ["https://127.0.0.1"]}`
	}
	cfg, err := config.Parse(fmt.Appendf(nil, "{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, "+
		"health: {listen: \"127.0.0.1:0\"}, metrics: {listen: \"127.0.0.1:0\"}, leaderElection: {enabled: false}, %s}",
		w.namespace, more))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	options.Logger = funcr.NewJSON(w.log, funcr.Options{Verbosity: 10})
	if w.manager, err = ctrl.NewManager(w.Config, options); err != nil {
		t.Fatal(err)
	}
	holder, err := trust.New(cfg.Server.URLs, []string{"localhost"}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if w.server, err = New(t.Context(), w.manager, cfg, holder, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	return w
}

// log stores log lines and looks for the address in them.
func (w *world) log(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.logged.WriteString(line + "\n")
	var said struct{ Msg, Address, Port string }
	if json.Unmarshal([]byte(line), &said) != nil {
		return
	}
	switch said.Msg {
	case "serving":
		w.address <- said.Address
	case "serving operators":
		w.operators[said.Port] = said.Address
	}
}

// secret makes the test fail if the token appears in a log.
func (w *world) secret(token string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets = append(w.secrets, token)
	return token
}

// start starts the hub and returns once it is ready. stop stops the hub and returns the error from Start.
func (w *world) start() (stop func() error) {
	w.t.Helper()
	stop = w.listen()
	w.awaitReady(w.t)
	return stop
}

// listen is like start, but returns as soon as the hub accepts connections.
func (w *world) listen() (stop func() error) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, w.manager, w.server.Start) }()
	w.t.Cleanup(cancel)
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, trust.State{Identity: trust.Identity("test"), Active: w.ca})
	if err := w.server.Trust.LoadAuthority(secret); err != nil {
		w.t.Fatal(err)
	}
	select {
	case address := <-w.address:
		w.base = address
	case err := <-ended:
		w.t.Fatalf("the hub ended: %v", err)
	}
	return func() error {
		cancel()
		return <-ended
	}
}

// roots returns a pool with the hub's CA.
func (w *world) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(w.ca.Cert)
	return pool
}

// client returns a client that uses HTTP/2 if h2 is set, and otherwise HTTP/1.1. It does not follow redirects.
func (w *world) client(h2 bool) *http.Client {
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots()},
		ForceAttemptHTTP2: h2}
	if !h2 {
		transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
	}
	w.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// response is a response of the hub.
type response struct {
	code   int
	body   string
	header http.Header
	proto  string
}

func (w *world) send(c *http.Client, method, path, bearer string) response {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, "https://"+w.base+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	resp, err := c.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response{resp.StatusCode, string(raw), resp.Header, resp.Proto}
}

// raw sends a request line unchanged. The client of net/http would clean it up first.
func (w *world) raw(line string, headers ...string) response {
	w.t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots(),
		NextProtos: []string{"http/1.1"}}}
	conn, err := dialer.DialContext(w.t.Context(), "tcp", w.base)
	if err != nil {
		w.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: hub\r\nConnection: close\r\n"+strings.Join(headers,
		"")+"\r\n"); err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return response{resp.StatusCode, string(body), resp.Header, resp.Proto}
}

// roleOf returns the name of a user's ClusterRole and ClusterRoleBinding. These objects are cluster-scoped, and other
// tests and repeated runs use the same API server.
func (w *world) roleOf(user string) string { return w.namespace + "-" + user }

// user returns the token of a new ServiceAccount that has the given rights on the whole hub.
func (w *world) user(name string, rules ...rbacv1.PolicyRule) string {
	w.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Apply(w.t, account)
	if len(rules) > 0 {
		role := w.roleOf(name)
		w.Apply(w.t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: role}, Rules: rules})
		w.Apply(w.t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: w.namespace, Name: name}}})
		w.AwaitRights(w.t, "system:serviceaccount:"+w.namespace+":"+name, "", rules...)
	}
	request := &authenticationv1.TokenRequest{}
	if err := w.Client.SubResource("token").Create(w.t.Context(), account, request); err != nil {
		w.t.Fatal(err)
	}
	return w.secret(request.Status.Token)
}

// cluster creates a Cluster with a join token.
func (w *world) cluster(name string) string {
	w.t.Helper()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}}
	w.Apply(w.t, cluster)
	token := registration.Token{Value: w.secret(registration.NewToken()), Created: time.Now()}
	if err := w.Client.Apply(w.t.Context(),
		registration.ApplySecret(cluster, token, registration.Content{Manifest: []byte("manifest")}),
		client.FieldOwner("drover")); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, 10*time.Second, func(context.Context) error {
		if got := w.send(w.client(true), http.MethodGet, protocol.PathImport+token.Value+".yaml",
			""); got.code != http.StatusOK {
			return fmt.Errorf("the token is not known yet: %d", got.code)
		}
		return nil
	})
	return token.Value
}

// register joins with a token as the member with the given UID. Like an agent, it retries while the hub is not ready.
func (w *world) register(token string, key ed25519.PrivateKey, uid string) (protocol.RegisterResponse, int) {
	w.t.Helper()
	body, err := json.Marshal(protocol.RegisterRequest{PublicKey: key.Public().(ed25519.PublicKey), ClusterUID: uid,
		Proof: ed25519.Sign(key, protocol.ProofPayload(token, uid))})
	if err != nil {
		w.t.Fatal(err)
	}
	var response protocol.RegisterResponse
	var code int
	testkit.Eventually(w.t, 10*time.Second, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+w.base+protocol.PathRegister,
			bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := w.client(true).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		code = resp.StatusCode
		raw, err := io.ReadAll(resp.Body)
		if err == nil && code == http.StatusServiceUnavailable {
			err = errors.New("the hub is not ready")
		}
		if err == nil {
			err = json.Unmarshal(raw, &response)
		}
		if err != nil {
			err = fmt.Errorf("register: %d %s: %w", code, raw, err)
		}
		return err
	})
	return response, code
}

// connectToken returns a token for one connect.
func (w *world) connectToken(key ed25519.PrivateKey, joined protocol.RegisterResponse) string {
	w.t.Helper()
	token, err := protocol.SignConnectToken(key, protocol.ConnectClaims{ID: rand.Text(), Audience: joined.Audience,
		Cluster:    joined.Cluster,
		ClusterUID: "member-uid", IssuedAt: time.Now()})
	if err != nil {
		w.t.Fatal(err)
	}
	return w.secret(token)
}

// agent connects as an agent does, over a real WebSocket. It returns the agent's end of the tunnel, and a channel that
// is closed when the tunnel ends.
func (w *world) agent(key ed25519.PrivateKey, joined protocol.RegisterResponse) (ended <-chan error) {
	w.t.Helper()
	dialer := tunnel.Dialer{TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots()}}
	conn, err := dialer.Dial(w.t.Context(), "wss://"+w.base+protocol.PathConnect,
		http.Header{"Authorization": {"Bearer " + w.connectToken(key, joined)}})
	if err != nil {
		w.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		served <- conn.Serve(context.Background(), http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path != protocol.PathReport {
				fmt.Fprint(rw, "the member's answer to ", r.URL.Path)
				return
			}
			_ = json.NewEncoder(rw).Encode(testkit.HealthyReport())
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}))
	}()
	w.t.Cleanup(func() { _ = conn.Close() })
	name := types.NamespacedName{Namespace: joined.Cluster.Namespace, Name: joined.Cluster.Name}
	testkit.Eventually(w.t, 10*time.Second, func(context.Context) error {
		if w.server.Members.State(name).Report == nil {
			return errors.New("not connected yet")
		}
		return nil
	})
	return served
}

func TestPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("without a CA, the hub is alive but not ready", func(t *testing.T) {
		handler := w.server.handler(t.Context(), t.Context())
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusServiceUnavailable} {
			recorder := httptest.NewRecorder()
			handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			if recorder.Code != want {
				t.Errorf("%s: %d, want %d", path, recorder.Code, want)
			}
		}
	})
	stop := w.listen()
	for _, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"the hub is ready once its caches have synced", testReady},
		{"the CA bundle is served to everybody", testCACerts},
		{"paths and methods that are not served are refused", testUnknownPaths},
		{"tricky paths reach the proxy unchanged, and no mux redirects them", testPathTricks},
		{"users get HTTP/2, or HTTP/1.1 if they ask for it", testALPN},
		{"TLS below 1.3 is refused: CVE-2024-23656, GHSA-7xg2-83f8-39mr", testOldTLS},
		{"a header that is too large is refused", testLargeHeader},
		{"metrics need a right", testMetrics},
		{"an agent joins and connects, and users with the right reach it", testAgent},
		{"a token that is made for one member is worthless at another", testAudiences},
		{"a browser that was led to open a tunnel is refused", testBrowser},
		{"nested bodies exhaust nothing: CVE-2025-23388, CVE-2019-11253", testCVE2025_23388},
		{"the token of a deleted account is refused: CVE-2023-22650", testCVE2023_22650},
		{"an event reports a second cluster that was refused", testRefusalEvent},
		{"a move loses no request, and ends watches between two events and shells in time", testMove},
	} {
		t.Run(test.name, func(t *testing.T) {
			w.t = t
			test.run(t, w)
		})
	}
	w.t = t
	t.Run("stopping ends tunnels, closes the port and returns", func(t *testing.T) {
		w.t = t
		testStop(t, w, stop)
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, secret := range w.secrets {
		if strings.Contains(w.logged.String(), secret) {
			t.Error("the log contains a token, want none")
		}
	}
}

func testReady(t *testing.T, w *world) {
	w.awaitReady(t)
	stopping, cancel := context.WithCancel(t.Context())
	cancel()
	if w.server.readiness(stopping) == nil {
		t.Error("the hub is ready while it is stopping, want it not ready")
	}
}

func testCACerts(t *testing.T, w *world) {
	if got := w.send(w.client(true), http.MethodGet, protocol.PathCACerts, ""); got.code != http.StatusOK ||
		got.body != string(w.ca.Cert) {
		t.Errorf("response %d %s, want 200 with the CA", got.code, got.body)
	}
}

func testUnknownPaths(t *testing.T, w *world) {
	for line, want := range map[string]int{
		"GET /":                    http.StatusFound, // to the page
		"POST /":                   http.StatusMethodNotAllowed,
		"GET /ui/x":                http.StatusNotFound,
		"GET /v1":                  http.StatusNotFound,
		"GET /v1/import/":          http.StatusNotFound,
		"GET /k8s":                 http.StatusNotFound,
		"GET /k8s/other":           http.StatusNotFound,
		"GET /debug/pprof/":        http.StatusNotFound,
		"POST /v1/connect":         http.StatusMethodNotAllowed,
		"GET /v1/register":         http.StatusMethodNotAllowed,
		"POST /v1/cacerts":         http.StatusMethodNotAllowed,
		"GET /v1/connect":          http.StatusUnauthorized,
		"GET /metrics":             http.StatusNotFound, // they have a port of their own
		"POST /v1/register":        http.StatusUnauthorized,
		"GET /v1/../healthz":       http.StatusTemporaryRedirect, // to /healthz, which is for everybody
		"GET https://evil/healthz": http.StatusOK,
	} {
		if got := w.raw(line); got.code != want {
			t.Errorf("%s: %d, want %d", line, got.code, want)
		}
	}
}

func testPathTricks(t *testing.T, w *world) {
	for _, target := range []string{
		"/k8s/clusters/a/b/../../../healthz",
		"/k8s/clusters/a/b/%2e%2e/%2e%2e/v1/cacerts",
		"/k8s/clusters/a/b//api",
		"/k8s/clusters//b/api",
		"/k8s/clusters/a%2fb/c/api",
		"/k8s%2fclusters/a/b/api",
		"/k8s/clusters/a/b/./api/",
		"/k8s/local/../clusters/a/b",
		"/k8s/local",
		"/k8s/local//api",
		"https://evil.example.com/k8s/clusters/a/b/../api",
	} {
		got := w.raw("GET " + target)
		var status metav1.Status
		if err := json.Unmarshal([]byte(got.body), &status); err != nil || status.Kind != "Status" || got.code/100 != 4 ||
			int(status.Code) != got.code {
			t.Errorf("%s: %d %s, want a Status with a code of 4xx", target, got.code, got.body)
		}
		if got.header.Get("Location") != "" {
			t.Errorf("%s is redirected to %s, want no redirect", target, got.header.Get("Location"))
		}
	}
	if got := w.raw("GET //k8s/clusters/a/b/api"); got.code/100 == 2 {
		t.Errorf("two slashes: %d, want it refused", got.code)
	}
}

func testALPN(t *testing.T, w *world) {
	for h2, want := range map[bool]string{true: "HTTP/2.0", false: "HTTP/1.1"} {
		if got := w.send(w.client(h2), http.MethodGet, "/healthz", ""); got.proto != want {
			t.Errorf("requested HTTP/2 %t, got %s", h2, got.proto)
		}
	}
}

func testOldTLS(t *testing.T, w *world) {
	dialer := &tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12,
		RootCAs: w.roots()}}
	conn, err := dialer.DialContext(t.Context(), "tcp", w.base)
	if err == nil {
		_ = conn.Close()
		t.Error("TLS 1.2 was accepted, want it refused")
	}
	other, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(other.Cert)
	_, err = (&tunnel.Dialer{TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}}).Dial(t.Context(),
		"wss://"+w.base+protocol.PathConnect, http.Header{})
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("an agent that pins another CA got %v, want a certificate error", err)
	}
}

func testLargeHeader(t *testing.T, w *world) {
	for size, want := range map[int]int{32 << 10: http.StatusOK, 90 << 10: http.StatusRequestHeaderFieldsTooLarge,
		128 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		filler := strings.Repeat("x", size)
		if got := w.raw("GET /healthz", "X-Filler: "+filler+"\r\n"); got.code != want {
			t.Errorf("%d bytes: %d, want %d", size, got.code, want)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.base+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Filler", filler)
		resp, err := w.client(true).Do(req)
		if err != nil {
			t.Errorf("%d bytes by HTTP/2: %v", size, err)
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want || resp.ProtoMajor != 2 {
			t.Errorf("%d bytes by %s: %d, want %d over HTTP/2", size, resp.Proto, resp.StatusCode, want)
		}
	}
	if got := w.raw("GET /healthz",
		"X-Filler: "+strings.Repeat("x", 512<<10)+"\r\n"); got.code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("512 KiB: %d, want 431", got.code)
	}
}

func testMetrics(t *testing.T, w *world) {
	c := w.client(true)
	scrape := w.at(t, "metrics")
	stranger := w.user("stranger")
	reader := w.user("metrics-reader", rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	for token, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized,
		stranger: http.StatusForbidden, reader: http.StatusOK} {
		if got := scrape.send(c, http.MethodGet, "/metrics", token); got.code != want ||
			(want == http.StatusOK) != strings.Contains(got.body, "go_goroutines") {
			t.Errorf("%d, want %d", got.code, want)
		}
	}
	for line, want := range map[string]int{"DELETE /metrics": http.StatusMethodNotAllowed,
		"GET /healthz": http.StatusNotFound, "GET /k8s/local/version": http.StatusNotFound} {
		if got := scrape.raw(line); got.code != want {
			t.Errorf("%s: %d, want %d", line, got.code, want)
		}
	}
}

func testAgent(t *testing.T, w *world) {
	const path = "/api/v1/namespaces"
	key, c := testkit.Key(t), w.client(true)
	joinToken := w.cluster("member")
	user := w.user("proxy-user", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
		Verbs: []string{"get"}})
	at := func(cluster string) string { return "/k8s/clusters/" + w.namespace + "/" + cluster + path }

	if got := w.send(c, http.MethodGet, at("absent"), user); got.code != http.StatusNotFound ||
		!strings.Contains(got.body, `"Status"`) {
		t.Errorf("an unknown cluster got %d %s, want 404", got.code, got.body)
	}
	seen := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "member"}}
	lastSeen, err := json.Marshal(map[string]any{"status": map[string]any{"lastSeen": seen}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Client.Status().Patch(t.Context(), cluster, client.RawPatch(types.MergePatchType, lastSeen)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error { // the cache needs a moment
		got := w.send(c, http.MethodGet, at("member"), user)
		if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" ||
			!strings.Contains(got.body, "2026-01-02T03:04:05Z") {
			return fmt.Errorf("not connected: %d %s", got.code, got.body)
		}
		return nil
	})
	joined, code := w.register(joinToken, key, "member-uid")
	if code != http.StatusOK {
		t.Fatalf("join: %d, want 200", code)
	}
	w.agent(key, joined)
	if got := w.send(c, http.MethodGet, at("member"), user); got.code != http.StatusOK ||
		got.body != "the member's answer to "+protocol.PathKubernetes+path {
		t.Errorf("connected: %d %s, want the member's answer", got.code, got.body)
	}
	if got := w.send(c, http.MethodGet, at("member"), w.user("outsider")); got.code != http.StatusForbidden {
		t.Errorf("a user without the right got %d, want 403", got.code)
	}
	// A request that is not a WebSocket, for example over HTTP/2, never becomes a tunnel, whatever headers it has.
	if got := w.send(c, http.MethodGet, protocol.PathConnect, w.connectToken(key, joined)); got.code/100 != 4 {
		t.Errorf("a connect over HTTP/2 got %d, want 4xx", got.code)
	}
}

// CVE-2019-13209.
func testBrowser(t *testing.T, w *world) {
	key := testkit.Key(t)
	joined, _ := w.register(w.cluster("browsed"), key, "member-uid")
	got := w.raw("GET "+protocol.PathConnect, "Authorization: Bearer "+w.connectToken(key, joined)+"\r\n",
		"Origin: https://evil.example.com\r\n",
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
			"AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: "+tunnel.Subprotocol+"\r\n")
	if got.code != http.StatusForbidden {
		t.Errorf("answer %d %s, want 403", got.code, got.body)
	}
}

func testRefusalEvent(t *testing.T, w *world) {
	token := w.cluster("contested")
	if _, code := w.register(token, testkit.Key(t), "member-uid"); code != http.StatusOK {
		t.Fatalf("join: %d, want 200", code)
	}
	if _, code := w.register(token, testkit.Key(t), "intruder-uid"); code != http.StatusForbidden {
		t.Fatalf("the intruder got %d, want 403", code)
	}
	if got := w.server.Members.State(types.NamespacedName{Namespace: w.namespace,
		Name: "contested"}).Refusal; got == nil || got.Reason != v1.ReasonIdentityMismatch {
		t.Errorf("the fleet reports %+v, want the refusal", got)
	}
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		var events eventsv1.EventList
		if err := w.Client.List(ctx, &events, client.InNamespace(w.namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if strings.Contains(e.String(), token) {
				t.Error("an event contains the token, want none")
			}
			if e.Regarding.Name == "contested" && e.Reason == v1.ReasonIdentityMismatch &&
				strings.Contains(e.Note, "intruder-uid") {
				return nil
			}
		}
		return fmt.Errorf("no event among %d", len(events.Items))
	})
}

func testStop(t *testing.T, w *world, stop func() error) {
	key := testkit.Key(t)
	joined, _ := w.register(w.cluster("last"), key, "member-uid")
	ended := w.agent(key, joined)
	watch := testkit.StartStopwatch()
	if err := stop(); err != nil {
		t.Errorf("stopped with %v, want no error", err)
	}
	took := watch.Took()
	select {
	case err := <-ended:
		if !errors.Is(err, tunnel.ErrPeerClosed) {
			t.Errorf("the agent's tunnel ended with %v, want no error", err)
		}
	case <-time.After(testkit.Patience * 10 * time.Second):
		t.Fatal("the agent's tunnel did not end, want it ended")
	}
	if took > lastWords+time.Second {
		t.Errorf("stopping took %s although no request was in progress", took)
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13,
		RootCAs: w.roots()}}).DialContext(t.Context(), "tcp", w.base)
	if err == nil {
		_ = conn.Close()
		t.Error("the port is still open, want it closed")
	}
	if members, tunnels := w.server.Members.Size(); members+tunnels != 0 {
		t.Errorf("%d members, %d tunnels, want none", members, tunnels)
	}
}
