// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package balancer

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

// backend greets with its address and echoes everything.
type backend struct {
	listener net.Listener

	mu    sync.Mutex // guards what follows
	ready bool
	conns []*net.TCPConn
}

func newBackend(t *testing.T) *backend {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{listener: listener, ready: true}
	t.Cleanup(b.die)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns = append(b.conns, conn.(*net.TCPConn))
			b.mu.Unlock()
			go func() {
				_, _ = io.WriteString(conn, b.address())
				_, _ = io.Copy(conn, conn)
				_ = conn.(*net.TCPConn).CloseWrite()
			}()
		}
	}()
	return b
}

func (b *backend) address() string { return b.listener.Addr().String() }

func (b *backend) setReady(ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = ready
}

// die resets open connections, as the kernel does for a process that is killed with unread bytes.
func (b *backend) die() {
	_ = b.listener.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ready = false
	for _, conn := range b.conns {
		reset(conn)
	}
}

func start(t *testing.T, backends ...*backend) *Balancer {
	t.Helper()
	by := map[string]*backend{}
	for _, b := range backends {
		by[b.address()] = b
	}
	balancer, err := Start(t.Context(), slices.Sorted(maps.Keys(by)), func(_ context.Context, address string) error {
		by[address].mu.Lock()
		defer by[address].mu.Unlock()
		if !by[address].ready {
			return errors.New("not ready")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := balancer.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, b := range backends {
		await(t, balancer, b, true)
	}
	return balancer
}

func await(t *testing.T, balancer *Balancer, b *backend, ready bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := balancer.Await(ctx, b.address(), ready); err != nil {
		t.Fatal(err)
	}
}

// connect returns a connection and the backend that greets on it.
func connect(t *testing.T, balancer *Balancer) (*net.TCPConn, string, error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", balancer.Address())
	if err != nil {
		return nil, "", err
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	greeting := make([]byte, 100)
	n, err := conn.Read(greeting)
	return conn.(*net.TCPConn), string(greeting[:n]), err
}

func TestConnectionsGoRoundTheReadyBackends(t *testing.T) {
	backends := []*backend{newBackend(t), newBackend(t), newBackend(t)}
	balancer := start(t, backends...)
	count := func(n int) map[string]int {
		counts := map[string]int{}
		for range n {
			_, who, err := connect(t, balancer)
			if err != nil {
				t.Fatal(err)
			}
			counts[who]++
		}
		return counts
	}
	if got := count(9); got[backends[0].address()] != 3 || got[backends[1].address()] != 3 || got[backends[2].address()] != 3 {
		t.Errorf("all ready: %v", got)
	}
	backends[1].setReady(false)
	await(t, balancer, backends[1], false)
	if got := count(6); got[backends[0].address()] != 3 || got[backends[2].address()] != 3 {
		t.Errorf("one not ready: %v", got)
	}
	backends[1].setReady(true)
	await(t, balancer, backends[1], true)
	if got := count(3); len(got) != 3 {
		t.Errorf("ready again: %v", got)
	}
}

func TestBackendThatRefusesConnectionsIsSkipped(t *testing.T) {
	dead, alive := newBackend(t), newBackend(t)
	balancer := start(t, dead, alive)
	_ = dead.listener.Close() // it still says that it is ready
	for range 4 {
		if _, who, err := connect(t, balancer); err != nil || who != alive.address() {
			t.Fatalf("connected to %q, %v, want the backend that lives", who, err)
		}
	}
}

func TestAConnectionOutlivesReadinessButNotItsBackend(t *testing.T) {
	b := newBackend(t)
	balancer := start(t, b)
	conn, _, err := connect(t, balancer)
	if err != nil {
		t.Fatal(err)
	}
	b.setReady(false)
	await(t, balancer, b, false)
	if _, err := io.WriteString(conn, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("a backend that is not ready: %v", err)
	}
	b.die()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a backend that died: %v", err)
	}
	if _, _, err := connect(t, balancer); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("no backend: %v", err)
	}
}

func TestOneDirectionEndsWithoutTheOther(t *testing.T) {
	balancer := start(t, newBackend(t))
	conn, _, err := connect(t, balancer)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "last words"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(conn); err != nil || string(rest) != "last words" {
		t.Errorf("got %q, %v, want the last words and no error", rest, err)
	}
}

func TestCloseEndsAllConnections(t *testing.T) {
	balancer := start(t, newBackend(t))
	conn, _, err := connect(t, balancer)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(balancer.Close(), balancer.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
}
