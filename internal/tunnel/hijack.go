// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"sync"
	"time"
)

var (
	errHijackTooLate = errors.New("hijack after the response began")
	errWriteClosed   = errors.New("write after the end of writing")
)

// upgradeWriter is the ResponseWriter of an upgrade request. A response other than 101 is sent in the usual way. As
// in HTTP/1.1, the handler writes a 101 response to the connection that Hijack returns.
type upgradeWriter struct {
	*limitedWriter
	request  *http.Request // the POST request
	hijacked *hijackedConn
}

// Hijack returns a connection to which the handler must first write a 101 response. The tunnel translates this
// response into the response for the hub. After that, the connection carries both directions of the upgraded stream.
// The request ends when the handler has returned and the connection is closed.
func (w *upgradeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.began || w.hijacked != nil {
		return nil, nil, fmt.Errorf("hijack tunnel stream: %w", errHijackTooLate)
	}
	w.began = true
	w.hijacked = newHijackedConn(w.ResponseWriter, w.request, w.limit)
	return w.hijacked, bufio.NewReadWriter(bufio.NewReader(w.hijacked), bufio.NewWriter(w.hijacked)), nil
}

// wait returns when the hijacked connection is closed or the request has ended.
func (w *upgradeWriter) wait() {
	if w.hijacked == nil {
		return
	}
	select {
	case <-w.hijacked.closed:
	case <-w.request.Context().Done():
	}
}

// release prevents any further use of the response, even after a panic.
func (w *upgradeWriter) release() {
	if w.hijacked != nil {
		w.hijacked.detach()
	}
}

// hijackedConn is the agent's end of an upgraded stream. Like any net.Conn, it can be read and written concurrently.
type hijackedConn struct {
	request *http.Request
	closed  chan struct{}
	closing sync.Once

	mu       sync.Mutex // held while writing to response; response must not be used after the handler has returned
	response http.ResponseWriter
	head     switchHead
	ended    bool   // set when no more writes are allowed
	chunk    []byte // buffer for the next chunk

	gate    sync.RWMutex // guards control; mu is not used for this, because a stuck Write may hold mu
	control *http.ResponseController
}

// switchHead collects the 101 response.
type switchHead struct {
	limit int
	text  []byte
	sent  bool
}

func newHijackedConn(w http.ResponseWriter, r *http.Request, limit int) *hijackedConn {
	return &hijackedConn{
		request:  r,
		closed:   make(chan struct{}),
		response: w,
		head:     switchHead{limit: limit},
		control:  http.NewResponseController(w),
	}
}

// Read returns the data that the hub's side has written, and io.EOF after the last byte.
func (c *hijackedConn) Read(p []byte) (int, error) {
	select {
	case <-c.closed:
		return 0, net.ErrClosed
	default:
	}
	return c.request.Body.Read(p) // return the reader's error unchanged
}

// Write expects the 101 response first, and then data for the hub's side. It blocks while the hub's side is not
// reading.
func (c *hijackedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return 0, fmt.Errorf("write upgraded stream: %w", errWriteClosed)
	}
	rest := p
	if !c.head.sent {
		var err error
		if rest, err = c.writeHead(p); err != nil {
			c.ended = true
			return 0, err
		}
	}
	if err := c.writeChunks(rest); err != nil {
		return 0, err
	}
	return len(p), nil
}

// writeHead collects the 101 response and forwards it once it is complete. It returns the part of p that follows the
// response. The caller must hold c.mu.
func (c *hijackedConn) writeHead(p []byte) (rest []byte, err error) {
	header, protocol, rest, err := c.head.collect(p)
	if err != nil {
		return nil, c.declineHead(err)
	}
	if protocol == "" {
		return nil, nil
	}
	c.head.sent = true
	to := c.response.Header()
	clear(to)
	maps.Copy(to, header)
	to.Set(headerUpgrade, protocol)
	c.response.WriteHeader(http.StatusOK)
	if err := http.NewResponseController(c.response).Flush(); err != nil {
		return nil, fmt.Errorf("answer upgrade: %w", err)
	}
	return rest, nil
}

// collect adds the next piece of the response. Once the response is complete, collect returns its header and
// protocol, and the part of p that follows the response. Until then, the returned protocol is empty.
func (h *switchHead) collect(p []byte) (header http.Header, protocol string, rest []byte, err error) {
	before := len(h.text)
	h.text = append(h.text, p[:min(len(p), h.limit+1-before)]...)
	end := headEnd(h.text)
	if end < 0 && len(h.text) > h.limit || end > h.limit {
		return nil, "", nil, fmt.Errorf("no end of the header within %d bytes", h.limit)
	}
	if end < 0 {
		return nil, "", nil, nil
	}
	header, protocol, err = parseSwitch(h.text[:end])
	if size := headerSize(header); err == nil && size > h.limit {
		err = fmt.Errorf("the header has %d bytes, but the tunnel allows only %d", size, h.limit)
	}
	h.text = nil
	return header, protocol, p[end-before:], err
}

