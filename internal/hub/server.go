// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hub serves the hub's HTTPS port to agents, people and operators, on every replica.
package hub

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/fleet"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Limits of the port.
const (
	headerTimeout = 10 * time.Second
	// exchangeTimeout bounds reading a request and writing its answer. The proxy lifts it for those it lets in, who may watch.
	exchangeTimeout = 30 * time.Second
	idleTimeout     = 2 * time.Minute
	maxHeaderBytes  = 64 << 10
	maxConnections  = 50_000 // agents and users; beyond, the next one waits to be accepted
	shutdownTimeout = 10 * time.Second
	// streamsPerUser bounds the requests of one HTTP/2 connection of a user.
	streamsPerUser = 250
)

// Server serves the port. It is a manager.Runnable that needs no leadership: tunnels and the proxy run on every replica.
type Server struct {
	Listen       string
	Trust        *trust.Holder
	Registration *registration.Server
	Fleet        *fleet.Registry
	Tunnel       tunnel.Config
	// Proxy serves proxy.PathClusters and proxy.PathLocal; Metrics serves /metrics and guards itself.
	Proxy   http.Handler
	Metrics http.Handler
	// Ready is why this replica cannot serve yet, or nil.
	Ready func() error
	Log   logr.Logger
}

// NeedLeaderElection is false.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends, then stops taking requests, gives those under way a moment, and ends all tunnels.
func (s *Server) Start(ctx context.Context) error {
	if s.Trust.Wait(ctx) != nil {
		return nil // stopped before it could serve
	}
	defer s.Fleet.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.Listen, err)
	}
	server := &http.Server{
		Handler:           s.handler(ctx),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       exchangeTimeout,
		WriteTimeout:      exchangeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetCertificate:     s.Trust.GetCertificate,
			GetConfigForClient: newPace().hello,
		},
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: streamsPerUser},
		ErrorLog: quietLog(s.Log),
	}
	s.Log.Info("serving", "address", listener.Addr().String())
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "") }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve %s: %w", s.Listen, err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err = server.Shutdown(stopping)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close() // watches end here; clients resume them elsewhere
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// handler chooses by prefix before any mux, which would redirect paths that it finds untidy and so leave a member's prefix.
func (s *Server) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	s.Registration.Register(mux)
	mux.HandleFunc("GET "+protocol.PathConnect, s.connect)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeOK(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.readiness(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeOK(w)
	})
	mux.Handle("GET /metrics", s.Metrics)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, proxy.PathClusters) || strings.HasPrefix(r.URL.Path, proxy.PathLocal) {
			s.Proxy.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func writeOK(w http.ResponseWriter) { _, _ = io.WriteString(w, "ok\n") }

func (s *Server) readiness(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("stopping")
	}
	return errors.Join(s.Trust.Ready(), s.Ready())
}

// connect makes a tunnel of an agent's request.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	agent, ok := s.Registration.Authenticate(w, r)
	if !ok {
		return
	}
	session, err := tunnel.Accept(w, r, s.Tunnel)
	if err != nil {
		s.Log.V(1).Info("tunnel not opened", "cluster", agent.Cluster.String(), "cause", err.Error())
		return
	}
	s.Fleet.Add(fleet.Peer{Cluster: agent.Cluster, Key: agent.KeyID}, session)
}
