// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"sync"

	"golang.org/x/net/http2"
)

// Malformed responses.
var (
	errNoStatus       = errors.New("a response without a valid status")
	errEarlyEnd       = errors.New("an informational response that ends the stream")
	errResponseHeader = errors.New("the header of the response is larger than announced")
	errNoHeader       = errors.New("DATA before the header")
	errHeadBody       = errors.New("a body in the response to HEAD")
	errLongerBody     = errors.New("the body of the response is longer than its Content-Length")
	errAfterEnd       = errors.New("a frame after the end of the stream")
)

type stream struct {
	client   *Client
	id       uint32
	head     bool            // set if the method of the request is HEAD
	body     *requestBody    // nil if the request has no body
	canceled <-chan struct{} // closed when the request's context ends
	window   int64           // bytes that may be sent beyond the other end's initial window; guarded by client.mu

	informational int // size of informational responses, in bytes; used only by the connection's reader

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	in      received
	state   streamState
}

type streamState struct {
	sent bool        // set when the whole request has been sent
	over bool        // set when nothing is sent or received any longer
	stop func() bool // stops watching the request's context
}

// received is the part of a response that has already arrived.
type received struct {
	response *http.Response
	trailer  http.Header
	bytes    pieces
	bounded  bool   // set if the response has a Content-Length
	left     int64  // number of bytes of the announced body that have not been read yet
	arriving inflow // counts the bytes that have been read; the type windows checks how many may arrive
	ended    bool   // set when END_STREAM has arrived
	closed   bool   // set when the body has been closed
	err      error  // why no data follows the buffered data
}

func newStream(c *Client, r *http.Request, method string) *stream {
	s := &stream{
		client: c, head: method == http.MethodHead, canceled: r.Context().Done(), state: streamState{sent: true},
	}
	s.changed.L = &s.mu
	s.in.arriving.credit = reportRead
	if HasBody(r) {
		s.body, s.state.sent = newRequestBody(s, r), false
	}
	return s
}

// watch resets the stream when the request's context ends.
func (s *stream) watch(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { s.refuse(http2.ErrCodeCancel, ctx.Err()) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.over {
		stop()
		return
	}
	s.state.stop = stop
}

// await waits until the response's header has arrived, and returns the response.
func (s *stream) await() (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.in.response == nil && s.in.err == nil {
		s.changed.Wait()
	}
	if s.in.response == nil {
		return nil, s.in.err
	}
	return s.in.response, nil
}

func (s *stream) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

func (s *stream) answered() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.in.response != nil
}

// answer stores a response whose header has arrived.
func (s *stream) answer(response *http.Response, ended bool) {
	s.mu.Lock()
	if s.in.err != nil { // the request was abandoned
		s.mu.Unlock()
		return
	}
	bodiless := s.head || response.StatusCode == http.StatusNoContent || response.StatusCode == http.StatusNotModified
	if s.state.sent && ended && (bodiless || response.ContentLength <= 0) {
		response.Body = http.NoBody
	} else { // closing the body ends the stream, even if there is nothing to read
		s.in.bounded, s.in.left, response.Body = !bodiless && response.ContentLength >= 0, response.ContentLength,
			(*streamBody)(s)
	}
	s.in.response = response
	over := ended && s.endLocked()
	s.mu.Unlock()
	s.client.waking = s
	if over {
		s.finish()
	}
}

