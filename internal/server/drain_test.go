// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"

	"github.com/drover-dev/drover/agent/link"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// mover is an agent with its real link, and a small cluster behind it. /slow responds when told to, a watch sends
// events continuously, an upgrade echoes, /silent is a watch with one event, /header has a long header, and /size
// responds with the size of the body.
type mover struct {
	w      *world
	key    ed25519.PrivateKey
	joined protocol.RegisterResponse
	name   types.NamespacedName
	path   string // path of its Kubernetes API at the hub
	dials  atomic.Int32
	slow   chan struct{}

	mu     sync.Mutex // guards server
	server string     // where new tunnels go
}

// moves starts an agent and returns when it is connected.
func (w *world) moves(t *testing.T, cluster string) *mover {
	t.Helper()
	m := &mover{w: w, key: testkit.Key(t), slow: make(chan struct{}), server: "https://" + w.base}
	var code int
	if m.joined, code = w.register(w.cluster(cluster), m.key, "member-uid"); code != http.StatusOK {
		t.Fatalf("join: %d, want 200", code)
	}
	m.name = types.NamespacedName{Namespace: w.namespace, Name: cluster}
	m.path = "/k8s/clusters/" + m.name.String()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l := link.New(link.Options{Target: m.Target, Changed: m.Changed, Handler: m, Log: logr.Discard()})
	go func() { defer close(ended); l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	m.await(t, func(s members.State) bool { return s.Report != nil })
	return m
}

// await waits until the state of the agent at the hub is as wanted.
func (m *mover) await(t *testing.T, wanted func(members.State) bool) {
	t.Helper()
	testkit.Eventually(t, 15*time.Second, func(context.Context) error {
		if state := m.w.server.Members.State(m.name); !wanted(state) {
			return fmt.Errorf("state %+v", state)
		}
		return nil
	})
}

// Target returns the server that the agent connects to.
func (m *mover) Target(context.Context, error) (*link.Target, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dialer := tunnel.Dialer{TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: m.w.roots(),
		InsecureSkipVerify: m.server != "https://"+m.w.base}, Config: tunnel.Config{DrainTimeout: time.Second}}
	return &link.Target{
		Servers: []string{m.server},
		Dial: func(ctx context.Context, url string, header http.Header) (link.Serve, error) {
			m.dials.Add(1)
			conn, err := dialer.Dial(ctx, url, header)
			if err != nil {
				return nil, err
			}
			return conn.Serve, nil
		},
		Token: func() (string, error) { return m.w.connectToken(m.key, m.joined), nil },
	}, nil
}

// Changed waits for ctx to end, because there is never a new token.
func (m *mover) Changed(ctx context.Context) { <-ctx.Done() }

// ServeHTTP serves both the agent and its cluster.
func (m *mover) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	flush := func() { _ = http.NewResponseController(w).Flush() }
	switch {
	case r.URL.Path == protocol.PathReport:
		_ = json.NewEncoder(w).Encode(testkit.HealthyReport())
		flush()
		<-r.Context().Done()
	case r.Header.Get("Upgrade") != "":
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	case strings.HasSuffix(r.URL.Path, "/silent"):
		_, _ = io.WriteString(w, "{\"type\":\"ADDED\"}\n")
		flush()
		<-r.Context().Done()
	case r.URL.Query().Get("watch") == "true":
		w.Header().Set("Content-Type", "application/json")
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; r.Context().Err() == nil; n++ {
			_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":{"n":%d,`, n)
			flush() // an event in two pieces, so that it could be cut in the middle
			_, _ = fmt.Fprintf(w, "\"more\":%q}}\n", strings.Repeat("x", 100))
			flush()
			<-tick.C
		}
	case strings.HasSuffix(r.URL.Path, "/slow"):
		<-m.slow
		_, _ = io.WriteString(w, "at last")
	case strings.HasSuffix(r.URL.Path, "/header"):
		w.Header().Set("X-Long", strings.Repeat("x", longHeader))
	case strings.HasSuffix(r.URL.Path, "/size"):
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	default:
		_, _ = io.WriteString(w, "answer")
	}
}

// elsewhere starts another replica of the hub, which accepts every tunnel. New tunnels go there from now on.
func (m *mover) elsewhere(t *testing.T) *members.Registry {
	t.Helper()
	other := members.New(logr.Discard(), time.Now)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if session, err := tunnel.Accept(w, r, tunnel.Config{}); err == nil {
			other.Add(members.Peer{Cluster: m.joined.Cluster, Key: "key"}, session)
		}
	}))
	server.StartTLS()
	t.Cleanup(func() { other.Close(); server.Close() })
	m.mu.Lock()
	defer m.mu.Unlock()
	m.server = server.URL
	return other
}

// reader returns the token of a user who can reach members.
func (w *world) reader(name string) string {
	return w.user(name, rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
		Verbs: []string{"get"}})
}

