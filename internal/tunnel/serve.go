// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/http2"
)

// Conn is the agent's end of a tunnel.
type Conn struct {
	link *link
	conn *peekConn // below link
	cfg  Config
}

// NewConn makes the agent's end of a connection whose other end is a Session. Dialer.Dial does it for WebSockets;
// tests do it for a pipe.
func NewConn(conn net.Conn, cfg Config) *Conn {
	cfg = cfg.withDefaults()
	patient := &peekConn{Conn: conn}
	return &Conn{link: newLink(&joiner{Conn: patient, timeout: cfg.WriteTimeout}, cfg, false), conn: patient, cfg: cfg}
}

// Close ends the tunnel and all its requests at once. Serve then returns ErrClosed.
func (c *Conn) Close() error {
	c.link.setCause(ErrClosed)
	return c.link.Close()
}

// Serve answers the hub's requests with h until the tunnel ends, and returns why; never nil. When ctx ends, the hub
// is asked to send no more requests, those under way may go on for Config.DrainTimeout, and Serve returns ErrClosed.
//
// An upgrade (Connection: Upgrade) reaches h as the HTTP/1.1 request that it was at the hub, with a ResponseWriter
// that can be hijacked; anything else as an HTTP/2 request. A request's context ends when the hub gives the request
// up or the tunnel ends. Call Serve once.
func (c *Conn) Serve(ctx context.Context, h http.Handler) error {
	if err := c.awaitHub(ctx); err != nil {
		return err
	}
	base := &http.Server{
		MaxHeaderBytes: c.cfg.MaxRequestHeaderBytes, ErrorLog: c.cfg.ErrorLog, ReadHeaderTimeout: c.cfg.HandshakeTimeout,
	}
	server := serverSettings(c.cfg, c.link.countError)
	if err := http2.ConfigureServer(base, server); err != nil {
		return errors.Join(fmt.Errorf("serve tunnel: %w", err), c.Close())
	}
	stopWatching := context.AfterFunc(ctx, func() { c.drain(base) })
	defer stopWatching()

	server.ServeConn(c.link, &http2.ServeConnOpts{
		Context:    context.WithoutCancel(ctx), // requests outlive ctx while draining
		BaseConfig: base,
		Handler:    &handler{next: h, maxHeaderBytes: c.cfg.MaxHeaderBytes},
	})
	_ = c.link.Close() // ServeConn did it
	return fmt.Errorf("serve tunnel: %w", c.link.err())
}

// awaitHub waits for the hub's first byte: net/http2 gives a hub 2 s from its start, too little for one that accepts
// thousands of agents at once.
func (c *Conn) awaitHub(ctx context.Context) error {
	stopWatching := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stopWatching()
	if err := c.conn.await(c.cfg.HandshakeTimeout); err != nil {
		c.link.setCause(readFailure(err))
		_ = c.link.Close() // the reason is what the caller needs
		return fmt.Errorf("serve tunnel: wait for the hub: %w", c.link.err())
	}
	return nil
}

// peekConn can wait for the first byte without losing it.
type peekConn struct {
	net.Conn
	first []byte // read by await and not yet by Read
}

// await returns when a byte has come, or with an error when none has in time.
func (c *peekConn) await(timeout time.Duration) error {
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	buffer := make([]byte, len(http2.ClientPreface))
	n, err := c.Conn.Read(buffer)
	if err != nil {
		return fmt.Errorf("read preface: %w", err)
	}
	c.first = buffer[:n]
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("clear deadline: %w", err)
	}
	return nil
}

// Read returns what await has read and then what comes.
func (c *peekConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p) // io.EOF must stay what it is
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// drain asks the hub for no more requests, and ends the tunnel when the time for those under way is over.
func (c *Conn) drain(base *http.Server) {
	c.link.setCause(ErrClosed)
	_ = base.Shutdown(context.Background()) // sends GOAWAY; there is no listener to wait for
	select {
	case <-c.link.ended:
	case <-time.After(c.cfg.DrainTimeout):
		_ = c.link.Close() // Serve returns the reason
	}
}

// serverSettings has the settings of the agent's HTTP/2 server. SPEC.md says why they are so.
func serverSettings(cfg Config, countError func(string)) *http2.Server {
	return &http2.Server{
		MaxConcurrentStreams:         maxStreams,
		MaxUploadBufferPerConnection: 1<<31 - 1,
		MaxUploadBufferPerStream:     int32(cfg.MaxStreamWindow), // see windows
		MaxReadFrameSize:             maxFrameSize,
		ReadIdleTimeout:              cfg.PingInterval,
		PingTimeout:                  cfg.PingTimeout,
		WriteByteTimeout:             cfg.WriteTimeout,
		CountError:                   countError,
	}
}
