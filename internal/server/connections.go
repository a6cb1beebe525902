// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/limit"
)

// connections limits how many unauthenticated connections one address may hold, and how many connections one user may
// hold. A single machine must not be able to use up all connections to the port. Tunnels are limited elsewhere, per
// Cluster and workspace, because behind a load balancer all agents have the same address.
type connections struct {
	most       int    // the limit for one address or one user
	turnedAway func() // called for each connection that is closed immediately because of a limit

	mu   sync.Mutex // guards the fields below
	held map[string]int
}

func newConnections(most int, turnedAway func()) *connections {
	return &connections{most: most, turnedAway: turnedAway, held: map[string]int{}}
}

// listener returns a listener that counts and limits the connections that l accepts.
func (c *connections) listener(l net.Listener) net.Listener { return countingListener{l, c} }

type countingListener struct {
	net.Listener
	all *connections
}

// Accept implements net.Listener. If a connection exceeds the limit for its address, it is closed before a handshake or
// a goroutine is started for it.
func (l countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return conn, err // net/http examines the listener's errors
		}
		holder := "address " + limit.Source(conn.RemoteAddr().String())
		if l.all.enter(holder) {
			return &countedConn{Conn: conn, all: l.all, holder: holder}, nil
		}
		l.all.turnedAway()
		_ = conn.Close() // nothing has been sent on the connection
	}
}

func (c *connections) enter(holder string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[holder] >= c.most {
		return false
	}
	c.held[holder]++
	return true
}

func (c *connections) leaveLocked(holder string) {
	if c.held[holder]--; c.held[holder] <= 0 {
		delete(c.held, holder)
	}
}

// countedConn is a connection that is counted for its holder. The holder is an address, a user, or "" for an agent's
// tunnel.
type countedConn struct {
	net.Conn
	all    *connections
	holder string // guarded by connections.mu
	closed bool   // guarded by connections.mu
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.all.mu.Lock()
	if !c.closed && c.holder != "" {
		c.all.leaveLocked(c.holder)
	}
	c.closed = true
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// heldBy counts a connection toward the limit of a new, authenticated holder. If that user already holds too many
// connections, the connection continues to count toward the limit for its address.
func (c *countedConn) heldBy(holder string) {
	c.all.mu.Lock()
	defer c.all.mu.Unlock()
	if c.closed || c.holder == holder || c.holder == "" || holder != "" && c.all.held[holder] >= c.all.most {
		return
	}
	c.all.leaveLocked(c.holder)
	if c.holder = holder; holder != "" {
		c.all.held[holder]++
	}
}

type connectionKey struct{}

// withConnection is the http.Server's ConnContext function.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return ctx
	}
	if counted, ok := secured.NetConn().(*countedConn); ok {
		return context.WithValue(ctx, connectionKey{}, counted)
	}
	return ctx
}

// heldByAgent marks the connection of a request as a tunnel.
func heldByAgent(ctx context.Context) {
	if conn, ok := ctx.Value(connectionKey{}).(*countedConn); ok {
		conn.heldBy("")
	}
}

// heldByUser returns a function that authenticates a request, and counts the request's connection toward the limit of
// the authenticated user.
func heldByUser(
	authenticate func(*http.Request) (identity.Identity, error),
) func(*http.Request) (identity.Identity, error) {
	return func(r *http.Request) (identity.Identity, error) {
		id, err := authenticate(r)
		if conn, ok := r.Context().Value(connectionKey{}).(*countedConn); ok && err == nil && id.Valid() {
			conn.heldBy("user " + id.Sharer())
		}
		return id, err
	}
}
