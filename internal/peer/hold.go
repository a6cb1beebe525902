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

// window is the most bytes of a response that are in memory here: the stream window of a tunnel.
const window = 1 << 20

// serve forwards a request once there is room for it, and counts the bytes of its response that wait for the other
// replica.
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
		panic(http.ErrAbortHandler) // the caller is gone
	}
	defer seat.Release()
	h := n.guard(w, t)
	defer func() { h.flow.Close() }()
	n.forwarder.ServeHTTP(h, r)
}

// seat returns a seat for a user's request. The hub's own requests to an agent need none: they must reach a member that
// is full. Members are served round-robin. These seats are not those of users who connect to this replica: otherwise
// two full replicas would wait for each other.
func (n *Network) seat(r *http.Request, t *target) (*limit.Seat, error) {
	path, users := strings.CutPrefix(t.path, protocol.PathKubernetes)
	if !users {
		return nil, nil
	}
	member := t.member.String()
	return n.options.Limiter.Enter(r.Context(), limit.Requester{User: member, Member: member}, request.Of(r, path).Long)
}

// guard wraps a response so that it is counted.
func (n *Network) guard(w http.ResponseWriter, t *target) *held {
	h := &held{ResponseWriter: w, control: http.NewResponseController(w)}
	from := limit.Origin{Workspace: t.member.Namespace, Member: t.member.String(), Window: window}
	h.flowTo = func(deadline func(time.Time) error) *limit.Flow {
		return n.options.Limiter.Backlog.Flow(from, func() { _ = deadline(time.Unix(1, 0)) }) // ends the write under way at once
	}
	h.flow = h.flowTo(h.control.SetWriteDeadline)
	return h
}

// held is a response that is counted while a write waits for the other replica, and ended when too much waits.
type held struct {
	http.ResponseWriter
	control *http.ResponseController
	flow    *limit.Flow
	flowTo  func(deadline func(time.Time) error) *limit.Flow
}

// Unwrap lets http.ResponseController find what held does not do itself.
func (h *held) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// Write implements io.Writer.
func (h *held) Write(p []byte) (int, error) {
	h.flow.Begin()
	defer h.flow.End()
	return h.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController calls to flush.
func (h *held) FlushError() error {
	h.flow.Begin()
	defer h.flow.End()
	return h.control.Flush()
}

// Hijack returns the stream, counted in the same way. Upgrades call it.
func (h *held) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := h.control.Hijack()
	if err != nil {
		return nil, nil, err // httputil compares it with http.ErrNotSupported
	}
	h.flow.Close()
	h.flow = h.flowTo(conn.SetWriteDeadline)
	return &heldConn{Conn: conn, flow: h.flow}, buffered, nil
}

// heldConn is an upgraded stream that is counted while a write waits for the other replica.
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

// CloseWrite ends the stream in this direction. The far end may still send.
func (c *heldConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
