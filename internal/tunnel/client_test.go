// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// brokenConn fails to write once it is broken.
type brokenConn struct {
	net.Conn
	broken atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.broken.Load() {
		return 0, errors.New("broken")
	}
	return c.Conn.Write(p)
}

// A GET whose own write notices that the connection is broken may be sent through another tunnel.
func TestARequestThatBreaksTheConnectionMayBeSentAgain(t *testing.T) {
	for range 20 {
		hubEnd, agentEnd := net.Pipe()
		conn := &brokenConn{Conn: hubEnd}
		p := overConns(t, Config{}, http.NotFoundHandler(), conn, agentEnd)
		conn.broken.Store(true)
		_, err := whole(p.session.RoundTrip(request(t, http.MethodGet, "/", nil)))
		wantError(t, err, ErrNotProcessed)
	}
}

// What violates HTTP/2 ends the tunnel and its requests, and none of them may be sent again: it must not break other tunnels.
func TestAnAgentThatViolatesHTTP2EndsTheTunnel(t *testing.T) {
	for name, frame := range map[string]string{
		"DATA of a stream of its own":      "000001000000000002" + "78",
		"a WINDOW_UPDATE of nothing":       "000004080000000000" + "00000000",
		"an acknowledgement too many":      "000000040100000000",
		"a frame that is longer than told": "ffffff000000000001",
	} {
		t.Run(name, func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			arrived := make(chan struct{})
			p := overConns(t, Config{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				close(arrived)
				<-r.Context().Done()
			}), hubEnd, agentEnd)
			failed := make(chan error, 1)
			go func() {
				_, err := whole(p.session.RoundTrip(request(t, http.MethodGet, "/", nil)))
				failed <- err
			}()
			await(t, "the handler to see the request", arrived)
			_, _ = agentEnd.Write(unhex(frame)) // the hub may close the pipe before it has read all of it
			await(t, "the end of the tunnel", p.session.Done())
			wantError(t, p.session.Err(), ErrProtocol)
			err := await(t, "the request to fail", failed)
			wantError(t, err, ErrProtocol)
			if errors.Is(err, ErrNotProcessed) {
				t.Errorf("got error %v, want one that does not let the request be sent again", err)
			}
		})
	}
}

// deafConn takes nothing more once it is deaf.
type deafConn struct {
	net.Conn
	deaf   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// An agent whose connection takes nothing does not hold up a drain beyond its time.
func TestADrainEndsInItsTimeAlthoughNothingIsTaken(t *testing.T) {
	hubEnd, agentEnd := net.Pipe()
	conn := &deafConn{Conn: hubEnd, closed: make(chan struct{})}
	p := overConns(t, Config{}, http.NotFoundHandler(), conn, agentEnd)
	conn.deaf.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.session.Drain(ctx)
	}()
	await(t, "the end of the drain", ended)
}