// watch starts a watch and returns when it has begun. The channel receives how the watch ended: nil if it ended between
// two events.
func (w *world) watch(t *testing.T, c *http.Client, path, bearer string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.base+path+"/api/v1/pods?watch=true",
		nil)
	if err != nil {
		ended <- err
		return ended
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := c.Do(req)
	if err != nil {
		ended <- fmt.Errorf("it did not begin: %w", err)
		return ended
	}
	go func() {
		defer resp.Body.Close()
		ended <- followEvents(resp)
	}()
	return ended
}

// followEvents reads events until the watch ends.
func followEvents(resp *http.Response) error {
	if resp.StatusCode != http.StatusOK {
		return errors.New(resp.Status)
	}
	lines := bufio.NewReader(resp.Body)
	for n := 0; ; n++ {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("after %d events and %q: %w", n, line, err)
		}
		if !json.Valid(line) {
			return fmt.Errorf("no event: %s", line)
		}
	}
}

// shell is an upgraded connection.
type shell struct {
	t    *testing.T
	conn *tls.Conn
	read *bufio.Reader
}

func (w *world) shell(t *testing.T, path, bearer string) *shell {
	t.Helper()
	conn, err := (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots(),
		NextProtos: []string{"http/1.1"}}}).DialContext(t.Context(), "tcp", w.base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s := &shell{t: t, conn: conn.(*tls.Conn), read: bufio.NewReader(conn)}
	_, _ = io.WriteString(conn,
		"GET "+path+"/api/v1/namespaces/a/pods/b/exec HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: "+
			"SPDY/3.1\r\nAuthorization: Bearer "+bearer+"\r\n\r\n")
	resp, err := http.ReadResponse(s.read, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %+v, %v, want 101", resp, err)
	}
	return s
}

// newWords limits how fast a test sends words to a shell. Without a limit, the words would use all of the CPU.
func newWords() *rate.Limiter { return rate.NewLimiter(20, 1) }

// says sends a word to the shell and returns an error unless it echoes the word.
func (s *shell) says(word string) error {
	s.t.Helper()
	_ = s.conn.SetDeadline(time.Now().Add(testkit.Patience * 10 * time.Second))
	if _, err := io.WriteString(s.conn, word+"\n"); err != nil {
		return err
	}
	line, err := s.read.ReadString('\n')
	if err != nil {
		return err
	}
	if line != word+"\n" {
		return fmt.Errorf("it says %q", line)
	}
	return nil
}

// testMove makes an agent that is in use move from one tunnel to another tunnel of the same replica.
func testMove(t *testing.T, w *world) {
	m, c, user := w.moves(t, "mover"), w.client(true), w.reader("mover-user")
	calm := w.watch(t, c, m.path, user)
	sh := w.shell(t, m.path, user)
	ctx, cancel := context.WithCancel(t.Context())
	var failed, sent atomic.Int32
	var sending sync.WaitGroup
	pace := rate.NewLimiter(200, 1)
	for range 4 {
		sending.Go(func() {
			for pace.Wait(ctx) == nil {
				sent.Add(1)
				if got := w.send(c, http.MethodGet, m.path+"/api/v1/pods", user); got.code != http.StatusOK ||
					got.body != "answer" {
					failed.Add(1)
					t.Errorf("got %d %s, want 200 and \"answer\"", got.code, got.body)
				}
			}
		})
	}
	for round := range 3 {
		moved, stayed := w.server.Members.Move(t.Context(), 10*time.Second)
		if moved < 1 {
			t.Errorf("round %d: %d agents moved and %d stayed, want at least one moved", round, moved, stayed)
		}
		if err := sh.says(fmt.Sprintf("round %d", round)); err != nil {
			t.Errorf("round %d: the shell: %v", round, err)
		}
		select {
		case err := <-calm:
			if err != nil {
				t.Errorf("round %d: the watch ended with %v, want an end between two events", round, err)
			}
			calm = w.watch(t, c, m.path, user)
		case <-time.After(testkit.Patience * 5 * time.Second):
			t.Errorf("round %d: the watch on the old tunnel goes on, want it ended", round)
		}
	}
	cancel()
	sending.Wait()
	if m.dials.Load() != 4 || sent.Load() < 100 {
		t.Errorf("%d dials, %d requests, want 4 dials and 100 requests at least", m.dials.Load(), sent.Load())
	}
	begun, words := time.Now(), newWords()
	for sh.says("still") == nil {
		_ = words.Wait(t.Context())
		if time.Since(begun) > testkit.Patience*15*time.Second {
			t.Fatal("the shell on an expired tunnel goes on, want it ended")
		}
	}
	t.Logf("%d requests, %d failed", sent.Load(), failed.Load())
}

