// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package server serves the hub's ports to agents, users and operators, on every replica.
package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/internal/portal/subscribe"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Port configures the port that agents and users connect to.
type Port struct {
	Listen string
	// Connections limits the connections to the port.
	Connections config.Connections
	// Audiences are the token audiences that can select a member in place of the path.
	Audiences identity.Audiences
}

// Server serves the port. It runs alongside the manager on every replica.
type Server struct {
	Port
	Trust        *trust.Holder
	Registration *registration.Server
	Members      *members.Registry
	Tunnel       tunnel.Config
	// Proxy serves proxy.PathClusters and proxy.PathLocal.
	Proxy http.Handler
	// Audit records the requests to the port. Start closes the log before it returns.
	Audit *audit.Log
	// Ready returns nil if this replica can serve requests. Otherwise, it returns the reason why the replica is not ready.
	Ready func() error
	// SignIn is the issuer of users' tokens. It is nil if users do not sign in to this hub.
	SignIn *signin.Server
	// Catalog lists the Clusters that a user can reach. If it is nil, its paths are not served.
	Catalog *catalog.Catalog
	// Changes streams changes to Drover's objects to users.
	Changes *subscribe.Server
	// Peers connects this replica to the other replicas. It is nil if there are none.
	Peers *peer.Network
	// Stop configures how the server stops.
	Stop Stop
	Log  logr.Logger

	telemetry *telemetry
	pace      *handshakePace
}

// Start serves until ctx is done. Then it lets requests in progress finish and closes all tunnels.
func (s *Server) Start(ctx context.Context) error {
	defer func() {
		if err := s.Audit.Close(); err != nil {
			s.Log.Error(err, "the audit log may be incomplete at its end")
		}
	}()
	if s.Trust.Wait(ctx) != nil {
		return nil // ctx ended before the server could serve
	}
	defer s.telemetry.flush(s.Log)
	failed := make(chan error, 2)
	unlink := s.link(failed)
	defer unlink()
	defer s.Members.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.Listen, err)
	}
	closing, closeNow := context.WithCancel(context.Background())
	defer closeNow()
	server := s.port(s.handler(ctx, closing))
	s.Log.Info("serving", "address", listener.Addr().String())
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if err := server.ServeTLS(s.connections(listener), "", ""); !errors.Is(err, http.ErrServerClosed) {
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

// link maintains the links to other replicas until the returned function is called.
func (s *Server) link(failed chan<- error) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if s.Stop.Links != nil {
		running.Go(func() {
			if err := s.Stop.Links(ctx); err != nil {
				failed <- fmt.Errorf("link to other replicas: %w", err)
			}
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
