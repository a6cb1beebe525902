// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Conn is the agent's end of a tunnel.
type Conn struct {
	link *link
	conn *peekConn // below link
	cfg  Config
}

// NewConn returns the agent's end of a tunnel. The other end of the connection must be a Session. Dialer.Dial calls
// NewConn with a WebSocket, and tests call it with a pipe.
func NewConn(conn net.Conn, cfg Config) *Conn {
	cfg = cfg.withDefaults()
	patient := &peekConn{Conn: conn}
	return &Conn{link: newLink(&joiner{Conn: patient, timeout: cfg.WriteTimeout}, cfg, false), conn: patient, cfg: cfg}
}

// Close immediately ends the tunnel and all its requests. Serve then returns ErrClosed.
func (c *Conn) Close() error {
	c.link.setCause(ErrClosed)
	return c.link.Close()
}

// Serve handles the hub's requests with h until the tunnel ends. It returns the reason why the tunnel ended. This
// reason is never nil. When ctx is done, Serve asks the hub to send no more requests, gives requests in progress
// Config.DrainTimeout to finish, and returns ErrClosed.
//
// An upgrade request (Connection: Upgrade) reaches h as the original HTTP/1.1 request, with a ResponseWriter that
// supports hijacking. Any other request reaches h as an HTTP/2 request. The context of a request ends when the hub
// abandons the request or the tunnel ends. Serve must be called only once.
func (c *Conn) Serve(ctx context.Context, h http.Handler) error {
	if err := c.awaitHub(ctx); err != nil {
		return err
	}
	base := &http.Server{
		MaxHeaderBytes: c.cfg.MaxRequestHeaderBytes, ErrorLog: c.cfg.ErrorLog,
		ReadHeaderTimeout: c.cfg.HandshakeTimeout,
	}
	server := serverSettings(c.cfg, c.link.countError)
	if err := http2.ConfigureServer(base, server); err != nil {
		return errors.Join(fmt.Errorf("serve tunnel: %w", err), c.Close())
	}
	serving := &servingConn{link: c.link, begun: make(chan struct{})}
	stopWatching := context.AfterFunc(ctx, func() { c.drain(base, serving.begun) })
	defer stopWatching()

	server.ServeConn(serving, &http2.ServeConnOpts{
		Context:    context.WithoutCancel(ctx), // requests continue while the tunnel is drained, although ctx has ended
		BaseConfig: base,
		Handler:    &handler{next: h, maxHeaderBytes: c.cfg.MaxHeaderBytes},
	})
	_ = c.link.Close() // ServeConn has already closed the link
	return fmt.Errorf("serve tunnel: %w", c.link.err())
}

// awaitHub waits for the hub's first byte. Otherwise, net/http2 would allow the hub only 2 s after its server has
// started. This is not enough for a hub that accepts thousands of agents at the same time.
func (c *Conn) awaitHub(ctx context.Context) error {
	stopWatching := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stopWatching()
	if err := c.conn.await(c.cfg.HandshakeTimeout); err != nil {
		c.link.setCause(readFailure(err))
		_ = c.link.Close() // the caller needs the reason, not this error
		return fmt.Errorf("serve tunnel: wait for the hub: %w", c.link.err())
	}
	return nil
}

// peekConn is a connection that can wait for its first byte without consuming the byte.
type peekConn struct {
	net.Conn
	first []byte // the byte that await has read but Read has not returned
}

// await returns nil when a byte has arrived, and an error if none arrives in time.
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

// Read first returns the byte that await has read, and then reads from the connection.
func (c *peekConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p) // io.EOF must be returned unchanged
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// servingConn reports when net/http2 writes its first frame. Shutdown does not notify a connection before that, because
// the connection is still unknown to net/http2.
type servingConn struct {
	*link
	once  sync.Once
	begun chan struct{}
}

// Write implements net.Conn.
func (s *servingConn) Write(p []byte) (int, error) {
	s.once.Do(func() { close(s.begun) })
	return s.link.Write(p)
}

// drain asks the hub to send no more requests, and ends the tunnel when DrainTimeout has passed.
func (c *Conn) drain(base *http.Server, begun <-chan struct{}) {
	c.link.setCause(ErrClosed)
	select {
	case <-begun:
	case <-c.link.ended:
	}
	_ = base.Shutdown(context.Background()) // sends GOAWAY; there is no listener to wait for
	select {
	case <-c.link.ended:
	case <-time.After(c.cfg.DrainTimeout):
		_ = c.link.Close() // Serve returns the reason
	}
}

// serverSettings returns the settings for the agent's HTTP/2 server. SPEC.md explains the reasons.
func serverSettings(cfg Config, countError func(string)) *http2.Server {
	return &http2.Server{
		MaxConcurrentStreams:         maxStreams,
		MaxUploadBufferPerConnection: 1<<31 - 1,
		MaxUploadBufferPerStream:     int32(cfg.MaxStreamWindow), // see the type windows
		MaxReadFrameSize:             maxFrameSize,
		ReadIdleTimeout:              cfg.PingInterval,
		PingTimeout:                  cfg.PingTimeout,
		WriteByteTimeout:             cfg.WriteTimeout,
		CountError:                   countError,
	}
}
