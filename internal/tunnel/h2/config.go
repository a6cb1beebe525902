// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package h2 is the HTTP/2 client at the hub's end of a tunnel.
//
// It exists because the client of golang.org/x/net/http2 starts a goroutine for each request, which begins with a small
// stack and grows it below WebSocket and TLS. Without that goroutine, and with a stack that is grown once, a GET
// through the hub takes 9 to 19 % less of the manager's CPU, and 14 to 20 % less with 16 requests at once. Design 22
// has the figures and how to measure them again: "go test -run '^$' -bench Request/GET/hub ./internal/server".
//
// Frames and header compression are those of golang.org/x/net. The package knows nothing of WebSockets, agents or the
// tunnel's own headers. It has no push, priorities, CONNECT, compression, informational responses or httptrace.
//
// It goes back to golang.org/x/net/http2 when its client serves a request without a goroutine of its own, or when the
// benchmark above shows that this client saves less than 5 % of the manager's CPU for a GET, one at a time and 16 at
// once. Review: with each new minor version of Go, and not later than 2027-06-30.
package h2

import "time"

// Config has the settings of a client. All of them are needed.
type Config struct {
	// MaxHeaderBytes limits the header of a response together with its trailer, as HTTP/2 counts it.
	MaxHeaderBytes int

	// StreamWindow is the window of a stream that the other end is told, in bytes.
	StreamWindow int

	// MaxFrameSize is how many bytes a frame of the other end may have.
	MaxFrameSize int

	// WriteTimeout ends the connection when it takes no byte for so long.
	WriteTimeout time.Duration

	// Omit reports whether a header of a request, in any case, is not sent.
	Omit func(name string) bool

	// Ends is called before a request fails because the connection ends, so that its caller can ask for the reason. It
	// may be called several times.
	Ends func()

	// CountError is called for each error of the protocol with a short name, such as "recv_rststream_CANCEL".
	CountError func(kind string)
}
