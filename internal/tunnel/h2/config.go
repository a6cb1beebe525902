// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package h2 is the HTTP/2 client on the hub's end of a tunnel.
//
// It exists because the client of golang.org/x/net/http2 starts a goroutine for each request. That goroutine starts
// with a small stack, which grows during the calls into WebSocket and TLS code. Without that goroutine, a GET through
// the hub takes 9 to 19 % less of the manager's CPU, and 14 to 20 % less with 16 concurrent requests. Design note 22
// contains the figures and the command to measure them again: "go test -run '^$' -bench Request/GET/hub
// ./internal/server".
//
// The package uses the frames and the header compression of golang.org/x/net. It knows nothing about WebSockets, agents
// or the tunnel's own headers. It does not support push, priorities, CONNECT, compression, informational responses or
// httptrace.
//
// We return to golang.org/x/net/http2 when its client serves a request without starting a goroutine, or when the
// benchmark above shows that this client saves less than 5 % of the manager's CPU for a GET, both for single requests
// and for 16 concurrent ones. Review this with each new minor version of Go, and no later than 2027-06-30.
package h2

import "time"

// Config holds the settings of a client. All of them are required.
type Config struct {
	// MaxHeaderBytes limits the header of a response together with its trailer, counted as in HTTP/2.
	MaxHeaderBytes int

	// StreamWindow is the window of a stream that is announced to the other end, in bytes.
	StreamWindow int

	// MaxFrameSize is the maximum size of a frame from the other end, in bytes.
	MaxFrameSize int

	// WriteTimeout ends the connection if it accepts no data for this long.
	WriteTimeout time.Duration

	// Omit reports whether a request header must not be sent. The case of the name does not matter.
	Omit func(name string) bool

	// Ends is called before a request fails because the connection ends, so that the caller of the request can ask for
	// the reason. It may be called more than once.
	Ends func()

	// CountError is called for each protocol error with a short name, such as "recv_rststream_CANCEL".
	CountError func(kind string)
}
