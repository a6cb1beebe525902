// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/drover-dev/drover/internal/tunnel"
)

// Tunnel contains both ends of an in-memory tunnel.
type Tunnel struct {
	// Session is the hub's end, and Conn is the agent's end.
	Session *tunnel.Session
	Conn    *tunnel.Conn
	// Stop stops the agent after the requests in progress have ended.
	Stop context.CancelFunc
	// Cut closes the tunnel immediately, and returns when the agent has detected it.
	Cut func()
}

// OpenTunnel opens a tunnel whose agent serves requests with h. It ends with the test.
func OpenTunnel(t testing.TB, h http.Handler) Tunnel {
	t.Helper()
	hubEnd, agentEnd := net.Pipe()
	conn := tunnel.NewConn(agentEnd, tunnel.Config{})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = conn.Serve(ctx, h)
	}()
	cut := func() {
		_ = conn.Close()
		<-served
	}
	t.Cleanup(func() {
		cut()
		stop()
	})
	session, err := tunnel.NewSession(t.Context(), hubEnd, tunnel.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return Tunnel{Session: session, Conn: conn, Stop: stop, Cut: cut}
}
