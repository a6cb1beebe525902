// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tunnel carries HTTP requests from a hub to an agent over one connection that the agent has opened.
//
// The agent dials a WebSocket and serves HTTP/2 on it. The hub is the HTTP/2 client. SPEC.md in this directory
// describes the bytes on the wire and gives the reason for each setting.
//
// Hub:
//
//	session, err := tunnel.Accept(w, r, cfg) // an http.RoundTripper, alive until session.Done()
//
// Agent:
//
//	conn, err := dialer.Dial(ctx, "wss://hub.example/v1/connect", header)
//	err = conn.Serve(ctx, handler)
package tunnel

import (
	"log"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Subprotocol is the WebSocket subprotocol that both ends must agree on. It identifies the version of the framing.
const Subprotocol = "drover.h2.v1"

// Both ends must use the same values for the following settings. SPEC.md contains the measurements behind the values.
const (
	maxStreams   = 100_000  // with the library's default of 250, the users of one member could not open enough watches
	maxFrameSize = 64 << 10 // size of one HTTP/2 frame, in bytes
	// size of a WebSocket frame, in bytes. It has room for a 32 KiB piece of a body and the header of its HTTP/2 frame.
	// The library's default would halve the throughput of bulk transfers.
	writeBufferSize = 33 << 10
	readBufferSize  = 4 << 10 // in bytes; large reads bypass this buffer
	// size of each tunnel's buffer on the hub, in bytes. It has room for the headers of WebSocket frames. The content
	// of frames bypasses this buffer and goes into the HTTP/2 buffer.
	frameHeadBuffer = 256
	lowWaterMark    = 64 << 10 // maximum number of unsent bytes in the kernel; see KeepUnsentLow
	headerOverhead  = 32       // number of bytes that HTTP/2 counts for each header field in addition to its text

	closeTimeout  = 250 * time.Millisecond // time for sending the goodbye to a peer that may no longer be reading
	upgradeLinger = 2 * time.Second        // time between closing an upgraded stream and resetting it
)

// Config contains the settings of both ends. A zero value selects the default. The defaults are suitable for
// production. Other values are meant for tests and for unusual networks.
type Config struct {
	// StreamWindow is the initial number of bytes that one stream may have in flight. If a stream is never read, it
	// uses this much memory. The default is 1 MiB, which allows 20 MB/s with a round-trip time of 50 ms. The maximum is
	// 2^30.
	StreamWindow int

	// MaxStreamWindow is the maximum size of a stream's window, in bytes. A window grows if the stream is read faster
	// than the window allows. The default is 16 MiB, the minimum is StreamWindow, and the maximum is 2^30.
	MaxStreamWindow int

	// PingInterval is the time without traffic after which this end checks whether the other end is alive. The
	// default is 15 s.
	PingInterval time.Duration

	// PingTimeout is how long the other end may take to respond to a ping. If it takes longer, the tunnel ends. The
	// default is 10 s.
	PingTimeout time.Duration

	// WriteTimeout is how long the network may go without accepting data before the tunnel ends. The default is 20 s.
	WriteTimeout time.Duration

	// HandshakeTimeout limits the time for dialing and upgrading. It also limits the time for the first HTTP/2
	// exchange after that. The default is 10 s.
	HandshakeTimeout time.Duration

	// DrainTimeout is how long a stopping agent waits for open streams. The default is 30 s.
	DrainTimeout time.Duration

	// MaxHeaderBytes is the maximum total size of a response's header and trailer. As in HTTP/2, each field counts as
	// name + value + 32 bytes. The default is 64 KiB. Both ends must have the same value.
	MaxHeaderBytes int

	// MaxRequestHeaderBytes is the maximum size of a request's header, counted like MaxHeaderBytes. The default is 1
	// MiB, as in API servers. The hub limits the headers of its callers, and adds a header for each of the user's
	// groups. An agent announces its limit, and the hub does not send larger headers.
	MaxRequestHeaderBytes int

	// Repeatable reports whether a request without a body may be sent again even if a handler may already have seen it.
	// By default, GET, HEAD and OPTIONS requests are repeatable. Repeatable is used only on the hub.
	Repeatable func(*http.Request) bool

	// Memory is shared by all tunnels of a process. It provides buffers, so that idle tunnels do not need their own,
	// and limits the total growth of all windows. If it is nil, the tunnel has its own Memory.
	Memory *Memory

	// Observer receives events from the tunnel, for metrics and debugging.
	Observer Observer

	// OnEnd is called once on the hub, after the session has ended. Its argument is the value of Session.Err. It must
	// not block, because it runs in the goroutine that detects the end.
	OnEnd func(error)

	// ErrorLog receives log messages from net/http, for example about handlers that panic. As in net/http, it
	// defaults to the standard logger.
	ErrorLog *log.Logger
}

// Observer contains functions that a tunnel calls. Any of them may be nil. They are called concurrently and must not
// block.
type Observer struct {
	// BytesRead and BytesWritten are called with the number of bytes that HTTP/2 has read from and written to the tunnel,
	// without the overhead of WebSocket and TLS.
	BytesRead, BytesWritten func(n int)

	// WriteBlocked is called with the duration of each write that waited for the network for at least 100 ms.
	WriteBlocked func(d time.Duration)

	// Ping is called with the round-trip time of the handshake and of each keepalive that was answered. It is called
	// only on the hub.
	Ping func(roundTrip time.Duration)

	// HTTP2Error is called for each protocol error with a short name, such as "recv_rststream_CANCEL".
	HTTP2Error func(kind string)

	// Frame is called with the header of each HTTP/2 frame, never with its content. The calls take time, so Frame
	// should be nil except for debugging.
	Frame func(Frame)
}

// Memory is shared by tunnels. It holds the write buffers that no tunnel is currently using, and counts the bytes by
// which windows exceed Config.StreamWindow. The zero value is ready to use.
type Memory struct {
	buffers sync.Pool
	grown   atomic.Int64
}

// withDefaults returns the settings with the defaults in place of zero values.
func (c Config) withDefaults() Config {
	setDefault(&c.StreamWindow, 1<<20)
	setDefault(&c.MaxStreamWindow, 16<<20)
	c.StreamWindow = min(c.StreamWindow, 1<<30)
	c.MaxStreamWindow = min(max(c.MaxStreamWindow, c.StreamWindow), 1<<30)
	setDefault(&c.PingInterval, 15*time.Second)
	setDefault(&c.PingTimeout, 10*time.Second)
	setDefault(&c.WriteTimeout, 20*time.Second)
	setDefault(&c.HandshakeTimeout, 10*time.Second)
	setDefault(&c.DrainTimeout, 30*time.Second)
	setDefault(&c.MaxHeaderBytes, 64<<10)
	setDefault(&c.MaxRequestHeaderBytes, 1<<20)
	if c.Repeatable == nil {
		c.Repeatable = reads
	}
	if c.Memory == nil {
		c.Memory = &Memory{}
	}
	return c
}

func setDefault[T int | time.Duration](field *T, value T) {
	if *field <= 0 {
		*field = value
	}
}

// headerSize returns the size of a header, as HTTP/2 counts it.
func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + headerOverhead
		}
	}
	return size
}
