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
)

// aLongTimeAgo is a deadline that ends what waits at once.
func aLongTimeAgo() time.Time { return time.Unix(1, 0) }

// stopwatch calls cut when one step takes longer than limit. Steps must not overlap.
type stopwatch struct {
	limit time.Duration
	cut   func()
	timer *time.Timer // made by the first step
}

func (s *stopwatch) start() {
	if s.timer == nil {
		s.timer = time.AfterFunc(s.limit, s.cut)
		return
	}
	s.timer.Reset(s.limit)
}

func (s *stopwatch) stop() { s.timer.Stop() }

// guard prepares a request and its answer so that a user who stalls, or sends too much, is cut off. Call done at the end.
func (h *Handler) guard(w http.ResponseWriter, r *http.Request, c *call) (guarded http.ResponseWriter, done func()) {
	control := http.NewResponseController(w)
	// Whoever got here may watch for hours; from here on the stopwatches judge, not the server's deadlines.
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &guardedBody{
			ReadCloser: http.MaxBytesReader(w, r.Body, h.limits.Body),
			call:       c,
			watch:      stopwatch{limit: h.limits.Stall, cut: func() { _ = control.SetReadDeadline(aLongTimeAgo()) }},
		}
	}
	g := &guardedWriter{
		ResponseWriter: w,
		control:        control,
		watch:          stopwatch{limit: h.limits.Stall, cut: func() { _ = control.SetWriteDeadline(aLongTimeAgo()) }},
	}
	return g, func() {
		if !g.hijacked { // what net/http still holds is written after the handler; net/http takes the deadline away afterwards
			_ = control.SetWriteDeadline(time.Now().Add(h.limits.Stall))
		}
	}
}

// guardedBody is a request's body that ends when it is too large or does not come.
type guardedBody struct {
	io.ReadCloser
	call  *call
	watch stopwatch
}

// Read implements io.Reader.
func (b *guardedBody) Read(p []byte) (int, error) {
	b.watch.start()
	n, err := b.ReadCloser.Read(p)
	b.watch.stop()
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		b.call.tooLarge.Store(true)
	}
	return n, err
}

// guardedWriter is an answer that ends when the user does not take it.
type guardedWriter struct {
	http.ResponseWriter
	control  *http.ResponseController
	watch    stopwatch
	hijacked bool
}

// Unwrap lets http.ResponseController find what guardedWriter does not do itself.
func (g *guardedWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// Write implements io.Writer.
func (g *guardedWriter) Write(p []byte) (int, error) {
	g.watch.start()
	n, err := g.ResponseWriter.Write(p)
	g.watch.stop()
	return n, err
}

// FlushError is what http.ResponseController calls to flush.
func (g *guardedWriter) FlushError() error {
	g.watch.start()
	err := g.control.Flush()
	g.watch.stop()
	return err
}

// Hijack hands out the user's connection, guarded in the same way. It is what upgrades call.
func (g *guardedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := g.control.Hijack()
	if err != nil {
		return nil, nil, err // httputil compares it with http.ErrNotSupported
	}
	g.hijacked = true
	return &guardedConn{
		Conn:  conn,
		watch: stopwatch{limit: g.watch.limit, cut: func() { _ = conn.SetWriteDeadline(aLongTimeAgo()) }},
	}, buffered, nil
}

// guardedConn is an upgraded connection that ends when the user does not take what is written.
type guardedConn struct {
	net.Conn
	watch stopwatch
}

// Write implements io.Writer.
func (c *guardedConn) Write(p []byte) (int, error) {
	c.watch.start()
	n, err := c.Conn.Write(p)
	c.watch.stop()
	return n, err
}

// CloseWrite tells the user that nothing more comes, while he may still send.
func (c *guardedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
