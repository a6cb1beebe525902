// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/gorilla/websocket"

	"github.com/drover-dev/drover/internal/tunnel/h2"
)

// These errors are reasons why a tunnel ended, or why a request could not use a tunnel. Match them with errors.Is.
var (
	// ErrClosed means that this end closed the tunnel.
	ErrClosed = errors.New("closed by this end")

	// ErrPeerClosed means that the other end, or an intermediary, closed the connection.
	ErrPeerClosed = errors.New("closed by the other end")

	// ErrPingTimeout means that the other end did not respond to a keepalive, because it is unresponsive or the network is
	// down.
	ErrPingTimeout = errors.New("the other end does not answer")

	// ErrWriteTimeout means that the network accepted no data for Config.WriteTimeout.
	ErrWriteTimeout = errors.New("the other end does not read")

	// ErrProtocol means that the other end violated the protocol: WebSocket, HTTP/2 or SPEC.md.
	ErrProtocol = errors.New("protocol violated by the other end")

	// ErrNotProcessed means that the request may be sent again through another tunnel. Either no handler has seen the
	// request, or the request is read-only and the tunnel ended before a response arrived.
	ErrNotProcessed = errors.New("not processed by the other end")

	// ErrTurnedAway means that the hub, or an intermediary in front of the hub, ended the TLS handshake of a new
	// tunnel. The usual reason is that the hub is busy.
	ErrTurnedAway = errors.New("turned away in the TLS handshake: too many connections are opened at the same time, " +
		"or the address serves another name")

	// ErrHeaderTooLarge means that the request's header exceeds Config.MaxRequestHeaderBytes or the limit that the
	// other end has announced.
	ErrHeaderTooLarge = h2.ErrHeaderTooLarge
)

// errGoodbye means that a tunnel was closed gracefully. The peer announced that it accepts no more requests, and then
// finished the requests in progress.
var errGoodbye = fmt.Errorf("%w: it takes no more requests", ErrPeerClosed)

// Reason returns a short name for the reason why a tunnel ended. It is suitable for a metric label: "closed",
// "peer-closed", "ping-timeout", "write-timeout", "protocol", or "other".
func Reason(err error) string {
	for _, known := range []struct {
		err  error
		name string
	}{
		{ErrClosed, "closed"},
		{ErrPingTimeout, "ping-timeout"},
		{ErrWriteTimeout, "write-timeout"},
		{ErrProtocol, "protocol"},
		{ErrPeerClosed, "peer-closed"},
	} {
		if errors.Is(err, known.err) {
			return known.name
		}
	}
	return "other"
}

// HandshakeError means that the hub refused a tunnel.
type HandshakeError struct {
	StatusCode int           // the status code of the HTTP response
	RetryAfter time.Duration // from the Retry-After header; 0 if there was none
	Body       string        // the response body, at most 1 KiB
}

// Error returns the status and the hub's message.
func (e *HandshakeError) Error() string {
	text := fmt.Sprintf("hub answered %d %s", e.StatusCode, http.StatusText(e.StatusCode))
	if e.Body != "" {
		text += ": " + e.Body
	}
	return text
}

// readFailure returns the reason for an error from reading the network. If the error is neither the end of the stream
// nor a network error, it comes from the parser for WebSocket frames, which has no specific error type.
func readFailure(err error) error {
	var (
		closed  *websocket.CloseError
		network net.Error
	)
	switch {
	case errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return ErrClosed
	case errors.As(err, &closed), errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: %w", ErrPeerClosed, err)
	default:
		return fmt.Errorf("%w: %w", ErrProtocol, err)
	}
}

// writeFailure returns the reason for an error from writing to the network.
func writeFailure(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrWriteTimeout, err)
	case errors.Is(err, net.ErrClosed):
		return ErrClosed
	default:
		return fmt.Errorf("%w: %w", ErrPeerClosed, err)
	}
}
