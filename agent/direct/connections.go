// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits on users' connections.
const (
	// maxConnections is the maximum number of connections from all clients, and maxClient is the maximum from one
	// address. At least eight addresses are needed to use up all connections.
	maxConnections, maxClient = 1024, 128
	// provenWithin is how long a new connection may stay open without a request that has an accepted token.
	provenWithin = 30 * time.Second
)

// connections is a listener that limits the number of connections, in total and per client. It closes connections that
// exceed a limit, because making them wait would also delay other clients.
type connections struct {
	net.Listener
	all, ofClient int           // maximum number of connections, in total and from one client
	within        time.Duration // provenWithin, or 0 for no limit
	metrics       *metrics

	mu      sync.Mutex // guards the fields below
	open    int
	clients map[netip.Prefix]int
}

// Accept waits for a connection that is within the limits.
func (l *connections) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr())
		if !l.enter(client) {
			_ = conn.Close()
			continue
		}
		c := &connection{Conn: conn, leave: sync.OnceFunc(func() { l.leave(client) })}
		if l.within > 0 {
			c.unproven = time.AfterFunc(l.within, func() {
				l.metrics.unproven.Add(1)
				_ = conn.Close()
				c.leave()
			})
		}
		return c, nil
	}
}

// clientOf returns the part of an address that identifies one client. This is an IPv4 address or an IPv6 network,
// because a machine can use any address in its IPv6 network.
func clientOf(a net.Addr) netip.Prefix {
	from, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.Prefix{} // all other addresses count as one client
	}
	ip, bits := from.Addr().Unmap(), 32
	if ip.Is6() {
		bits = 64
	}
	client, _ := ip.WithZone("").Prefix(bits)
	return client
}

func (l *connections) enter(client netip.Prefix) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.open >= l.all:
		l.metrics.tooMany.Add(1)
		return false
	case l.clients[client] >= l.ofClient:
		l.metrics.tooManyOfClient.Add(1)
		return false
	}
	if l.clients == nil {
		l.clients = map[netip.Prefix]int{}
	}
	l.open++
	l.clients[client]++
	l.metrics.connections.Add(1)
	return true
}

func (l *connections) leave(client netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	if l.clients[client]--; l.clients[client] == 0 {
		delete(l.clients, client)
	}
	l.metrics.connections.Add(-1)
}

// connection is a connection that counts toward the limits until it is closed.
type connection struct {
	net.Conn
	leave    func()
	unproven *time.Timer // closes the connection unless a token is accepted in time; nil if no token is required
}

// Close closes the connection, which then no longer counts toward the limits.
func (c *connection) Close() error {
	if c.unproven != nil {
		c.unproven.Stop()
	}
	defer c.leave()
	return c.Conn.Close()
}

// connectionKey is the context key for a request's connection.
type connectionKey struct{}

// withConnection is the http.Server.ConnContext function. It stores the connection in the context of its requests.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = secure.NetConn()
	}
	return context.WithValue(ctx, connectionKey{}, conn)
}

// proven allows r's connection to stay open. It is called once the token in r has been accepted.
func proven(r *http.Request) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok && c.unproven != nil {
		c.unproven.Stop()
	}
}
