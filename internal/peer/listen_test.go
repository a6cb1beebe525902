// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"fmt"
	"net"
	"testing"
)

// arriving is a listener that accepts the connections in the channel.
type arriving chan net.Conn

func (a arriving) Accept() (net.Conn, error) { return <-a, nil }
func (a arriving) Close() error              { return nil }
func (a arriving) Addr() net.Addr            { return &net.TCPAddr{} }

type from struct {
	net.Conn
	address *net.TCPAddr
	closed  *bool
}

func (f from) RemoteAddr() net.Addr { return f.address }
func (f from) Close() error {
	*f.closed = true
	return nil
}

func TestClientWithTooManyConnectionsLeavesRoomForOthers(t *testing.T) {
	conns := make(arriving, 2*connectionsPerSource)
	come := func(host string, port int) *bool {
		closed := new(bool)
		conns <- from{address: &net.TCPAddr{IP: net.ParseIP(host), Port: port}, closed: closed}
		return closed
	}
	listener := bound(conns)
	accept := func(want string) net.Conn {
		t.Helper()
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.RemoteAddr().String(); got != want {
			t.Fatalf("accepted %s, want %s", got, want)
		}
		return conn
	}
	var first net.Conn
	for port := range connectionsPerSource {
		come("192.0.2.1", port)
		conn := accept(fmt.Sprintf("192.0.2.1:%d", port))
		if first == nil {
			first = conn
		}
	}
	refused := come("192.0.2.1", 1000)
	come("192.0.2.2", 1)
	accept("192.0.2.2:1")
	if !*refused {
		t.Error("a connection beyond the bound is open, want it closed")
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	come("192.0.2.1", 1001)
	accept("192.0.2.1:1001")
}