func (s *stream) trailers(f *http2.MetaHeadersFrame) error {
	s.mu.Lock()
	if s.in.ended || !f.StreamEnded() || len(f.PseudoFields()) > 0 || f.Truncated {
		s.mu.Unlock()
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	s.in.trailer = http.Header{}
	for _, field := range f.RegularFields() {
		name := textproto.CanonicalMIMEHeaderKey(field.Name)
		s.in.trailer[name] = append(s.in.trailer[name], field.Value)
	}
	over := s.endLocked()
	s.mu.Unlock()
	s.client.waking = s
	if over {
		s.finish()
	}
	return nil
}

// arrive adds a piece of the body, and returns how many of its bytes will be read.
func (s *stream) arrive(p []byte, ended bool) (taken int, err error) {
	s.mu.Lock()
	switch {
	case s.in.ended:
		err = errAfterEnd
	case s.in.response == nil:
		err = errNoHeader
	case s.head && len(p) > 0:
		err = errHeadBody
	case s.in.err == nil && !s.in.closed:
		s.in.bytes.write(p)
		taken = len(p)
	}
	over := err == nil && ended && s.endLocked()
	s.mu.Unlock()
	s.client.waking = s
	if over {
		s.finish()
	}
	return taken, err
}

// endLocked records the end of the response, and reports whether the stream has ended.
func (s *stream) endLocked() bool {
	s.in.ended = true
	if s.in.err == nil {
		s.in.err = io.EOF
	}
	return s.overLocked()
}

// overLocked reports whether the stream has just ended.
func (s *stream) overLocked() bool {
	if s.state.over || !s.state.sent || !s.in.ended {
		return false
	}
	s.state.over = true
	return true
}

func (s *stream) wholeSent() {
	s.mu.Lock()
	s.state.sent = true
	over := s.overLocked()
	s.mu.Unlock()
	if over {
		s.finish()
	}
}

// reads records that n more bytes of the body have been read, and returns how many bytes to report now.
func (s *stream) reads(n int) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in.ended || s.state.over {
		return 0
	}
	return s.in.arriving.add(n)
}

// finish removes a stream that has ended.
func (s *stream) finish() {
	s.mu.Lock()
	stop := s.state.stop
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
	s.client.forget(s)
}

// abort ends a stream without notifying the other end. It returns false if the stream had already ended.
func (s *stream) abort(err error) bool {
	s.mu.Lock()
	if s.state.over {
		s.mu.Unlock()
		return false
	}
	s.state.over = true
	if s.in.err == nil {
		s.in.err = err
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	if s.body != nil {
		go s.body.close() // run in a goroutine, because it may wait for a Read
	}
	s.finish()
	return true
}

// refuse ends a stream and notifies the other end.
func (s *stream) refuse(code http2.ErrCode, err error) {
	if s.abort(err) {
		s.client.soon(appendNumber(nil, http2.FrameRSTStream, s.id, uint32(code)))
	}
}

type streamBody stream

// Read returns buffered data. It waits if there is none.
func (b *streamBody) Read(p []byte) (int, error) {
	s := (*stream)(b)
	s.mu.Lock()
	for s.in.bytes.size == 0 && s.in.err == nil && len(p) > 0 {
		s.changed.Wait()
	}
	n := s.in.bytes.read(p)
	of, err := s.in.judge(n)
	s.mu.Unlock()
	if n > of {
		s.refuse(http2.ErrCodeProtocol, err)
	}
	if n > 0 {
		_ = s.client.report(s, n) // ignore the error, because a failed write ends the tunnel
	}
	return of, err // an io.Reader must return io.EOF unchanged
}

// judge returns how many of the n bytes that were read belong to the body. After the last byte of the body, it also
// returns the reason why the body ended.
func (in *received) judge(n int) (of int, err error) {
	if in.bytes.size == 0 {
		err = in.err
	}
	if in.bounded && int64(n) > in.left {
		in.err = errLongerBody
		of, in.left = int(in.left), 0
		return of, errLongerBody
	}
	in.left -= int64(n)
	// the request's body may have failed with an error that wraps io.EOF
	if !in.ended || !errors.Is(err, io.EOF) {
		return n, err
	}
	if in.bounded && in.left > 0 {
		return n, io.ErrUnexpectedEOF
	}
	if len(in.trailer) > 0 && in.response.Trailer == nil {
		in.response.Trailer = http.Header{}
	}
	maps.Copy(in.response.Trailer, in.trailer)
	return n, io.EOF
}

// Close discards unread data, and waits until the request's body is no longer being read.
func (b *streamBody) Close() error {
	s := (*stream)(b)
	s.mu.Lock()
	s.in.closed = true
	unread := s.in.bytes.size
	s.in.bytes.clear()
	if s.in.err == nil || errors.Is(s.in.err, io.EOF) {
		s.in.err = errBodyClosed
	}
	s.mu.Unlock()
	s.refuse(http2.ErrCodeCancel, errBodyClosed)
	if unread > 0 {
		_ = s.client.report(nil, unread) // ignore the error, because a failed write ends the tunnel
	}
	if s.body == nil {
		return nil
	}
	select {
	case <-s.body.ended:
	case <-s.canceled:
	}
	return nil
}
