// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/drover-dev/drover/internal/limit"
)

// pastDeadline returns a deadline that ends pending reads and writes immediately.
func pastDeadline() time.Time { return time.Unix(1, 0) }

// stopwatch calls cut if a step takes longer than the limit. Steps must not overlap.
type stopwatch struct {
	limit time.Duration
	cut   func()
	timer *time.Timer // created by the first step
}

func (s *stopwatch) start() {
	if s.timer == nil {
		s.timer = time.AfterFunc(s.limit, s.cut)
		return
	}
	s.timer.Reset(s.limit)
}

func (s *stopwatch) stop() { s.timer.Stop() }

// guard wraps a request and its response, and disconnects a user who stalls or sends too much data. The caller must
// call done when the request has ended.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, c *call) (guarded http.ResponseWriter, done func()) {
	control := http.NewResponseController(w)
	// An admitted user may watch for hours. From now on, the stopwatches apply instead of the server's deadlines.
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &guardedBody{
			ReadCloser: http.MaxBytesReader(w, r.Body, h.limits.Body),
			call:       c,
			watch:      stopwatch{limit: h.limits.Stall, cut: h.observer.cutter(SideRequest, control.SetReadDeadline)},
		}
	}
	cut := h.observer.cutter(SideAnswer, control.SetWriteDeadline)
	g := &guardedWriter{
		ResponseWriter: w,
		control:        control,
		observer:       h.observer,
		guardedWrite:   guardedWrite{stopwatch{limit: h.limits.Stall, cut: cut}, h.flow(c, cut)},
	}
	g.reopen = func(cut func()) *limit.Flow { return h.flow(c, cut) }
	return g, func() {
		g.flow.Close()
		// net/http writes the rest of its buffer after the handler has returned, and only then removes the deadline
		if !g.hijacked {
			_ = control.SetWriteDeadline(time.Now().Add(h.limits.Stall))
		}
	}
}

// guardedBody is the body of a request. Reading fails if the body is too large or does not arrive in time.
type guardedBody struct {
	io.ReadCloser
	call  *call
	watch stopwatch
}

// Read implements io.Reader.
func (b *guardedBody) Read(p []byte) (int, error) {
	b.watch.start()
	b.call.clock.pause()
	n, err := b.ReadCloser.Read(p)
	b.call.clock.resume()
	b.watch.stop()
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		b.call.tooLarge.Store(true)
	}
	return n, err
}

// guardedWrite limits how long a write may take, and counts the bytes that the write holds in memory.
type guardedWrite struct {
	watch stopwatch
	flow  *limit.Flow
}

func (g *guardedWrite) begin() {
	g.watch.start()
	g.flow.Begin()
}

func (g *guardedWrite) end() {
	g.flow.End()
	g.watch.stop()
}

// guardedWriter writes a response. It aborts the response if the user does not read it.
type guardedWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	observer Observer
	guardedWrite
	reopen   func(cut func()) *limit.Flow
	hijacked bool
}

// Unwrap lets http.ResponseController find the methods that guardedWriter does not have.
func (g *guardedWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// Write implements io.Writer.
func (g *guardedWriter) Write(p []byte) (int, error) {
	g.begin()
	n, err := g.ResponseWriter.Write(p)
	g.end()
	return n, err
}

// FlushError flushes the response. It is called by http.ResponseController.
func (g *guardedWriter) FlushError() error {
	g.begin()
	err := g.control.Flush()
	g.end()
	return err
}

// Hijack is called for upgrades. It returns the user's connection with the same guards.
func (g *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := g.control.Hijack()
	if err != nil {
		return nil, nil, err // httputil compares the error with http.ErrNotSupported
	}
	g.hijacked = true
	g.flow.Close()
	cut := g.observer.cutter(SideSession, conn.SetWriteDeadline)
	g.flow = g.reopen(cut)
	return &guardedConn{conn, guardedWrite{stopwatch{limit: g.watch.limit, cut: cut}, g.flow}}, buffered, nil
}

// guardedConn is an upgraded connection that is closed if the user does not read the data.
type guardedConn struct {
	net.Conn
	guardedWrite
}

// Write implements io.Writer.
func (c *guardedConn) Write(p []byte) (int, error) {
	c.begin()
	n, err := c.Conn.Write(p)
	c.end()
	return n, err
}

// CloseWrite signals to the user that no more data will be sent. The user can still send data.
func (c *guardedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Side is the part of a request or session that is blocked by a stalling user.
type Side string

// Possible sides.
const (
	SideRequest Side = "request" // the announced body does not arrive in time
	SideAnswer  Side = "answer"  // the user does not read the response
	SideSession Side = "session" // the user does not read the data of an upgraded connection
)

// Observer contains functions that a Handler calls to update metrics. A nil function is not called. The functions may
// be called concurrently and must not block.
type Observer struct {
	// Cut is called each time a stalling user is disconnected.
	Cut func(Side)
}

// cutter returns a function that ends blocked reads or writes by setting a deadline in the past. The function also
// notifies the observer.
func (o Observer) cutter(side Side, setDeadline func(time.Time) error) func() {
	return func() {
		if o.Cut != nil {
			o.Cut(side)
		}
		_ = setDeadline(pastDeadline())
	}
}
