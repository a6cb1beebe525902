// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package h2 is the HTTP/2 client on the hub's end of a tunnel.
//
// The package exists because the client in golang.org/x/net/http2 starts a goroutine for each request. Such a
// goroutine starts with a small stack, which then grows during calls into WebSocket and TLS code. Without these
// goroutines, the manager uses 9 to 19 % less CPU time for a GET through the hub, and 14 to 20 % less with 16
// concurrent requests. Design note 22 contains the figures. The command to measure them again is "go test -run '^$'
// -bench Request/GET/hub ./internal/server".
//
// The package uses the frames and the header compression from golang.org/x/net. It does not depend on WebSockets,
// agents or the tunnel's own headers. It does not support push, priorities, CONNECT, compression, informational
// responses or httptrace.
//
// Replace this package with golang.org/x/net/http2 when the client there no longer starts a goroutine for each request,
// or when the benchmark above shows that this package saves less than 5 % of the manager's CPU time for a GET, both for
// single requests and for 16 concurrent requests. Review this with each new minor version of Go, and no later than
// 2027-06-30.
package h2

import "time"

// Config contains the settings of a client. All of them are required.
type Config struct {
	// MaxHeaderBytes is the maximum total size of a response's header and trailer, counted as in HTTP/2.
	MaxHeaderBytes int

	// StreamWindow is the size of a stream's window that is announced to the other end, in bytes.
	StreamWindow int

	// MaxFrameSize is the maximum size of a frame from the other end, in bytes.
	MaxFrameSize int

	// WriteTimeout is how long the connection may go without accepting data before it is closed.
	WriteTimeout time.Duration

	// Omit reports whether a request header must not be sent. The name is not case-sensitive.
	Omit func(name string) bool

	// Ends is called before a request fails because the connection is ending, so the reason is available to the caller
	// of the request. It may be called more than once.
	Ends func()

	// CountError is called for each protocol error with a short name, such as "recv_rststream_CANCEL".
	CountError func(kind string)
}