// TestStop stops a replica while requests of all kinds are in progress.
func TestStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Stop.Delay, w.server.Stop.Sessions = 5*time.Second, 15*time.Second // enough time for the requests below
	w.server.Stop.Others = func() int { return 1 }
	stop := w.start()
	m, user := w.moves(t, "member"), w.reader("stop-user")
	other := m.elsewhere(t)
	h1, h2 := w.client(false), w.client(true)
	watches := []<-chan error{w.watch(t, h1, m.path, user), w.watch(t, h2, m.path, user)}
	sh := w.shell(t, m.path, user)
	slow := make(chan response, 1)
	go func() {
		defer close(slow) // send may end the goroutine
		slow <- w.send(h2, http.MethodGet, m.path+"/slow", user)
	}()
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if got := w.server.Stop.Calls.Counts(); got.Requests != 1 || got.Watches != 2 || got.Sessions != 1 {
			return fmt.Errorf("requests in progress: %+v", got)
		}
		return nil
	})
	begun, watch, ended := time.Now(), testkit.StartStopwatch(), make(chan error, 1)
	go func() { ended <- stop() }()
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if got := w.send(h2, http.MethodGet, "/readyz", ""); got.code != http.StatusServiceUnavailable {
			return fmt.Errorf("readyz: %d", got.code)
		}
		return nil
	})
	if got := w.raw("GET "+protocol.PathConnect, "Authorization: Bearer "+w.connectToken(m.key,
		m.joined)+"\r\n"); got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("a new agent got %d %v, want 503 with Retry-After", got.code, got.header)
	}
	if got := w.send(w.client(true), http.MethodGet, m.path+"/api/v1/pods", user); got.code != http.StatusOK {
		t.Errorf("a new request during the delay got %d, want 200", got.code)
	}
	for i, watch := range watches {
		if err := <-watch; err != nil {
			t.Errorf("watch %d ended with %v, want an end between two events", i, err)
		}
	}
	if took := time.Since(begun); took < w.server.Stop.Delay/2 {
		t.Errorf("watches ended after %s, before half of the delay was over", took)
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if other.State(m.name).Report == nil || w.server.Members.State(m.name).Connected() {
			return errors.New("the agent has not moved")
		}
		return nil
	})
	if err := sh.says("after the move"); err != nil {
		t.Errorf("the shell: %v, want it to go on", err)
	}
	close(m.slow)
	if got := <-slow; got.code != http.StatusOK || got.body != "at last" {
		t.Errorf("the request in progress got %d %s, want 200", got.code, got.body)
	}
	if err := <-ended; err != nil {
		t.Errorf("the replica stopped with %v, want no error", err)
	}
	if took, least := time.Since(begun), w.server.Stop.Delay+w.server.Stop.Sessions; took < least ||
		watch.Took() > least+10*time.Second {
		t.Errorf("the replica stopped after %s, want the delay, the time for sessions and a moment", took)
	}
	if sh.says("afterwards") == nil {
		t.Error("the shell goes on after the time for sessions, want it ended")
	}
}

// TestAgentRevokedDuringAStop revokes an agent while its replica is stopping for a long time.
func TestAgentRevokedDuringAStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Stop.Delay, w.server.Stop.Sessions = 0, 30*time.Second
	revoker := &cluster.Revoker{
		Client: w.manager.GetClient(), Live: w.manager.GetAPIReader(), Tunnels: w.server.Members.Tunnels,
	}
	// controllers.Setup does this, but with a name that a process can use only once.
	everywhere := false
	err := ctrl.NewControllerManagedBy(w.manager).Named("revocation-"+w.namespace).For(&v1.Cluster{}).Owns(
		&corev1.Secret{}, builder.MatchEveryOwner).
		WithOptions(controller.Options{NeedLeaderElection: &everywhere}).Complete(revoker)
	if err != nil {
		t.Fatal(err)
	}
	stop := w.start()
	m, user := w.moves(t, "member"), w.reader("revoked-user")
	sh := w.shell(t, m.path, user)
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.base); err == nil {
			return errors.Join(errors.New("the port is still open"), conn.Close())
		}
		return nil
	})
	if err := sh.says("while it stops"); err != nil {
		t.Fatal(err)
	}
	secret := registration.AgentSecret(m.name)
	if err := w.Client.Delete(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: secret.Namespace, Name: secret.Name}}); err != nil {
		t.Fatal(err)
	}
	watch := testkit.StartStopwatch()
	if err := <-ended; err != nil {
		t.Errorf("the replica stopped with %v, want no error", err)
	}
	if took := watch.Took(); took > 10*time.Second || sh.says("afterwards") == nil {
		t.Errorf("the shell of a revoked agent went on for %s, want it ended soon", took)
	}
}

// TestIdleStop stops a replica that has agents and an open connection of a user, but no requests in progress.
func TestIdleStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server.Stop.Delay = 200 * time.Millisecond
	stop := w.start()
	w.moves(t, "member")
	w.send(w.client(true), http.MethodGet, "/healthz", "")
	silent, err := (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13,
		RootCAs: w.roots()}}).DialContext(t.Context(), "tcp", w.base)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	watch := testkit.StartStopwatch()
	if err := stop(); err != nil {
		t.Errorf("the replica stopped with %v, want no error", err)
	}
	if took := watch.Took(); took > w.server.Stop.Delay+lastWords+500*time.Millisecond {
		t.Errorf("the replica took %s to stop, want the delay and at most half a second", took)
	} else {
		t.Log(took)
	}
}
