// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// slowWrite is the minimum time that a write must wait for the network before it counts as slow. Slow writes are
// reported to the observer.
const slowWrite = 100 * time.Millisecond

// link is the connection below HTTP/2. It records when the peer last sent data. It also keeps the first reason why the
// connection ended, which HTTP/2 would hide behind "client connection lost".
type link struct {
	net.Conn
	observer Observer
	windows  *windows
	sent     *frameScanner
	received *frameScanner

	start     time.Time
	lastHeard atomic.Int64 // in nanoseconds after start

	closing sync.Once
	ended   chan struct{} // closed by end; cause does not change after that
	mu      sync.Mutex    // guards the fields below
	over    bool
	cause   error
	onEnd   func(error)
}

// newLink returns a link. client is true on the hub, because the hub is the HTTP/2 client.
func newLink(conn net.Conn, cfg Config, client bool) *link {
	l := &link{Conn: conn, observer: cfg.Observer, windows: newWindows(cfg, client), start: time.Now(),
		ended: make(chan struct{})}
	l.sent = newFrameScanner(true, client, l.frameSent)
	l.received = newFrameScanner(false, !client, l.frameReceived)
	return l
}

func (l *link) frameSent(f Frame, content []byte, whole bool) (changed bool, err error) {
	if l.observer.Frame != nil {
		l.observer.Frame(f)
	}
	return l.windows.sent(f, content, whole)
}

func (l *link) frameReceived(f Frame, _ []byte, _ bool) (changed bool, err error) {
	if l.observer.Frame != nil {
		l.observer.Frame(f)
	}
	return false, l.windows.received(f)
}

// Read counts the bytes and records when they arrived.
func (l *link) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 {
		l.lastHeard.Store(int64(time.Since(l.start)))
		if l.observer.BytesRead != nil {
			l.observer.BytesRead(n)
		}
		if _, violation := l.received.scan(p[:n]); violation != nil {
			n, err = 0, violation
		}
	}
	if err != nil {
		l.setCause(readFailure(err))
		l.end() // record the end before HTTP/2 fails the requests, because their callers then ask for the reason
	}
	return n, err
}

// Write counts the bytes that it has written.
func (l *link) Write(p []byte) (int, error) {
	out, err := l.sent.scan(p)
	if err != nil {
		l.setCause(err)
		return 0, err
	}
	var start time.Time
	if l.observer.WriteBlocked != nil {
		start = time.Now()
	}
	n, err := l.Conn.Write(out)
	if l.observer.WriteBlocked != nil {
		if took := time.Since(start); took >= slowWrite {
			l.observer.WriteBlocked(took)
		}
	}
	if l.observer.BytesWritten != nil {
		l.observer.BytesWritten(n)
	}
	if err != nil {
		l.setCause(writeFailure(err))
	}
	return n, err
}

// SetWriteDeadline fails if the connection is already closed. The link then ends immediately instead of at the next
// write.
func (l *link) SetWriteDeadline(at time.Time) error {
	err := l.Conn.SetWriteDeadline(at)
	if err != nil {
		l.setCause(writeFailure(err))
	}
	return err
}

// silence returns the time since the peer last sent data.
func (l *link) silence() time.Duration {
	return time.Since(l.start) - time.Duration(l.lastHeard.Load())
}

// setCause records why the link is ending, unless a reason has already been recorded.
func (l *link) setCause(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = cause
	}
}

func (l *link) countError(kind string) {
	switch {
	case kind == "conn_close_lost_ping":
		l.setCause(ErrPingTimeout)
	case strings.HasPrefix(kind, "conn_"), strings.HasPrefix(kind, "read_frame_conn_error_"),
		kind == "read_frame_too_large":
		l.setCause(fmt.Errorf("%w: http2 %s", ErrProtocol, kind))
	}
	if l.observer.HTTP2Error != nil {
		l.observer.HTTP2Error(kind)
	}
}

// end publishes the first reason. If there is none, HTTP/2 has ended the link because the peer has sent GOAWAY and the
// last request has finished. Calling end again has no effect.
func (l *link) end() {
	l.mu.Lock()
	if l.over {
		l.mu.Unlock()
		return
	}
	l.over = true
	if l.cause == nil {
		l.cause = errGoodbye
	}
	cause, onEnd := l.cause, l.onEnd
	l.mu.Unlock()

	close(l.ended)
	l.windows.end()
	if onEnd != nil {
		onEnd(cause)
	}
}

// Close ends the link and closes the connection. This may take some time if the peer is unresponsive. Calling Close
// again has no effect.
func (l *link) Close() error {
	l.end()
	var err error
	l.closing.Do(func() { err = l.Conn.Close() })
	if err != nil {
		return fmt.Errorf("close tunnel: %w", err)
	}
	return nil
}

// whenEnded calls f once with the reason when the link has ended. If the link has already ended, it calls f
// immediately.
func (l *link) whenEnded(f func(error)) {
	l.mu.Lock()
	over, cause := l.over, l.cause
	if !over {
		l.onEnd = f
	}
	l.mu.Unlock()
	if over {
		f(cause)
	}
}

// why returns the reason why the link is ending, as soon as the reason is known. After a failed write, the reason is
// known before the link has ended.
func (l *link) why() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// err returns why the link ended. It returns nil while the link is open.
func (l *link) err() error {
	select {
	case <-l.ended:
	default:
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}
