// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
)

// maxReplay is the maximum number of bytes of a request body that are kept until the response arrives, in case the
// request has to be sent again.
const maxReplay = 64 << 10

// errSpoilt is returned if a body cannot be sent again because too much of it has been read.
var errSpoilt = errors.New("the body cannot be sent again")

// replay is a request body that can be sent more than once, as long as no more than maxReplay bytes of it have been
// read. A nil replay represents a request without a body.
type replay struct {
	body    io.ReadCloser
	current *attempt
	// contains a token while no attempt is reading body; record and at may be used only by the attempt that holds the
	// token
	reading chan struct{}
	record  []byte      // the bytes that were read so far
	spoiler *attempt    // the attempt that has read more bytes than can be kept
	spoilt  atomic.Bool // set together with spoiler, for goroutines that do not hold the token

	mu        sync.Mutex // guards the fields below
	committed bool       // set if the current attempt is the last, so the transport owns the body
	closed    bool       // set if the transport has closed the body
}

func newReplay(r *http.Request) *replay {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	p := &replay{body: r.Body, reading: make(chan struct{}, 1)}
	p.reading <- struct{}{}
	return p
}

// attach returns a request like r that reads the body from its start.
func (p *replay) attach(r *http.Request) *http.Request {
	if p == nil {
		return r
	}
	p.current = &attempt{replay: p}
	out := new(http.Request)
	*out = *r
	out.Body, out.GetBody = p.current, nil
	return out
}

// rewind abandons the current attempt and reports whether another attempt is possible.
func (p *replay) rewind() bool {
	if p == nil {
		return true
	}
	p.current.over.Store(true)
	p.mu.Lock()
	p.closed = false
	p.mu.Unlock()
	return !p.spoilt.Load()
}

// commit marks the current attempt as the last one, and transfers ownership of the body to the transport.
func (p *replay) commit() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.committed = true
	closed := p.closed
	p.mu.Unlock()
	if closed {
		_ = p.body.Close() // it is too late to report an error
	}
}

// discard closes a body that was not sent, as a RoundTripper must.
func (p *replay) discard() {
	if p != nil {
		_ = p.body.Close()
	}
}

// attempt is the request body as the transport sees it during one attempt.
type attempt struct {
	*replay
	at   int         // the number of bytes of record that this attempt has read
	over atomic.Bool // set if the attempt was abandoned
}

// Read first returns the bytes that earlier attempts have read, and then the rest of the body. If an attempt is
// abandoned during a read, the bytes that were read are kept for the next attempt.
func (a *attempt) Read(p []byte) (int, error) {
	<-a.reading
	defer func() { a.reading <- struct{}{} }()
	switch {
	case a.over.Load():
		return 0, http.ErrBodyReadAfterClose
	case a.spoilt.Load() && a.spoiler != a:
		return 0, errSpoilt
	case a.at < len(a.record):
		n := copy(p, a.record[a.at:])
		a.at += n
		return n, nil
	}
	n, err := a.body.Read(p)
	a.keep(p[:n])
	return n, err // a reader's errors are returned unwrapped
}

// keep stores bytes that may be needed again. The caller must hold the token from the channel reading.
func (a *attempt) keep(p []byte) {
	a.mu.Lock()
	committed := a.committed
	a.mu.Unlock()
	switch {
	case a.over.Load():
		a.record = append(a.record, p...)
	case committed || a.spoilt.Load():
	case len(a.record)+len(p) > maxReplay:
		a.spoiler = a
		a.spoilt.Store(true)
	default:
		a.record = append(a.record, p...)
		a.at += len(p)
	}
}

// Close closes the body if no other attempt can follow.
func (a *attempt) Close() error {
	a.mu.Lock()
	last := a.committed && !a.over.Load()
	a.closed = a.closed || !a.over.Load()
	a.mu.Unlock()
	if !last {
		return nil
	}
	return a.body.Close() // a.body is the wrapped body
}
