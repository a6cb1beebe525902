// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Hub is a fake hub. It serves agents over TLS, with certificates of an Authority.
type Hub struct {
	// URL is the URL of the hub.
	URL string
	// Sessions receives each tunnel that an agent opens. It is buffered for a few tunnels.
	Sessions chan *tunnel.Session

	mu       sync.Mutex // guards the rest
	serving  *tls.Certificate
	bundle   string
	register func(token string, r protocol.RegisterRequest) (int, any)
	connect  func(token string) (status int, refusal protocol.Refusal)
	seen     []Request
}

// Request is a request that a Hub received.
type Request struct {
	Path   string
	Header http.Header
}

// NewHub starts a Hub that lets every agent join as team-a/member and connect. It is stopped at the end of the test.
func NewHub(t testing.TB, ca *Authority) *Hub {
	t.Helper()
	h := &Hub{Sessions: make(chan *tunnel.Session, 8), serving: ca.Serving(t), bundle: ca.Bundle()}
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{
		MinVersion: tls.VersionTLS13,
		// GetCertificate cannot be used: httptest has its own certificate, so GetCertificate is not called for clients that
		// dial an address.
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return h.config(), nil },
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused certificates are what some tests are about
	server.StartTLS()
	h.URL = server.URL
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		for {
			select {
			case s := <-h.Sessions:
				_ = s.Close()
				continue
			default:
			}
			return
		}
	})
	h.register = func(string, protocol.RegisterRequest) (int, any) { return http.StatusOK, h.Accepted() }
	return h
}

// Accepted is the response to an agent that is allowed to join.
func (h *Hub) Accepted() protocol.RegisterResponse {
	return protocol.RegisterResponse{
		Cluster:  protocol.ClusterRef{Namespace: "team-a", Name: "member", UID: "uid-1"},
		Audience: "hub-1",
		Settings: protocol.Settings{Servers: []string{h.URL}, CABundle: h.bundle},
	}
}

// Serve sets the certificate for new connections.
func (h *Hub) Serve(cert *tls.Certificate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.serving = cert
}

// OnRegister sets the function that responds to joins with a status and a body.
func (h *Hub) OnRegister(f func(token string, r protocol.RegisterRequest) (int, any)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.register = f
}

// OnConnect sets the function that responds to tunnels with a status. The status 0 accepts the tunnel.
func (h *Hub) OnConnect(f func(token string) (int, protocol.Refusal)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.connect = f
}

// Seen returns all requests so far.
func (h *Hub) Seen() []Request {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Request(nil), h.seen...)
}

func (h *Hub) config() *tls.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, Certificates: []tls.Certificate{*h.serving}}
}

func (h *Hub) note(r *http.Request) (register func(string, protocol.RegisterRequest) (int, any), connect func(string) (int, protocol.Refusal)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.seen = append(h.seen, Request{Path: r.URL.Path, Header: r.Header.Clone()})
	return h.register, h.connect
}

// ServeHTTP serves requests from agents.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	register, connect := h.note(r)
	token := r.Header.Get("Authorization")
	token = token[min(len(token), len("Bearer ")):]
	switch r.URL.Path {
	case protocol.PathCACerts:
		_, _ = io.WriteString(w, h.bundle)
	case protocol.PathRegister:
		var in protocol.RegisterRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		status, body := register(token, in)
		answer(w, status, body)
	case protocol.PathConnect:
		if connect != nil {
			if status, refusal := connect(token); status != 0 {
				answer(w, status, refusal)
				return
			}
		}
		if session, err := tunnel.Accept(w, r, tunnel.Config{}); err == nil {
			h.Sessions <- session
		}
	default:
		http.NotFound(w, r)
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the agent is gone otherwise
}
