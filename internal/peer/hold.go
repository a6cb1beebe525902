// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/request"
)

// window is the maximum number of bytes of a response that this replica holds in memory. It equals the stream window of
// a tunnel.
const window = 1 << 20

// serve forwards a request when a seat is free. It counts the bytes of the response that are waiting for the other
// replica to read them.
func (n *Network) serve(w http.ResponseWriter, r *http.Request) {
	t := targetOf(r.Context())
	seat, err := n.seat(r, t)
	var full *limit.FullError
	switch {
	case errors.As(err, &full):
		w.Header().Set(headerHop, hopFull)
		http.Error(w, string(full.Scope), http.StatusTooManyRequests)
		return
	case err != nil:
		panic(http.ErrAbortHandler) // the caller has disconnected
	}
	defer seat.Release()
	h := n.guard(w, t)
	defer func() { h.flow.Close() }()
	n.forwarder.ServeHTTP(h, r)
}

// seat returns a seat for a user's request. The hub's own requests to an agent do not need a seat, because they must
// reach the member even if all seats are taken. Members are served round-robin.
//
// Users who connect to this replica have separate seats. If they shared seats with the requests of other replicas, two
// replicas without free seats could wait for each other.
func (n *Network) seat(r *http.Request, t *target) (*limit.Seat, error) {
	path, users := strings.CutPrefix(t.path, protocol.PathKubernetes)
	if !users {
		return nil, nil
	}
	member := t.member.String()
	return n.options.Limiter.Enter(r.Context(), limit.Requester{User: member, Member: member}, request.Of(r, path).Long)
}

// guard wraps a response to count the bytes that are waiting to be sent.
func (n *Network) guard(w http.ResponseWriter, t *target) *held {
	h := &held{ResponseWriter: w, control: http.NewResponseController(w)}
	from := limit.Origin{Workspace: t.member.Namespace, Member: t.member.String(), Window: window}
	h.flowTo = func(deadline func(time.Time) error) *limit.Flow {
		// a deadline in the past ends the current write immediately
		return n.options.Limiter.Backlog.Flow(from, func() { _ = deadline(time.Unix(1, 0)) })
	}
	h.flow = h.flowTo(h.control.SetWriteDeadline)
	return h
}

// held is a response whose bytes are counted while a write is waiting for the other replica. If too many bytes are
// waiting, the response is aborted.
type held struct {
	http.ResponseWriter
	control *http.ResponseController
	flow    *limit.Flow
	flowTo  func(deadline func(time.Time) error) *limit.Flow
}

// Unwrap gives http.ResponseController access to the methods that held does not implement.
func (h *held) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Write implements io.Writer.
func (h *held) Write(p []byte) (int, error) {
	h.flow.Begin()
	defer h.flow.End()
	return h.ResponseWriter.Write(p)
}

// FlushError flushes the response. It is called by http.ResponseController.
func (h *held) FlushError() error {
	h.flow.Begin()
	defer h.flow.End()
	return h.control.Flush()
}

// Hijack is called for upgrades. It returns a stream whose bytes are counted in the same way.
func (h *held) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := h.control.Hijack()
	if err != nil {
		return nil, nil, err // httputil compares the error with http.ErrNotSupported
	}
	h.flow.Close()
	h.flow = h.flowTo(conn.SetWriteDeadline)
	return &heldConn{Conn: conn, flow: h.flow}, buffered, nil
}

// heldConn is an upgraded stream whose bytes are counted while a write is waiting for the other replica.
type heldConn struct {
	net.Conn
	flow *limit.Flow
}

// Write implements io.Writer.
func (c *heldConn) Write(p []byte) (int, error) {
	c.flow.Begin()
	defer c.flow.End()
	return c.Conn.Write(p)
}

// CloseWrite closes the stream for writing. The other end can still send data.
func (c *heldConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
