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

// dialer dials the hub, through a simulated distance.
type dialer struct {
	through []string // addresses in place of the hub's, none for that
	oneWay  time.Duration
	taken   atomic.Uint64
}

// dial opens a connection to the next address that answers. The whole of a round trip is put on what the agent sends:
// neither end can tell the difference, and received data needs no goroutine of its own.
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

// distantConn sends written data after a delay, in order. Data in flight is lost when it is closed. It holds as
// much as is written: HTTP/2 bounds that.
type distantConn struct {
	net.Conn
	roundTrip time.Duration

	mu      sync.Mutex // guards what follows
	pieces  []sent
	sending bool  // whether a timer is set, or its function runs
	err     error // of the write that failed
}

// sent has the bytes of one write, and the time at which they go out.
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
