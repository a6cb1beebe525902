// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tunnel carries HTTP requests from a hub to an agent over one connection that the agent opened.
//
// The agent dials a WebSocket and serves HTTP/2 on it; the hub is the HTTP/2 client. SPEC.md beside this file says
// what goes over the wire and why each setting has its value.
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

// Subprotocol is the WebSocket subprotocol that both ends must agree on. It is the version of the framing.
const Subprotocol = "drover.h2.v1"

// Settings that both ends rely on, so they must change together. SPEC.md gives the measurements behind them.
const (
	maxStreams   = 100_000  // the library's 250 would be the number of watches of all users of a member
	maxFrameSize = 64 << 10 // bytes of one HTTP/2 frame
	// bytes of one WebSocket frame: a body piece of 32 KiB with its frame head. The default halves bulk
	writeBufferSize = 33 << 10
	readBufferSize  = 4 << 10 // bytes; large reads bypass it
	// bytes, of each tunnel on the hub: enough for the heads of WebSocket frames. What they hold goes past it into the
	// buffer of HTTP/2
	frameHeadBuffer = 256
	lowWaterMark    = 64 << 10 // bytes the kernel may hold unsent, see KeepUnsentLow
	headerOverhead  = 32       // bytes that HTTP/2 counts for each header field beside its text

	closeTimeout  = 250 * time.Millisecond // to say goodbye to a peer that may not listen
	upgradeLinger = 2 * time.Second        // between closing an upgraded stream and resetting it
)

// Config has the settings of both ends. The zero value of each field means its default, which is right for
// production; the fields exist for tests and for links that are unusual.
type Config struct {
	// StreamWindow is how many bytes one stream may have in flight at first, and how many a reader that never reads costs
	// in memory. Default 1 MiB, that is 20 MB/s at a round trip of 50 ms. At most 2^30.
	StreamWindow int

	// MaxStreamWindow is up to how many bytes the window of a stream grows that reads faster than its path lets it.
	// Default 16 MiB, at least StreamWindow, at most 2^30.
	MaxStreamWindow int

	// PingInterval is the silence after which this end asks whether the other still lives. Default 15 s.
	PingInterval time.Duration

	// PingTimeout is how long the other end may take to answer before the tunnel ends. Default 10 s.
	PingTimeout time.Duration

	// WriteTimeout ends the tunnel when the network takes no byte for so long. Default 20 s.
	WriteTimeout time.Duration

	// HandshakeTimeout limits dialling and upgrading, and then the first exchange of HTTP/2. Default 10 s.
	HandshakeTimeout time.Duration

	// DrainTimeout is how long the agent waits for open streams when it stops. Default 30 s.
	DrainTimeout time.Duration

	// MaxHeaderBytes limits the header of a response together with its trailer. Each field counts as HTTP/2 counts it:
	// name + value + 32. Default 64 KiB. It must be the same on both ends.
	MaxHeaderBytes int

	// MaxRequestHeaderBytes limits the header of a request in the same way. Default 1 MiB, as of API servers: the hub
	// bounds what its callers send, and adds a header for each group of the user. An agent says how much it takes, and
	// the hub sends no more.
	MaxRequestHeaderBytes int

	// Repeatable reports whether a request without a body may be sent again although a handler may have seen it. Default:
	// GET, HEAD and OPTIONS. Hub only.
	Repeatable func(*http.Request) bool

	// Memory is shared by all tunnels of a process: an idle one holds no buffer, and windows that grow are bounded
	// together. Nil gives the tunnel its own.
	Memory *Memory

	// Observer sees what the tunnel does, for metrics and debugging.
	Observer Observer

	// OnEnd is called once, on the hub, when the session has ended, with the value of Session.Err. It must not
	// block: it runs on the goroutine that noticed the end.
	OnEnd func(error)

	// ErrorLog gets what net/http logs, such as a handler that panicked. Nil means the standard logger, as there.
	ErrorLog *log.Logger
}

// Observer has functions that a tunnel calls. Each may be nil, is called by several goroutines at once and must not
// block.
type Observer struct {
	// BytesRead and BytesWritten count what HTTP/2 reads from and writes to the tunnel, without WebSocket and TLS.
	BytesRead, BytesWritten func(n int)

	// WriteBlocked gets how long a write had to wait for the network, for each write that took over 100 ms.
	WriteBlocked func(d time.Duration)

	// Ping gets the round trip of each keepalive that was answered, and of the handshake. Hub only.
	Ping func(roundTrip time.Duration)

	// HTTP2Error counts errors of the protocol by short names, such as "recv_rststream_CANCEL".
	HTTP2Error func(kind string)

	// Frame sees the head of each HTTP/2 frame, never its content. It costs time; leave it nil unless debugging.
	Frame func(Frame)
}

// Memory is what tunnels share: write buffers that no tunnel uses at the moment, and the bytes by which windows exceed
// Config.StreamWindow. The zero value is ready.
type Memory struct {
	buffers sync.Pool
	grown   atomic.Int64
}

// withDefaults returns the settings with every zero value replaced.
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

// headerSize counts a header as HTTP/2 counts it for its limit.
func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + headerOverhead
		}
	}
	return size
}
