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

// Tunnel is both ends of a tunnel in memory.
type Tunnel struct {
	// Session is the hub's end, Conn the agent's.
	Session *tunnel.Session
	Conn    *tunnel.Conn
	// Stop ends the agent after the requests in progress.
	Stop context.CancelFunc
	// Cut closes the tunnel at once, and returns when the agent has noticed.
	Cut func()
}

// OpenTunnel opens a tunnel whose agent answers with h. It ends with the test.
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
