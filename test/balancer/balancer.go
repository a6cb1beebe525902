// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package balancer distributes TCP connections among the ready backends of several, like the Service of a Deployment.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	checkEvery  = 200 * time.Millisecond
	checkLimit  = 2 * time.Second
	dialTimeout = 2 * time.Second
)

// Check returns the reason why a backend is not ready, or nil if it is ready.
type Check func(ctx context.Context, backend string) error

// Balancer forwards each new connection to the next ready backend. Existing connections to a backend that is no longer
// ready are kept. If a backend exits, its connections end in the same way at the client. All methods are safe for
// concurrent use.
type Balancer struct {
	backends []string
	check    Check
	listener net.Listener
	running  sync.WaitGroup // one for each goroutine
	closed   context.Context
	close    context.CancelFunc

	mu      sync.Mutex // guards what follows
	ready   []bool     // of backends
	next    int
	changed chan struct{} // is closed when ready changes
	conns   map[*net.TCPConn]bool
}

// Start starts a balancer on a new loopback address. The caller must close it.
func Start(ctx context.Context, backends []string, check Check) (*Balancer, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start balancer: %w", err)
	}
	b := &Balancer{backends: slices.Clone(backends), check: check, listener: listener,
		ready: make([]bool, len(backends)), changed: make(chan struct{}), conns: map[*net.TCPConn]bool{}}
	b.closed, b.close = context.WithCancel(context.WithoutCancel(ctx))
	b.running.Go(b.accept)
	for i := range b.backends {
		b.running.Go(func() { b.watch(i) })
	}
	return b, nil
}

// Address returns the address of the balancer, in the format host:port.
func (b *Balancer) Address() string { return b.listener.Addr().String() }

// Close resets all connections, and returns when all goroutines of the balancer have ended. It is idempotent.
func (b *Balancer) Close() error {
	b.close()
	err := b.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	b.mu.Lock()
	for conn := range b.conns {
		reset(conn)
	}
	b.mu.Unlock()
	b.running.Wait()
	return err
}

// Await waits until a backend is ready, or is not ready. It returns an error if ctx ends first.
func (b *Balancer) Await(ctx context.Context, backend string, ready bool) error {
	i := slices.Index(b.backends, backend)
	if i < 0 {
		return fmt.Errorf("await %s: the balancer does not lead there", backend)
	}
	for {
		b.mu.Lock()
		is, changed := b.ready[i], b.changed
		b.mu.Unlock()
		if is == ready {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("await backend %s, ready %t: %w", backend, ready, ctx.Err())
		}
	}
}

// watch checks repeatedly whether a backend is ready.
func (b *Balancer) watch(i int) {
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for {
		ctx, cancel := context.WithTimeout(b.closed, checkLimit)
		err := b.check(ctx, b.backends[i])
		cancel()
		b.set(i, err == nil)
		select {
		case <-tick.C:
		case <-b.closed.Done():
			return
		}
	}
}

func (b *Balancer) set(i int, ready bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ready[i] != ready {
		b.ready[i] = ready
		close(b.changed)
		b.changed = make(chan struct{})
	}
}

func (b *Balancer) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return
		}
		if in, ok := conn.(*net.TCPConn); ok && b.admit(in) {
			b.running.Go(func() { b.serve(in) })
		}
	}
}

// admit records a connection, so that Close ends it, or resets it if the balancer is closed.
func (b *Balancer) admit(conn *net.TCPConn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed.Err() != nil {
		reset(conn)
		return false
	}
	b.conns[conn] = true
	return true
}

func (b *Balancer) end(conn *net.TCPConn) {
	_ = conn.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, conn)
}

func (b *Balancer) serve(in *net.TCPConn) {
	defer b.end(in)
	out := b.dial()
	if out == nil {
		reset(in)
		return
	}
	defer b.end(out)
	var both sync.WaitGroup
	both.Go(func() { carry(in, out) })
	both.Go(func() { carry(out, in) })
	both.Wait()
}

// dial tries each ready backend once, starting with the next one. It returns nil if none of them accepts a connection.
func (b *Balancer) dial() *net.TCPConn {
	for range b.backends {
		i := b.nextReady()
		if i < 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(b.closed, dialTimeout)
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.backends[i])
		cancel()
		if err != nil {
			b.set(i, false) // until its next check
			continue
		}
		if out, ok := conn.(*net.TCPConn); ok && b.admit(out) {
			return out
		}
	}
	return nil
}

// nextReady returns the next ready backend, or -1 if there is none.
func (b *Balancer) nextReady() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.backends {
		i := b.next
		b.next = (b.next + 1) % len(b.backends)
		if b.ready[i] {
			return i
		}
	}
	return -1
}

// carry copies the bytes of one direction, and ends the destination in the same way as the source ended.
func carry(from, to *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		reset(to)
		reset(from)
		return
	}
	_ = to.CloseWrite()
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
