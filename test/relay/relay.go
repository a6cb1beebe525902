// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package relay forwards TCP connections to a server and can simulate faults of a network.
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

// dialLimit bounds a dial to the server, which is on this machine.
const dialLimit = 5 * time.Second

// Options of a Relay.
type Options struct {
	// Proxy makes the relay one for HTTPS_PROXY: each connection begins with CONNECT, and leads to the server whatever
	// that names.
	Proxy bool
	// Seed of the random parts of a Shape.
	Seed uint64
}

// Shape slows a link down. The zero Shape is as fast as this machine.
type Shape struct {
	// Latency of each direction, and up to how much is added to it at random. Data still arrives in the order in which it
	// was sent.
	Latency, Jitter time.Duration
	// BytesPerSecond of each connection in each direction; 0 is no limit.
	BytesPerSecond int
}

// Relay is a link to a server. All methods may be called concurrently.
type Relay struct {
	options  Options
	listener net.Listener
	running  sync.WaitGroup // one for each goroutine
	closed   context.Context
	close    context.CancelFunc
	guarded
}

// guarded is what can be changed while connections are open.
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

// Start starts a relay to a server, on a new loopback address. The caller must Close it.
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

// Close resets all connections and returns when nothing of the relay runs. It is idempotent.
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

// Address returns where the relay listens, as host:port.
func (r *Relay) Address() string { return r.listener.Addr().String() }

// Stall stops all bytes. No connection ends, so neither side notices.
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

// Slow gives the link a shape for all data sent from now on.
func (r *Relay) Slow(shape Shape) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shape = shape
}

// Counts returns how many connections there are, on both sides, and how many were refused.
func (r *Relay) Counts() (open, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns), r.refused
}

// admit notes a connection, or resets it.
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

// flow returns a channel that is closed when bytes may pass.
func (r *Relay) flow() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.flowing
}

// delays returns how long n bytes are under way, and how long they keep the link busy.
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
