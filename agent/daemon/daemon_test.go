// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/daemon"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/agenttest"
	"github.com/drover-dev/drover/test/lab"
)

const (
	joinToken    = "join-token-that-must-never-be-logged-0123"
	secretsPath  = "/api/v1/namespaces/drover-agent/secrets/"
	registration = secretsPath + protocol.RegistrationSecret
	identity     = secretsPath + protocol.IdentitySecret
)

// world is a hub, a member, and an agent between them.
type world struct {
	hub    *agenttest.Hub
	ca     *agenttest.Authority
	api    *agenttest.APIServer
	socket string
	probes string
	log    *lines
	stop   context.CancelFunc
	ended  chan struct{} // closed when the agent has ended; err is set then
	err    error
}

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) logger() logr.Logger {
	return funcr.New(func(prefix, args string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		fmt.Fprintln(&l.text, prefix, args)
	}, funcr.Options{Verbosity: 4})
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca := agenttest.NewAuthority(t, "hub CA")
	w := &world{hub: agenttest.NewHub(t, ca), ca: ca, api: agenttest.NewAPIServer(t), log: &lines{}}
	w.api.Put(t, "/api/v1/namespaces/drover-agent", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "drover-agent"}})
	w.api.Put(t, registration, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: protocol.RegistrationSecret, Namespace: "drover-agent"},
		Data:       map[string][]byte{protocol.KeyToken: []byte(joinToken), protocol.KeyCABundle: []byte(ca.Bundle())},
	})
	w.api.Put(t, "/api/v1/nodes/n1", node("n1"))
	return w
}

