// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// patience is how long a test waits for something that must happen. Only a failing test waits that long.
const patience = 20 * time.Second

// pair has both ends of a tunnel.
type pair struct {
	session *Session
	conn    *Conn
	served  chan error         // the result of Serve; a test that takes it must put it back
	why     error              // the same result after the test
	stop    context.CancelFunc // ends the agent gracefully
}

// carriers are the ways to connect both ends. The same must hold over each of them.
func carriers() map[string]func(testing.TB, Config, http.Handler) *pair {
	return map[string]func(testing.TB, Config, http.Handler) *pair{"pipe": overPipe, "TLS WebSocket": overTLS}
}

// overEach runs a test over each carrier.
func overEach(t *testing.T, cfg Config, h http.Handler, test func(*testing.T, *pair)) {
	t.Helper()
	for name, carrier := range carriers() {
		t.Run("over "+name, func(t *testing.T) { test(t, carrier(t, cfg, h)) })
	}
}

// overPipe connects both ends in memory.
func overPipe(t testing.TB, cfg Config, h http.Handler) *pair {
	t.Helper()
	hubEnd, agentEnd := net.Pipe()
	return overConns(t, cfg, h, hubEnd, agentEnd)
}

func overConns(t testing.TB, cfg Config, h http.Handler, hubEnd, agentEnd net.Conn) *pair {
	t.Helper()
	cfg = quiet(cfg)
	p := newPair(t, NewConn(agentEnd, cfg), h)
	session, err := NewSession(t.Context(), hubEnd, cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.session = session
	return p
}

// overTLS connects both ends as in production, by a WebSocket over TLS.
func overTLS(t testing.TB, cfg Config, h http.Handler) *pair {
	t.Helper()
	cfg = quiet(cfg)
	hub := newTestServer(t, cfg)
	conn, err := hub.dialer(cfg).Dial(t.Context(), hub.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, conn, h)
	p.session = await(t, "a session at the hub", hub.sessions)
	return p
}

// newPair starts the agent's end.
func newPair(t testing.TB, conn *Conn, h http.Handler) *pair {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	p := &pair{conn: conn, served: make(chan error, 1), stop: stop}
	go func() { p.served <- conn.Serve(ctx, h) }()
	t.Cleanup(func() {
		if p.session != nil {
			_ = p.session.Close()
		}
		_ = conn.Close()
		select {
		case err := <-p.served:
			p.why = err
		case <-time.After(patience):
			t.Error("Serve did not return after the end of the tunnel")
		}
		stop()
	})
	return p
}

// testServer accepts tunnels over TLS.
type testServer struct {
	url      string
	roots    *x509.CertPool
	sessions chan *Session
	errors   chan error
}

func newTestServer(t testing.TB, cfg Config) *testServer {
	t.Helper()
	h := &testServer{sessions: make(chan *Session, 100), errors: make(chan error, 100), roots: x509.NewCertPool()}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session, err := Accept(w, r, cfg)
		if err != nil {
			h.errors <- err
			return
		}
		h.sessions <- session
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	server.StartTLS()
	t.Cleanup(server.Close)
	h.roots.AddCert(server.Certificate())
	h.url = "wss" + strings.TrimPrefix(server.URL, "https") + "/v1/connect"
	return h
}

func (h *testServer) dialer(cfg Config) *Dialer {
	return &Dialer{Config: cfg, TLS: &tls.Config{RootCAs: h.roots}, Proxy: noProxy}
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil } // the form that http.Transport expects

func quiet(cfg Config) Config {
	cfg.ErrorLog = log.New(io.Discard, "", 0)
	return cfg
}

// await receives a value from a channel.
func await[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}

// get sends a GET and returns the body.
func (p *pair) get(t *testing.T, path string) string {
	t.Helper()
	response, err := p.session.RoundTrip(request(t, http.MethodGet, path, nil))
	if err != nil {
		t.Fatal(err)
	}
	return readAll(t, response)
}

func request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://member"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readAll(t *testing.T, response *http.Response) string {
	t.Helper()
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// whole reads the whole body of a response.
func whole(response *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func wantError(t *testing.T, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("got error %v, want %q", got, want)
	}
}
