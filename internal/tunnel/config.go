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

// These settings must be the same on both ends, so they must be changed together. SPEC.md gives the measurements behind
// them.
const (
	maxStreams   = 100_000  // the library's default of 250 would limit the watches of all users of a member
	maxFrameSize = 64 << 10 // size of one HTTP/2 frame, in bytes
	// size of one WebSocket frame, in bytes. It holds a 32 KiB piece of a body and its frame header. The library's
	// default halves the throughput of bulk transfers
	writeBufferSize = 33 << 10
	readBufferSize  = 4 << 10 // in bytes; large reads bypass this buffer
	// buffer of each tunnel on the hub, in bytes. It is large enough for the headers of WebSocket frames. Their content
	// bypasses this buffer and goes into the HTTP/2 buffer
	frameHeadBuffer = 256
	lowWaterMark    = 64 << 10 // bytes that the kernel may hold unsent; see KeepUnsentLow
	headerOverhead  = 32       // bytes that HTTP/2 counts for each header field in addition to its text

	closeTimeout  = 250 * time.Millisecond // time for sending the goodbye to a peer that may not be listening
	upgradeLinger = 2 * time.Second        // time between closing an upgraded stream and resetting it
)

// Config holds the settings of both ends. A zero field means its default, which is suitable for production. Tests and
// unusual links set other values.
type Config struct {
	// StreamWindow is the number of bytes that one stream may initially have in flight. A reader that never reads costs
	// this much memory. The default is 1 MiB, which allows 20 MB/s with a round-trip time of 50 ms. The maximum is
	// 2^30.
	StreamWindow int

	// MaxStreamWindow limits the growth of a stream's window, in bytes. The window grows if the stream reads faster
	// than the window allows. The default is 16 MiB, the minimum is StreamWindow, and the maximum is 2^30.
	MaxStreamWindow int

	// PingInterval is the time without traffic after which this end checks whether the other end is alive. The default
	// is 15 s.
	PingInterval time.Duration

	// PingTimeout is the time within which the other end must respond. If it does not respond in time, the tunnel ends.
	// The default is 10 s.
	PingTimeout time.Duration

	// WriteTimeout ends the tunnel if the network accepts no data for this long. The default is 20 s.
	WriteTimeout time.Duration

	// HandshakeTimeout limits the time for dialing and upgrading, and then the time for the first HTTP/2 exchange. The
	// default is 10 s.
	HandshakeTimeout time.Duration

	// DrainTimeout limits how long the agent waits for open streams when it stops. The default is 30 s.
	DrainTimeout time.Duration

	// MaxHeaderBytes limits the header of a response together with its trailer. Fields are counted as in HTTP/2: name +
	// value + 32 for each field. The default is 64 KiB. Both ends must have the same value.
	MaxHeaderBytes int

	// MaxRequestHeaderBytes limits the header of a request in the same way. The default is 1 MiB, as in API servers.
	// The hub limits its callers' headers, and adds a header for each of the user's groups. An agent announces its
	// limit, and the hub does not send larger headers.
	MaxRequestHeaderBytes int

	// Repeatable reports whether a request without a body may be sent again even if a handler may have seen it. The
	// default is true for GET, HEAD and OPTIONS. Only the hub uses it.
	Repeatable func(*http.Request) bool

	// Memory is shared by all tunnels of a process. It allows idle tunnels to have no buffers, and limits the growth of
	// all windows together. If it is nil, the tunnel has its own Memory.
	Memory *Memory

	// Observer receives events of the tunnel, for metrics and debugging.
	Observer Observer

	// OnEnd is called once on the hub, when the session has ended, with the value of Session.Err. It must not block,
	// because it runs on the goroutine that noticed the end.
	OnEnd func(error)

	// ErrorLog receives the log messages of net/http, such as panics of handlers. It defaults to the standard logger,
	// as in net/http.
	ErrorLog *log.Logger
}

// Observer holds functions that a tunnel calls. Each of them may be nil. They are called by several goroutines
// concurrently and must not block.
type Observer struct {
	// BytesRead and BytesWritten count the bytes that HTTP/2 reads from and writes to the tunnel, without the overhead
	// of WebSocket and TLS.
	BytesRead, BytesWritten func(n int)

	// WriteBlocked receives the duration of each write that waited for the network for at least 100 ms.
	WriteBlocked func(d time.Duration)

	// Ping receives the round-trip time of each answered keepalive and of the handshake. Only the hub calls it.
	Ping func(roundTrip time.Duration)

	// HTTP2Error counts protocol errors by short names, such as "recv_rststream_CANCEL".
	HTTP2Error func(kind string)

	// Frame receives the header of each HTTP/2 frame, never its content. Calling it takes time, so it should be nil
	// except for debugging.
	Frame func(Frame)
}

// Memory is shared by tunnels. It holds write buffers that no tunnel is currently using, and counts the bytes by which
// windows exceed Config.StreamWindow. The zero value is ready to use.
type Memory struct {
	buffers sync.Pool
	grown   atomic.Int64
}

// withDefaults returns the settings with every zero value replaced by its default.
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

// headerSize returns the size of a header, as HTTP/2 counts it toward the limit.
func headerSize(h http.Header) int {
	size := 0
	for name, values := range h {
		for _, value := range values {
			size += len(name) + len(value) + headerOverhead
		}
	}
	return size
}
