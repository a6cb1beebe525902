// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"sync"
	"testing"
)

// relay passes TCP connections on to a server, and can be told to behave as networks do on bad days.
type relay struct {
	listener net.Listener
	running  sync.WaitGroup // one for each goroutine

	mu       sync.Mutex // guards what follows
	server   string
	flowing  chan struct{}
	refusing bool
	refused  int // connections that were reset when they came
	conns    map[*net.TCPConn]bool
	closed   chan struct{}
}

// startRelay starts a relay to a server that ends with the test.
func startRelay(t *testing.T, server string) *relay {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, server: server, flowing: make(chan struct{}), conns: map[*net.TCPConn]bool{}, closed: make(chan struct{})}
	close(r.flowing)
	r.running.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		close(r.closed)
		r.cut()
		r.running.Wait()
	})
	return r
}

// url is the hub's base URL by way of the relay.
func (r *relay) url() string { return "https://" + r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		if in, ok := conn.(*net.TCPConn); ok && r.admit(in) {
			r.running.Go(func() { r.serve(in) })
		}
	}
}

// admit notes a connection, or resets it.
func (r *relay) admit(conn *net.TCPConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refusing {
		r.refused++
		reset(conn)
		return false
	}
	r.conns[conn] = true
	return true
}

func (r *relay) serve(in *net.TCPConn) {
	defer r.end(in)
	r.mu.Lock()
	server := r.server
	r.mu.Unlock()
	conn, err := (&net.Dialer{}).Dial("tcp", server)
	if err != nil {
		return
	}
	out, ok := conn.(*net.TCPConn)
	if !ok || !r.admit(out) {
		return
	}
	defer r.end(out)
	var both sync.WaitGroup
	both.Go(func() { r.carry(in, out) })
	both.Go(func() { r.carry(out, in) })
	both.Wait()
}

func (r *relay) end(conn *net.TCPConn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

// carry passes bytes on, and their end too, while bytes flow.
func (r *relay) carry(from, to *net.TCPConn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		r.mu.Lock()
		flowing := r.flowing
		r.mu.Unlock()
		select {
		case <-flowing:
		case <-r.closed:
			return
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// stall lets nothing through any more and says so to nobody: no connection ends.
func (r *relay) stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flowing = make(chan struct{})
}

// flow ends a stall.
func (r *relay) flow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.flowing)
}

// cut resets all connections.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		reset(conn)
	}
	clear(r.conns)
}

// refuse says whether new connections are reset.
func (r *relay) refuse(refuse bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusing = refuse
}

// redirect leads new connections to another server.
func (r *relay) redirect(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// counts are how many connections there are, on both sides, and how many were refused.
func (r *relay) counts() (open, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns), r.refused
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
