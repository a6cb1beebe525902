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

// uploads has the buffers of requests' bodies: a piece, behind room for the head of its frame.
var uploads = sync.Pool{New: func() any { return new([frameHeadSize + bodyPiece]byte) }}

// requestBody is the body of a request on its way.
type requestBody struct {
	stream  *stream
	source  io.Reader
	left    int64 // of what was announced, or -1
	trailer func() http.Header
	close   func()
	ended   chan struct{} // closed when the source is not read any more
}

func newRequestBody(s *stream, r *http.Request) *requestBody {
	b := &requestBody{stream: s, source: r.Body, left: r.ContentLength, ended: make(chan struct{})}
	if b.left == 0 {
		b.left = -1 // unknown, since there is a body
	}
	b.trailer = func() http.Header { return r.Trailer } // filled while the body is read
	b.close = sync.OnceFunc(func() { _ = r.Body.Close() })
	return b
}

// send sends the body and ends the request's half of the stream.
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
		ends := err == io.EOF // an error that has io.EOF in it is none
		if err != nil && !ends {
			return err // a reader's errors stay as they are
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

// count compares the body with what was announced.
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

// piece sends a piece of the body, behind room for the head of a frame, as fast as the other end allows it.
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
		p = p[n:] // the next head goes where the last bytes were that have left
	}
	return nil
}

// take waits until some of the bytes may be sent.
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

// sendTrailer ends the request with a trailer.
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
			_ = c.out.encoder.WriteField(hpack.HeaderField{Name: lower(name), Value: value}) // a buffer takes everything
		}
	}
	return c.write(headersFrames(c.out.header.Bytes(), b.stream.id, true, c.frame()))
}

// mayEnd returns why a trailer cannot be sent, if so: for one that is too large, or of a stream that is over, the other
// end would end the tunnel.
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