func node(name string) *corev1.Node {
	have := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"),
		corev1.ResourceMemory: resource.MustParse("8Gi")}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{
			Capacity: have, Allocatable: have,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// start runs an agent until the test ends or w.stop is called.
func (w *world) start(t *testing.T) {
	t.Helper()
	w.run(t, daemon.Run)
}

// run runs an agent or a node agent in the same way as start. The functions change its settings.
func (w *world) run(
	t *testing.T, work func(context.Context, daemon.Options) error, change ...func(*daemon.Environ),
) {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf(`{"clusters":[{"name":"c","cluster":{"server":%q}}],`+
		`"users":[{"name":"u","user":{"token":"agents-own"}}],`+
		`"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, w.api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	w.socket, w.probes = filepath.Join(dir, "agent.sock"), freeAddress(t)
	environ := daemon.Environ{
		Servers: []string{w.hub.URL}, Checksums: []string{w.ca.Checksum()}, Trust: v1.TrustPinned,
		Namespace: "drover-agent", Listen: w.probes, Socket: w.socket,
	}
	for _, one := range change {
		one(&environ)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	w.stop, w.ended = cancel, ended
	go func() {
		defer close(ended)
		w.err = work(ctx, daemon.Options{
			Kubeconfig: kubeconfig, Version: "v0.0.1-test", Log: w.log.logger(), Level: zap.NewAtomicLevel(), Stop: time.Second,
			Environ: environ,
		})
	}()
	t.Cleanup(func() {
		cancel()
		if <-ended; w.err != nil {
			t.Errorf("the agent ended with the error %v, want none", w.err)
		}
		if strings.Contains(w.log.String(), joinToken) {
			t.Error("the join token is in the log, want it kept secret")
		}
		if t.Failed() {
			t.Log(w.log.String())
		}
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func (w *world) session(t *testing.T) *tunnel.Session {
	t.Helper()
	return w.sessionWithin(t, 20*time.Second)
}

// sessionWithin returns the agent's next tunnel. It fails the test if the agent opens none within limit.
func (w *world) sessionWithin(t *testing.T, limit time.Duration) *tunnel.Session {
	t.Helper()
	select {
	case s := <-w.hub.Sessions:
		t.Cleanup(func() { _ = s.Close() })
		return s
	case <-time.After(limit):
		t.Fatalf("got no tunnel within %s, want one", limit)
		return nil
	}
}

func ask(t *testing.T, s *tunnel.Session, method, path string, header http.Header, body string) (*http.Response,
	string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(text)
}

// reports opens the stream of reports.
func reports(t *testing.T, s *tunnel.Session) *bufio.Reader {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+protocol.PathReport, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := s.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return bufio.NewReader(resp.Body)
}

func nextReport(t *testing.T, r *bufio.Reader) protocol.Report {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var report protocol.Report
	if err := json.Unmarshal(line, &report); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAgent(t *testing.T) {
	t.Parallel()
	t.Run("joins, connects, reports, forwards and stops", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		start := time.Now()
		w.start(t)
		s := w.session(t)
		w.probe(t, "/readyz", http.StatusServiceUnavailable) // the hub does not know its state yet
		stream := reports(t, s)
		report := nextReport(t, stream)
		t.Logf("start to first report: %s", time.Since(start))
		want := protocol.Settings{Servers: []string{w.hub.URL}, CABundle: w.ca.Bundle()}
		if report.ClusterUID != "member-uid" || report.Version != "v1.36.3" || report.Nodes == nil ||
			report.Nodes.Ready != 1 ||
			!report.Health.Healthy || report.SettingsDigest != want.Digest() || report.AgentVersion != "v0.0.1-test" {
			t.Errorf("got %+v", report)
		}

		w.api.Put(t, "/api/v1/nodes/n2", node("n2"))
		if report = nextReport(t, stream); report.Nodes.Total != 2 || report.Nodes.Capacity["memory"] != "16Gi" {
			t.Errorf("after a second node: got %+v, want 2 nodes", report.Nodes)
		}

		resp, body := ask(t, s, http.MethodGet, "/v1/k8s/api/v1/nodes/n1", http.Header{"Impersonate-User": {"hub:alice"}}, "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"name":"n1"`) {
			t.Errorf("forwarded GET: got %s %s, want the node", resp.Status, body)
		}
		if resp, body = ask(t, s, http.MethodGet, "/v1/k8s/api/v1/nodes/n1", nil,
			""); resp.StatusCode != http.StatusForbidden {
			t.Errorf("GET without a user: got %s %s, want 403", resp.Status, body)
		}
		if resp, _ = ask(t, s, http.MethodGet, "/v1/unknown", nil, ""); resp.StatusCode != http.StatusNotFound {
			t.Errorf("unknown path: got %s, want 404", resp.Status)
		}
		w.probe(t, "/healthz", http.StatusOK)
		w.probe(t, "/readyz", http.StatusOK)
		if level, err := daemon.SetLogLevel(t.Context(), w.socket, "debug"); err != nil || level != "debug" {
			t.Errorf("log level: got %q and the error %v, want debug", level, err)
		}

		w.stop()
		if _, err := stream.ReadByte(); err != io.EOF {
			t.Errorf("the stream of reports ended with %v, want io.EOF", err)
		}
		<-s.Done()
	})

	t.Run("opens no port on the network of its node, and answers probes at its socket", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.run(t, daemon.Run, func(e *daemon.Environ) { e.HostNetwork = true })
		s := w.session(t)
		if err := daemon.Probe(t.Context(), w.socket, "/readyz"); err == nil ||
			!strings.Contains(err.Error(), "the hub has not read a report yet") {
			t.Errorf("got %v, want that the agent is not ready before the hub has read a report", err)
		}
		nextReport(t, reports(t, s))
		for _, path := range []string{"/healthz", "/readyz"} {
			if err := daemon.Probe(t.Context(), w.socket, path); err != nil {
				t.Errorf("got %v, want a healthy and ready agent", err)
			}
		}
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", w.probes)
		if err != nil {
			t.Fatalf("listen on the port for probes: %v, want it free", err)
		}
		_ = listener.Close()
		w.stop()
		<-w.ended
		if err := daemon.Probe(t.Context(), w.socket, "/healthz"); err == nil ||
			!strings.Contains(err.Error(), "no agent listens") {
			t.Errorf("probe of an agent that has ended: got %v, want that none listens", err)
		}
	})

	t.Run("stores settings before it responds, and reports their digest", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start(t)
		s := w.session(t)
		stream := reports(t, s)
		nextReport(t, stream)
		next := protocol.Settings{Servers: []string{w.hub.URL, "https://new.example"},
			CABundle: w.ca.Bundle() + agenttest.NewAuthority(t, "next").Bundle()}
		raw, _ := json.Marshal(next)
		for range 2 { // the second PUT changes nothing
			if resp, body := ask(t, s, http.MethodPut, protocol.PathSettings, nil,
				string(raw)); resp.StatusCode != http.StatusNoContent {
				t.Fatalf("PUT of the settings: %s %s, want 204", resp.Status, body)
			}
		}
		if report := nextReport(t, stream); report.SettingsDigest != next.Digest() {
			t.Errorf("got the digest %q, want %q", report.SettingsDigest, next.Digest())
		}
		data, _ := w.api.Get(identity)["data"].(map[string]any)
		if data["settings"] == nil {
			t.Error("the settings are not in the identity Secret, want them stored")
		}
	})

	t.Run("follows a rotation of the CA without a restart", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start(t)
		s := w.session(t)
		next := agenttest.NewAuthority(t, "next")
		raw, _ := json.Marshal(protocol.Settings{Servers: []string{w.hub.URL}, CABundle: w.ca.Bundle() + next.Bundle()})
		if resp, body := ask(t, s, http.MethodPut, protocol.PathSettings, nil,
			string(raw)); resp.StatusCode != http.StatusNoContent {
			t.Fatalf("PUT of the settings: %s %s, want 204", resp.Status, body)
		}
		w.hub.Serve(next.Serving(t))
		_ = s.Close()
		w.session(t)
	})

	t.Run("a restarted agent connects as before without its token", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start(t)
		w.session(t)
		w.stop()
		<-w.ended
		w.api.Delete(registration)
		w.start(t)
		w.session(t)
		joins := 0
		for _, r := range w.hub.Seen() {
			if r.Path == protocol.PathRegister {
				joins++
			}
		}
		if joins != 1 {
			t.Errorf("the agent joined %d times, want once", joins)
		}
	})

	t.Run("uninstalls itself and ends", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		const role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drover-agent"
		w.api.Put(t, role, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "drover-agent"}})
		w.start(t)
		s := w.session(t)
		resp, body := ask(t, s, http.MethodPost, protocol.PathUninstall, nil, "")
		if resp.StatusCode != http.StatusOK || strings.TrimSpace(body) != "{}" {
			t.Fatalf("uninstall: %s %s, want 200 with {}", resp.Status, body)
		}
		<-w.ended
		owned, _ := json.Marshal(w.api.Get(role))
		if !bytes.Contains(owned, []byte(`"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"drover-agent"`)) {
			t.Errorf("got the ClusterRole %s, want the namespace as its owner", owned)
		}
		if w.api.Get("/api/v1/namespaces/drover-agent") != nil || w.api.Get(identity) != nil {
			t.Error("the namespace or the identity still exists, want both deleted")
		}
	})
}

// probe sends a request as the kubelet does.
func (w *world) probe(t *testing.T, path string, want int) {
	t.Helper()
	if got := w.probed(t, path); got != want {
		t.Errorf("%s: got %d, want %d", path, got, want)
	}
}

// probed returns the status of a probe.
func (w *world) probed(t *testing.T, path string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.probes+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
