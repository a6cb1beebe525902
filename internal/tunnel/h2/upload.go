// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"io"
	"net/http"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

var (
	errLongBody  = errors.New("the body of the request is longer than its Content-Length")
	errShortBody = errors.New("the body of the request is shorter than its Content-Length")
)

// uploads contains buffers for request bodies. Each buffer has room for a frame header and one piece.
var uploads = sync.Pool{New: func() any { return new([frameHeadSize + bodyPiece]byte) }}

// requestBody is the body of a request while it is being sent.
type requestBody struct {
	stream  *stream
	source  io.Reader
	left    int64 // number of bytes of the announced length that are left, or -1 if no length was announced
	trailer func() http.Header
	close   func()
	ended   chan struct{} // closed when the source is no longer being read
}

func newRequestBody(s *stream, r *http.Request) *requestBody {
	b := &requestBody{stream: s, source: r.Body, left: r.ContentLength, ended: make(chan struct{})}
	if b.left == 0 {
		b.left = -1 // there is a body, so the length is unknown
	}
	b.trailer = func() http.Header { return r.Trailer } // filled in while the body is being read
	b.close = sync.OnceFunc(func() { _ = r.Body.Close() })
	return b
}

// send sends the body, and then ends the sending half of the stream.
func (b *requestBody) send() {
	err := b.copy()
	b.close()
	close(b.ended)
	if err != nil {
		b.stream.refuse(http2.ErrCodeCancel, err)
		return
	}
	b.stream.wholeSent()
}

func (b *requestBody) copy() error {
	buffer, _ := uploads.Get().(*[frameHeadSize + bodyPiece]byte)
	defer uploads.Put(buffer)
	for {
		n, err := b.source.Read(buffer[frameHeadSize:])
		ends := err == io.EOF // only io.EOF itself marks the end of the body
		if err != nil && !ends {
			return err // return the source's error unchanged
		}
		if err := b.count(n, ends); err != nil {
			return err
		}
		trailer := http.Header(nil)
		if ends {
			trailer = b.trailer()
		}
		if err := b.piece(buffer[:frameHeadSize+n], ends && len(trailer) == 0); err != nil {
			return err
		}
		switch {
		case ends && len(trailer) > 0:
			return b.sendTrailer(trailer)
		case ends:
			return nil
		}
	}
}

// count checks the length of the body against the announced length.
func (b *requestBody) count(n int, ends bool) error {
	if b.left < 0 {
		return nil
	}
	if b.left -= int64(n); b.left < 0 {
		return errLongBody
	}
	if ends && b.left > 0 {
		return errShortBody
	}
	return nil
}

// piece sends a piece of the body as fast as the other end allows. p starts with room for a frame header.
func (b *requestBody) piece(p []byte, ends bool) error {
	for len(p) > frameHeadSize || ends {
		n, err := b.take(len(p) - frameHeadSize)
		if err != nil {
			return err
		}
		var flags http2.Flags
		last := n == len(p)-frameHeadSize
		if last && ends {
			flags = http2.FlagDataEndStream
		}
		putFrameHead(p, n, http2.FrameData, flags, b.stream.id)
		if err := b.stream.client.control(p[:frameHeadSize+n]); err != nil || last {
			return err
		}
		p = p[n:] // the next frame header overwrites the end of the bytes that were just sent
	}
	return nil
}

// take waits until at least some of the wanted bytes may be sent, and returns how many may be sent now.
func (b *requestBody) take(wanted int) (int, error) {
	c, s := b.stream.client, b.stream
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		if c.state.ended != nil {
			return 0, c.state.ended
		}
		if c.streams[s.id] != s {
			return 0, errBodyClosed
		}
		n := min(int64(wanted), c.state.window, c.peer.window+s.window, int64(c.peer.frame))
		if n > 0 || wanted == 0 {
			n = max(n, 0)
			c.state.window -= n
			s.window -= n
			return int(n), nil
		}
		c.changed.Wait()
	}
}

func (b *requestBody) sendTrailer(trailer http.Header) error {
	c := b.stream.client
	if err := checkHeader(trailer); err != nil {
		return err
	}
	select {
	case c.out.lock <- struct{}{}:
	case <-c.ended:
		return errClientEnded
	}
	if err := b.mayEnd(trailer); err != nil {
		<-c.out.lock
		return err
	}
	c.out.header.Reset()
	c.out.header.Write(make([]byte, frameHeadSize))
	for name, values := range trailer {
		for _, value := range values {
			_ = c.out.encoder.WriteField(hpack.HeaderField{Name: lower(name), Value: value})
		}
	}
	return c.write(headersFrames(c.out.header.Bytes(), b.stream.id, true, c.frame()))
}

// mayEnd returns an error if a trailer cannot be sent. The other end would close the tunnel if it received a trailer
// that is too large, or a trailer for a stream that has ended.
func (b *requestBody) mayEnd(trailer http.Header) error {
	c := b.stream.client
	c.mu.Lock()
	defer c.mu.Unlock()
	bytes := uint64(0)
	for name, values := range trailer {
		for _, value := range values {
			bytes += size(name, value)
		}
	}
	switch {
	case c.streams[b.stream.id] != b.stream:
		return errBodyClosed
	case bytes > c.peer.headerList:
		return errPeerHeader
	}
	return nil
}
