// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/gorilla/websocket"
)

var errNotBinary = errors.New("a WebSocket message is not binary")

// wsConn turns a WebSocket into a net.Conn. Each Write sends one binary message, and Read ignores message boundaries.
// Read and Write may be called concurrently if each is called from only one goroutine. Close may be called at any time.
type wsConn struct {
	ws      *websocket.Conn
	message io.Reader // the rest of the message that is being read; nil between two messages
}

// Read returns bytes from the current or the next message. It returns io.EOF after an orderly close.
func (c *wsConn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for {
		if c.message == nil {
			kind, message, err := c.ws.NextReader()
			if err != nil {
				return 0, err
			}
			if kind != websocket.BinaryMessage {
				return 0, errNotBinary
			}
			c.message = message
		}
		n, err := c.message.Read(p)
		if errors.Is(err, io.EOF) {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// Write sends p as one message. After an error, the connection can no longer be used, regardless of n.
func (c *wsConn) Write(p []byte) (int, error) {
	if err := c.ws.WriteMessage(websocket.BinaryMessage, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close sends a close frame and closes the connection. If sending the close frame takes longer than closeTimeout, Close
// skips it, because the peer may be unresponsive.
func (c *wsConn) Close() error {
	deadline := time.Now().Add(closeTimeout)
	// TLS takes up to 5 s for its own closing alert. Closing the underlying socket does not wait for it.
	abort := time.AfterFunc(2*closeTimeout, func() { _ = innermost(c.ws.NetConn()).Close() })
	defer abort.Stop()
	goodbye := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	_ = c.ws.WriteControl(websocket.CloseMessage, goodbye, deadline) // best effort; only the following Close matters
	if err := c.ws.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close websocket: %w", err)
	}
	return nil
}

func (c *wsConn) LocalAddr() net.Addr                { return c.ws.LocalAddr() }
func (c *wsConn) RemoteAddr() net.Addr               { return c.ws.RemoteAddr() }
func (c *wsConn) SetReadDeadline(t time.Time) error  { return c.ws.SetReadDeadline(t) }
func (c *wsConn) SetWriteDeadline(t time.Time) error { return c.ws.SetWriteDeadline(t) }

// SetDeadline sets both deadlines.
func (c *wsConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// innermost returns the socket below TLS and any other wrappers.
func innermost(conn net.Conn) net.Conn {
	for {
		wrapper, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		inner := wrapper.NetConn()
		if inner == nil {
			return conn
		}
		conn = inner
	}
}
