// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package relay forwards TCP connections to a server, and can simulate network faults.
package relay

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// dialLimit is the time limit for dialing the server, which is on this machine.
const dialLimit = 5 * time.Second

// Options are the options of a Relay.
type Options struct {
	// Proxy makes the relay a proxy for HTTPS_PROXY. Each connection starts with CONNECT, and is forwarded to the server
	// regardless of its target.
	Proxy bool
	// Seed is the seed of the random parts of a Shape.
	Seed uint64
}

// Shape slows down a link. The zero Shape does not slow it down.
type Shape struct {
	// Latency is the latency of each direction, and Jitter is the maximum of a random addition to it. Data arrives in the
	// order in which it was sent.
	Latency, Jitter time.Duration
	// BytesPerSecond is the maximum rate of each connection in each direction. 0 means no limit.
	BytesPerSecond int
}

// Relay is a link to a server. All methods are safe for concurrent use.
type Relay struct {
	options  Options
	listener net.Listener
	running  sync.WaitGroup // one for each goroutine
	closed   context.Context
	close    context.CancelFunc
	guarded
}

// guarded contains the fields that can change while connections are open.
type guarded struct {
	mu       sync.Mutex // guards what follows
	server   string
	flowing  chan struct{} // is closed while bytes flow
	shape    Shape
	random   *rand.Rand
	refusing bool
	refused  int // connections that were reset when they came
	conns    map[*net.TCPConn]bool
}

// Start starts a relay to a server, on a new loopback address. The caller must close it.
func Start(ctx context.Context, server string, options Options) (*Relay, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start relay to %s: %w", server, err)
	}
	r := &Relay{options: options, listener: listener, guarded: guarded{
		server: server, flowing: make(chan struct{}), conns: map[*net.TCPConn]bool{}, random: rand.New(rand.NewPCG(options.Seed, 0)),
	}}
	close(r.flowing)
	r.closed, r.close = context.WithCancel(context.WithoutCancel(ctx))
	r.running.Go(r.accept)
	return r, nil
}

// Close resets all connections, and returns when all goroutines of the relay have ended. It is idempotent.
func (r *Relay) Close() error {
	r.close()
	err := r.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	r.Refuse(true) // connections accepted at this moment
	r.Cut()
	r.running.Wait()
	return err
}

// Address returns the address of the relay, in the format host:port.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Stall stops all traffic. No connection ends, so neither end detects it.
func (r *Relay) Stall() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stalled() {
		r.flowing = make(chan struct{})
	}
}

// Flow ends a stall.
func (r *Relay) Flow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stalled() {
		close(r.flowing)
	}
}

func (g *guarded) stalled() bool {
	select {
	case <-g.flowing:
		return false
	default:
		return true
	}
}

// Cut resets all connections.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.conns {
		reset(conn)
	}
	clear(r.conns)
}

// Refuse sets whether new connections are reset.
func (r *Relay) Refuse(refuse bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusing = refuse
}

// Redirect forwards new connections to another server.
func (r *Relay) Redirect(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// Slow sets the shape of the link for all data that is sent from now on.
func (r *Relay) Slow(shape Shape) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shape = shape
}

// Counts returns the number of open connections at both ends, and the number of refused connections.
func (r *Relay) Counts() (open, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns), r.refused
}

// admit records a connection, or resets it.
func (r *Relay) admit(conn *net.TCPConn) bool {
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

func (r *Relay) end(conn *net.TCPConn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, conn)
}

func (r *Relay) target() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server
}

// flow returns a channel that is closed when bytes may flow.
func (r *Relay) flow() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flowing
}

// delays returns the latency of n bytes, and how long they occupy the link.
func (r *Relay) delays(n int) (travel, busy time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	travel = r.shape.Latency
	if r.shape.Jitter > 0 {
		travel += time.Duration(r.random.Int64N(int64(r.shape.Jitter)))
	}
	if r.shape.BytesPerSecond > 0 {
		busy = time.Duration(n) * time.Second / time.Duration(r.shape.BytesPerSecond)
	}
	return travel, busy
}

func reset(conn *net.TCPConn) {
	_ = conn.SetLinger(0)
	_ = conn.Close()
}
