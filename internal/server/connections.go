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

// connections bounds how many connections one address holds that have proved to be no one's, and how many one user. One
// host must not fill the port. Tunnels are bounded elsewhere, by Cluster and workspace: behind a load balancer all
// agents come from one address.
type connections struct {
	most       int    // of one address, or of one user
	turnedAway func() // called for each connection that is closed at once

	mu   sync.Mutex // guards what follows
	held map[string]int
}

func newConnections(most int, turnedAway func()) *connections {
	return &connections{most: most, turnedAway: turnedAway, held: map[string]int{}}
}

// listener counts what another one accepts.
func (c *connections) listener(l net.Listener) net.Listener { return countingListener{l, c} }

type countingListener struct {
	net.Listener
	all *connections
}

// Accept implements net.Listener. What is one too many of its address costs neither a handshake nor a goroutine.
func (l countingListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return conn, err // net/http knows the listener's errors
		}
		holder := "address " + limit.Source(conn.RemoteAddr().String())
		if l.all.enter(holder) {
			return &countedConn{Conn: conn, all: l.all, holder: holder}, nil
		}
		l.all.turnedAway()
		_ = conn.Close() // nothing was said
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

// countedConn is a connection with who holds it: an address, a user, or, if it is empty, an agent with a tunnel.
type countedConn struct {
	net.Conn
	all    *connections
	holder string // connections.mu guards it
	closed bool   // likewise
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

// heldBy counts a connection with who has proved to hold it from now on. Of a user who holds too many it stays with its
// address.
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

// withConnection is for http.Server.ConnContext.
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

// heldByAgent says that the connection of a request is a tunnel.
func heldByAgent(ctx context.Context) {
	if conn, ok := ctx.Value(connectionKey{}).(*countedConn); ok {
		conn.heldBy("")
	}
}

// heldByUser has the connections of those who are known count with them.
func heldByUser(authenticate func(*http.Request) (identity.Identity, error)) func(*http.Request) (identity.Identity, error) {
	return func(r *http.Request) (identity.Identity, error) {
		id, err := authenticate(r)
		if conn, ok := r.Context().Value(connectionKey{}).(*countedConn); ok && err == nil && id.Valid() {
			conn.heldBy("user " + id.Sharer())
		}
		return id, err
	}
}
