// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// dialer dials the hub with a simulated network latency.
type dialer struct {
	through []string // addresses in place of the hub's, none for that
	oneWay  time.Duration
	taken   atomic.Uint64
}

// dial connects to the next address that responds. The latency of the whole round trip is added to the data that the
// agent sends. Neither end can tell the difference, and received data needs no goroutine of its own.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if !wait(ctx, 2*d.oneWay) { // SYN and its answer
		return nil, ctx.Err()
	}
	addresses := d.through
	if len(addresses) == 0 {
		addresses = []string{address}
	}
	var errs []error
	for range addresses {
		next := addresses[d.taken.Add(1)%uint64(len(addresses))]
		conn, err := (&net.Dialer{}).DialContext(ctx, network, next)
		switch {
		case err != nil:
			errs = append(errs, err)
		case d.oneWay > 0:
			return &distantConn{Conn: conn, roundTrip: 2 * d.oneWay}, nil
		default:
			return conn, nil
		}
	}
	return nil, errors.Join(errs...)
}

// distantConn sends written data after a delay, in order. Closing it drops data that has not been sent yet. It buffers
// all written data, whose amount is limited by HTTP/2.
type distantConn struct {
	net.Conn
	roundTrip time.Duration

	mu      sync.Mutex // guards what follows
	pieces  []sent
	sending bool  // whether a timer is set, or its function runs
	err     error // of the write that failed
}

// sent contains the bytes of one write, and the time at which to send them.
type sent struct {
	bytes []byte
	due   time.Time
}

// Write implements net.Conn.
func (c *distantConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	c.pieces = append(c.pieces, sent{append([]byte(nil), p...), time.Now().Add(c.roundTrip)})
	if !c.sending {
		c.sending = true
		time.AfterFunc(c.roundTrip, c.send)
	}
	return len(p), nil
}

// send writes the data that is due, and sets the timer for the rest.
func (c *distantConn) send() {
	for {
		c.mu.Lock()
		if len(c.pieces) == 0 || c.err != nil {
			c.pieces, c.sending = nil, false
			c.mu.Unlock()
			return
		}
		first := c.pieces[0]
		if left := time.Until(first.due); left > 0 {
			time.AfterFunc(left, c.send)
			c.mu.Unlock()
			return
		}
		c.pieces = c.pieces[1:]
		c.mu.Unlock()
		if _, err := c.Conn.Write(first.bytes); err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}
}
