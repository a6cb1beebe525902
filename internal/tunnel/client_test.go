// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// brokenConn fails to write, or to set a write deadline, once it is broken.
type brokenConn struct {
	net.Conn
	writes, deadlines atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.writes.Load() {
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}

func (c *brokenConn) SetWriteDeadline(at time.Time) error {
	if c.deadlines.Load() {
		return io.ErrClosedPipe
	}
	return c.Conn.SetWriteDeadline(at)
}

// A request whose own write notices that the connection is broken fails with that reason. It may be sent through
// another tunnel if it only reads.
func TestRequestThatNoticesABrokenConnectionTellsWhy(t *testing.T) {
	for name, breakConn := range map[string]func(*brokenConn){
		"by a write":    func(c *brokenConn) { c.writes.Store(true) },
		"by a deadline": func(c *brokenConn) { c.deadlines.Store(true) },
	} {
		for method, want := range map[string]error{http.MethodGet: ErrNotProcessed, http.MethodPost: ErrPeerClosed} {
			t.Run(method+" "+name, func(t *testing.T) {
				for range 20 {
					hubEnd, agentEnd := net.Pipe()
					conn := &brokenConn{Conn: hubEnd}
					p := overConns(t, Config{}, http.NotFoundHandler(), conn, agentEnd)
					breakConn(conn)
					_, err := whole(p.session.RoundTrip(request(t, method, "/", nil)))
					wantError(t, err, want)
					await(t, "the end of the tunnel", p.session.Done())
					wantError(t, p.session.Err(), ErrPeerClosed)
					if errors.Is(p.session.Err(), errGoodbye) {
						t.Errorf("the tunnel ended with %v, want the error of the connection", p.session.Err())
					}
				}
			})
		}
	}
}

// A violation of HTTP/2 ends the tunnel and its requests, and none of the requests may be sent again, because they
// could break other tunnels.
func TestAgentThatViolatesHTTP2EndsTheTunnel(t *testing.T) {
	for name, frame := range map[string]string{
		"DATA on a stream that the agent opened": "000001000000000002" + "78",
		"a WINDOW_UPDATE of nothing":             "000004080000000000" + "00000000",
		"one acknowledgment too many":            "000000040100000000",
		"a frame that is too long":               "ffffff000000000001",
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
			_, _ = agentEnd.Write(unhex(frame)) // the hub may close the pipe before it has read everything
			await(t, "the end of the tunnel", p.session.Done())
			wantError(t, p.session.Err(), ErrProtocol)
			err := await(t, "the request to fail", failed)
			wantError(t, err, ErrProtocol)
			if errors.Is(err, ErrNotProcessed) {
				t.Errorf("got error %v, want an error that does not allow sending the request again", err)
			}
		})
	}
}

// deafConn accepts no more data once it is deaf.
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

// An agent whose connection accepts no data does not delay a drain beyond its timeout.
func TestDrainEndsInTimeAlthoughTheAgentReadsNothing(t *testing.T) {
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
