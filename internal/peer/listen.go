// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"net"

	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/limit"
)

// connectionsPerSource is more than all replicas of one address have: whoever else may reach the port can't take it from them.
const connectionsPerSource = 32

// bound bounds the connections that a listener has open, in all and from one address.
func bound(listener net.Listener) net.Listener {
	return netutil.LimitListener(fair{listener, limit.NewGate(limit.Bounds{User: connectionsPerSource}, limit.Observer{})}, maxConnections)
}

// fair closes connections of who has too many already.
type fair struct {
	net.Listener
	gate *limit.Gate
}

// Accept implements net.Listener.
func (f fair) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err // net/http knows the listener's errors
		}
		seat, err := f.gate.Enter(context.Background(), limit.Asker{User: limit.Source(conn.RemoteAddr().String())}) // never waits
		if err == nil {
			return &seated{conn, seat}, nil
		}
		_ = conn.Close()
	}
}

// seated is a connection that gives its seat back.
type seated struct {
	net.Conn
	seat *limit.Seat
}

// Close implements net.Conn.
func (s *seated) Close() error {
	s.seat.Release()
	return s.Conn.Close()
}
