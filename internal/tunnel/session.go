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
	"sync/atomic"
	"time"

	"github.com/drover-dev/drover/internal/tunnel/h2"
)

// Session is the hub's end of a tunnel. It is an http.RoundTripper that sends requests to one agent. All methods are
// safe for concurrent use. An idle session has a single goroutine, the reader.
type Session struct {
	client         *h2.Client
	link           *link
	maxHeaderBytes int
	repeatable     func(*http.Request) bool
	keepalive      *keepalive
	streams        atomic.Int64
	draining       chan struct{} // closed by the first Drain
	drainOnce      sync.Once
}

// NewSession starts a session. The other end of the connection must be a Conn. Accept calls NewSession with a
// WebSocket, and tests call it with a pipe. NewSession returns when the agent has responded to a first ping. If the
// agent does not respond within Config.HandshakeTimeout, or if ctx is done first, NewSession closes the connection.
func NewSession(ctx context.Context, conn net.Conn, cfg Config) (*Session, error) {
	cfg = cfg.withDefaults()
	l := newLink(conn, cfg, true)
	client, err := h2.New(l, h2.Config{
		MaxHeaderBytes: cfg.MaxHeaderBytes, StreamWindow: cfg.MaxStreamWindow, // see the type windows
		MaxFrameSize: maxFrameSize, WriteTimeout: cfg.WriteTimeout,
		Omit: staysHere, Ends: l.end, CountError: l.countError,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start tunnel: %w", err), l.Close())
	}
	s := &Session{
		client: client, link: l, maxHeaderBytes: cfg.MaxRequestHeaderBytes, repeatable: cfg.Repeatable,
		draining: make(chan struct{}),
	}
	s.keepalive = newKeepalive(s, cfg)
	l.whenEnded(func(err error) {
		s.keepalive.stop()
		if cfg.OnEnd != nil {
			cfg.OnEnd(err)
		}
	})
	// The ping response arrives after the agent's settings, so the agent's limits are known from now on. Until then,
	// the client assumes that it may open at most 100 streams.
	ctx, cancel := context.WithTimeout(ctx, cfg.HandshakeTimeout)
	defer cancel()
	if err := s.keepalive.ping(ctx); err != nil {
		s.link.setCause(ErrPingTimeout)
		s.end()
		return nil, fmt.Errorf("start tunnel: no answer from the agent: %w", errors.Join(s.Err(), err))
	}
	s.keepalive.start()
	return s, nil
}

// Done returns a channel that is closed when the session has ended. Config.OnEnd reports the same event without a
// waiting goroutine.
func (s *Session) Done() <-chan struct{} { return s.link.ended }

// Err returns why the session ended. The error is one of the errors in this package. Err returns nil while the
// session is open.
func (s *Session) Err() error { return s.link.err() }

// RemoteAddr returns the remote address of the connection. This is the address of the agent or of the last proxy before
// the hub.
func (s *Session) RemoteAddr() net.Addr { return s.link.RemoteAddr() }

// Streams returns the number of requests in progress, including watches and upgraded connections.
func (s *Session) Streams() int { return int(s.streams.Load()) }

// Close immediately ends the session and all its requests.
func (s *Session) Close() error {
	s.link.setCause(ErrClosed)
	s.end()
	return nil
}

// Drain refuses new requests with ErrNotProcessed, waits until the requests in progress have ended or ctx is done, and
// closes the session. If it had to abort requests, it returns the error of ctx.
func (s *Session) Drain(ctx context.Context) error {
	s.drainOnce.Do(func() { close(s.draining) })
	s.link.setCause(ErrClosed)
	err := s.client.Shutdown(ctx)
	s.end()
	if err != nil {
		return fmt.Errorf("drain tunnel: %w", err)
	}
	return nil
}

// end closes the connection. The caller must have set the cause.
func (s *Session) end() {
	s.link.end()         // called first, because the callers of failed requests ask for the reason
	_ = s.client.Close() // fails the requests and then closes the link; always returns nil
}

// keepalive pings the peer when there has been no traffic for a while. It does not need a goroutine while it waits.
type keepalive struct {
	session           *Session
	interval, timeout time.Duration
	observe           func(time.Duration)

	mu    sync.Mutex // guards timer
	timer *time.Timer
}

func newKeepalive(s *Session, cfg Config) *keepalive {
	return &keepalive{session: s, interval: cfg.PingInterval, timeout: cfg.PingTimeout, observe: cfg.Observer.Ping}
}

func (k *keepalive) ping(ctx context.Context) error {
	start := time.Now()
	if err := k.session.client.Ping(ctx); err != nil {
		return fmt.Errorf("ping: %w", err)
	}
	if k.observe != nil {
		k.observe(time.Since(start))
	}
	return nil
}

func (k *keepalive) start() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer = time.AfterFunc(k.interval, k.check)
}

// stop stops the timer at the end of the session. A check that is already running detects the end by itself.
func (k *keepalive) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.timer != nil {
		k.timer.Stop()
	}
}

// check pings the peer if the peer has been silent. If there is no response, it ends the session. Otherwise, it sets
// the timer for the next check.
func (k *keepalive) check() {
	link := k.session.link
	if silence := link.silence(); silence < k.interval {
		k.schedule(k.interval - silence)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), k.timeout)
	defer cancel()
	err := k.ping(ctx)
	// During a bulk transfer, the response may be late although other data has arrived.
	late := errors.Is(err, context.DeadlineExceeded) && link.silence() < k.timeout
	if err != nil && !late {
		link.setCause(ErrPingTimeout)
		k.session.end()
		return
	}
	k.schedule(k.interval)
}

// schedule sets the timer, unless the session has ended.
func (k *keepalive) schedule(after time.Duration) {
	select {
	case <-k.session.Done():
		return
	default:
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.timer.Reset(after)
}
