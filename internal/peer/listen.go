// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"net"

	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/limit"
)

// connectionsPerSource is the maximum number of connections from one address. This is more than enough for the replicas
// behind one address. The limit prevents a client that can reach the port from using all connections.
const connectionsPerSource = 32

// bound returns a listener that limits the number of its open connections, both in total and from one address.
func bound(listener net.Listener) net.Listener {
	gate := limit.NewGate(limit.Bounds{User: connectionsPerSource}, limit.Observer{})
	return netutil.LimitListener(boundedListener{listener, gate}, maxConnections)
}

// boundedListener closes new connections from an address that already has too many.
type boundedListener struct {
	net.Listener
	gate *limit.Gate
}

// Accept implements net.Listener.
func (f boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err // net/http examines the listener's errors
		}
		source := limit.Requester{User: limit.Source(conn.RemoteAddr().String())}
		seat, err := f.gate.Enter(context.Background(), source) // never waits
		if err == nil {
			return &boundedConn{conn, seat}, nil
		}
		_ = conn.Close()
	}
}

// boundedConn is a connection that releases its seat when it is closed.
type boundedConn struct {
	net.Conn
	seat *limit.Seat
}

// Close implements net.Conn.
func (s *boundedConn) Close() error {
	s.seat.Release()
	return s.Conn.Close()
}