// declineHead responds to the hub with 502, and returns the error for the handler.
func (c *hijackedConn) declineHead(reason error) error {
	reason = fmt.Errorf("answer upgrade: the handler wrote no valid 101 response: %w", reason)
	http.Error(c.response, reason.Error(), http.StatusBadGateway)
	return reason
}

// headEnd returns the offset of the end of a response's header, or -1.
func headEnd(p []byte) int {
	blank := []byte("\r\n\r\n")
	if at := bytes.Index(p, blank); at >= 0 {
		return at + len(blank)
	}
	return -1
}

// parseSwitch parses the 101 response from a handler. It returns the response's header without hop-by-hop fields, and
// the protocol that the handler has chosen.
func parseSwitch(head []byte) (header http.Header, protocol string, err error) {
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
	if err != nil {
		return nil, "", fmt.Errorf("parse response: %w", err)
	}
	_ = response.Body.Close() // a 101 response has no body
	if response.StatusCode != http.StatusSwitchingProtocols {
		return nil, "", fmt.Errorf("status %d", response.StatusCode)
	}
	if protocol = upgradeProtocol(response.Header); protocol == "" {
		return nil, "", errors.New("no protocol in the Upgrade header")
	}
	for name := range response.Header {
		if staysHere(name) || name == "Content-Length" {
			delete(response.Header, name)
		}
	}
	return response.Header, protocol, nil
}

// writeChunks sends p to the hub's side. The caller must hold c.mu.
func (c *hijackedConn) writeChunks(p []byte) error {
	for len(p) > 0 {
		n := min(len(p), maxChunk-chunkHeadSize) // the size of one HTTP/2 frame, 32 KiB
		c.chunk = appendChunk(c.chunk[:0], p[:n])
		if err := c.send(c.chunk); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// send writes to the hub and flushes. The caller must hold c.mu.
func (c *hijackedConn) send(p []byte) error {
	if _, err := c.response.Write(p); err != nil {
		return fmt.Errorf("write upgraded stream: %w", err)
	}
	if err := http.NewResponseController(c.response).Flush(); err != nil {
		return fmt.Errorf("flush upgraded stream: %w", err)
	}
	return nil
}

// CloseWrite signals to the hub's side that no more data will follow. The connection can still be read.
func (c *hijackedConn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	c.ended = true
	if !c.head.sent {
		return c.declineHead(io.ErrUnexpectedEOF)
	}
	return c.send(appendChunk(nil, nil))
}

// Close closes both directions.
func (c *hijackedConn) Close() error {
	c.closing.Do(func() { close(c.closed) })
	return nil
}

// detach closes the connection and prevents any further use of the response. net/http2 does not allow a response to be
// used after its handler has returned. A Write that is stuck has upgradeLinger to finish. Then the stream is reset.
func (c *hijackedConn) detach() {
	_ = c.Close()
	over := make(chan struct{})
	timer := time.AfterFunc(upgradeLinger, func() {
		defer close(over)
		_ = c.SetWriteDeadline(time.Unix(1, 0))
	})
	if c.request.Context().Err() == nil {
		_ = c.CloseWrite() // if CloseWrite fails, the hub still notices the end of the stream
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	if !timer.Stop() {
		<-over
	}
	c.gate.Lock()
	c.control = nil
	c.gate.Unlock()
}

// LocalAddr returns the agent's address on the connection to the hub.
func (c *hijackedConn) LocalAddr() net.Addr {
	if addr, ok := c.request.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		return addr
	}
	return streamAddr("agent")
}

// RemoteAddr returns the hub's address.
func (c *hijackedConn) RemoteAddr() net.Addr { return streamAddr(c.request.RemoteAddr) }

// SetReadDeadline sets the read deadline of the stream.
func (c *hijackedConn) SetReadDeadline(t time.Time) error {
	return c.setDeadline((*http.ResponseController).SetReadDeadline, t)
}

// SetWriteDeadline sets the write deadline of the stream.
func (c *hijackedConn) SetWriteDeadline(t time.Time) error {
	return c.setDeadline((*http.ResponseController).SetWriteDeadline, t)
}

func (c *hijackedConn) setDeadline(set func(*http.ResponseController, time.Time) error, t time.Time) error {
	c.gate.RLock()
	defer c.gate.RUnlock()
	if c.control == nil {
		return net.ErrClosed
	}
	return set(c.control, t)
}

// SetDeadline sets both deadlines.
func (c *hijackedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

type streamAddr string

func (a streamAddr) Network() string { return "tunnel" }
func (a streamAddr) String() string  { return string(a) }
