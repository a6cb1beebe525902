// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves the hub's HTTPS port to agents, people and operators, on every replica.
package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
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
	// streamsPerUser bounds the requests of one HTTP/2 connection of a user.
	streamsPerUser = 250
	// uploadWindow in bytes of one HTTP/2 connection of a user: 5 MB/s at a round trip of 50 ms.
	uploadWindow = 256 << 10
)

// Server serves the port. It is a manager.Runnable that needs no leadership: tunnels and the proxy run on every replica.
type Server struct {
	Listen       string
	Trust        *trust.Holder
	Registration *registration.Server
	Members      *members.Registry
	Tunnel       tunnel.Config
	// Proxy serves proxy.PathClusters and proxy.PathLocal; Metrics serves /metrics and guards itself.
	Proxy   http.Handler
	Metrics http.Handler
	// Audit writes down what is asked of the port. Start closes it at its end.
	Audit *audit.Log
	// Ready is why this replica cannot serve yet, or nil.
	Ready func() error
	// Peers are the other replicas, nil if there are none.
	Peers *peer.Network
	// Connections bounds those of the port.
	Connections config.Connections
	// Stop says how it stops.
	Stop Stop
	Log  logr.Logger

	telemetry *telemetry
	steady    func(context.Context) error // what NewSteady made, nil if nothing
}

// NeedLeaderElection is false.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends, then lets what is under way end, and ends all tunnels.
func (s *Server) Start(ctx context.Context) error {
	defer func() {
		if err := s.Audit.Close(); err != nil {
			s.Log.Error(err, "audit log may have a gap at its end")
		}
	}()
	if s.Trust.Wait(ctx) != nil {
		return nil // stopped before it could serve
	}
	defer s.telemetry.flush(s.Log)
	failed := make(chan error, 3)
	end := s.keepUp(failed)
	defer end()
	defer s.Members.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.Listen, err)
	}
	closing, closeNow := context.WithCancel(context.Background())
	defer closeNow()
	server := s.port(lastAnswers(closing, s.handler(ctx)))
	s.Log.Info("serving", "address", listener.Addr().String())
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		counted := newConnections(s.Connections.Source, s.telemetry.turnedAway.Inc).listener(netutil.LimitListener(frugal{listener}, s.Connections.All))
		if err := server.ServeTLS(counted, "", ""); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("serve %s: %w", s.Listen, err)
		}
	})
	select {
	case err := <-failed:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
		s.stop(server, closeNow)
		return nil
	}
}

// frugal keeps what a user does not read out of the kernel, where no bound of ours counts it.
type frugal struct{ net.Listener }

// Accept implements net.Listener.
func (l frugal) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		tunnel.KeepUnsentLow(conn)
	}
	return conn, err // net/http knows the listener's errors
}

// keepUp starts what goes on until the last tunnel here has ended, and returns what ends it.
func (s *Server) keepUp(failed chan<- error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for what, run := range map[string]func(context.Context) error{"link to other replicas": s.Stop.Links, "watch who may connect": s.steady} {
		if run == nil {
			continue
		}
		running.Go(func() {
			if err := run(ctx); err != nil {
				failed <- fmt.Errorf("%s: %w", what, err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// port is the server of the port.
func (s *Server) port(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           withinHeader(handler),
		ConnContext:       withConnection,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       exchangeTimeout,
		WriteTimeout:      exchangeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxReadHeaderBytes,
		TLSConfig: &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetCertificate:     s.Trust.GetCertificate,
			GetConfigForClient: newPace(s.telemetry.turnedAway.Inc).hello,
		},
		// A connection may hold so much of bodies that are not read yet: the library's 1 MiB, times those who may connect, is too much.
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: streamsPerUser, MaxReceiveBufferPerConnection: uploadWindow, MaxReceiveBufferPerStream: uploadWindow},
		ErrorLog: quietLog(s.Log),
	}
}

// handler chooses by prefix before any mux, which would redirect paths that it finds untidy and so leave a member's prefix.
func (s *Server) handler(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	s.Registration.Register(mux)
	mux.HandleFunc("GET "+protocol.PathConnect, func(w http.ResponseWriter, r *http.Request) {
		if ctx.Err() != nil {
			refuseTunnel(w)
			return
		}
		s.connect(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeOK(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.readiness(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeOK(w)
	})
	mux.Handle("GET /metrics", s.Metrics)
	users := s.Stop.Calls.Handler(s.Proxy)
	return s.Audit.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, proxy.PathClusters) || strings.HasPrefix(r.URL.Path, proxy.PathLocal) {
			users.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

func writeOK(w http.ResponseWriter) { _, _ = io.WriteString(w, "ok\n") }

func (s *Server) readiness(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("stopping")
	}
	if !s.Synced() { // users would get the error that members are not connected which are connected to other replicas
		return errors.New("other replicas have not said yet which members they hold")
	}
	return errors.Join(s.Trust.Ready(), s.Ready())
}

// connect makes a tunnel of an agent's request.
func (s *Server) connect(w http.ResponseWriter, r *http.Request) {
	agent, ok := s.Registration.Authenticate(w, r)
	if !ok {
		return
	}
	peer := members.Peer{Cluster: agent.Cluster, Key: agent.KeyID, Instance: agent.Instance, TokenID: agent.TokenID}
	if after, err := s.Members.Admit(peer.Name()); err != nil {
		w.Header().Set("Retry-After", strconv.Itoa(int(after.Seconds())+1))
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	}
	session, err := tunnel.Accept(w, r, s.Tunnel)
	if err != nil {
		s.Log.V(1).Info("tunnel not opened", "cluster", agent.Cluster.String(), "cause", err.Error())
		return
	}
	heldByAgent(r.Context())
	s.Members.Add(peer, session)
}
