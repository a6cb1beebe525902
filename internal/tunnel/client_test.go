// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/net/http2"
)

// askedContext reports when it is asked for its error.
type askedContext struct {
	context.Context
	asked func()
}

func (c askedContext) Err() error {
	c.asked()
	return c.Context.Err()
}

// open is how many streams a session has.
func open(s *Session) int {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	return len(s.client.streams)
}

// A request that waits for a place gets the one of a stream that ended while another request was between its place and its ID.
func TestARequestThatWaitsGetsEachPlace(t *testing.T) {
	arrived, answers := make(chan struct{}), make(chan struct{})
	session := scriptedAgent{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 2}},
		answer: func(to *http2.Framer, id uint32) {
			headersOnly(to, id, ":status", "200")
			if id == 1 {
				close(arrived)
				<-answers
			}
			_ = to.WriteData(id, true, []byte("fine"))
		},
	}.session(t)
	results := make(chan error, 3)
	send := func(asked func()) {
		r := request(t, http.MethodGet, "/", nil)
		_, err := whole(session.RoundTrip(r.WithContext(askedContext{r.Context(), asked})))
		results <- err
	}
	first := make(chan struct{})
	go func() {
		defer close(first)
		send(func() {})
	}()
	await(t, "the first request", arrived)
	session.client.out.lock <- struct{}{} // the second stays between its place and its ID
	for _, which := range []string{"second", "third"} {
		asks := make(chan struct{})
		go send(sync.OnceFunc(func() { close(asks) }))
		await(t, "the "+which+" request", asks)
		session.client.mu.Lock() // it has its place, or waits for it, once the lock is free again
		opening := session.client.state.opening
		session.client.mu.Unlock()
		t.Logf("with the %s request, %d have a place and no ID", which, opening)
	}
	close(answers)
	await(t, "the end of the first request", first)
	<-session.client.out.lock
	for range 3 {
		if err := await(t, "a response", results); err != nil {
			t.Error(err)
		}
	}
}

// brokenConn fails to write once it is broken.
type brokenConn struct {
	net.Conn
	broken atomic.Bool
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if c.broken.Load() {
		return 0, errors.New("broken")
	}
	return c.Conn.Write(p)
}

// A GET whose own write notices that the connection is broken may be sent through another tunnel.
func TestARequestThatBreaksTheConnectionMayBeSentAgain(t *testing.T) {
	for range 20 {
		hubEnd, agentEnd := net.Pipe()
		conn := &brokenConn{Conn: hubEnd}
		p := overConns(t, Config{}, http.NotFoundHandler(), conn, agentEnd)
		conn.broken.Store(true)
		_, err := whole(p.session.RoundTrip(request(t, http.MethodGet, "/", nil)))
		wantError(t, err, ErrNotProcessed)
	}
}

// A trailer that the agent would end the tunnel for ends its request only.
func TestATrailerThatIsTooLargeIsNotSent(t *testing.T) {
	overEach(t, Config{}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }), func(t *testing.T, p *pair) {
		r := request(t, http.MethodPost, "/", struct{ io.Reader }{strings.NewReader("x")})
		r.Trailer = http.Header{"X-Sum": {strings.Repeat("x", 3<<20)}}
		_, err := whole(p.session.RoundTrip(r))
		wantError(t, err, errPeerHeader)
		p.get(t, "/")
	})
}

// lateBody ends once its stream is forgotten.
type lateBody struct {
	client *client
	closed func()
	over   chan struct{}
}

func (b *lateBody) Read([]byte) (int, error) {
	<-b.over
	b.client.mu.Lock()
	defer b.client.mu.Unlock()
	for len(b.client.streams) > 0 {
		b.client.changed.Wait()
	}
	return 0, io.EOF
}

func (b *lateBody) Close() error {
	b.closed()
	return nil
}

// The trailer of a request that is over is not sent: the agent would end the tunnel.
func TestATrailerOfAStreamThatIsOverIsNotSent(t *testing.T) {
	overEach(t, Config{}, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }), func(t *testing.T, p *pair) {
		over := make(chan struct{})
		body := &lateBody{client: p.session.client, over: over, closed: sync.OnceFunc(func() { close(over) })}
		r := request(t, http.MethodPost, "/", body)
		r.Trailer = http.Header{"X-Sum": {"1"}}
		if got, err := whole(p.session.RoundTrip(r)); err != nil || got != "fine" { // the end of whole waits for the end of the body
			t.Fatalf("got %q, %v, want \"fine\"", got, err)
		}
		for range 3 {
			p.get(t, "/")
		}
	})
}

// A stream is over when its response is closed, although the agent ends neither the response nor the request.
func TestClosingAResponseWithoutBodyEndsTheStream(t *testing.T) {
	for method, ends := range map[string]bool{http.MethodHead: false, http.MethodPut: true} {
		t.Run(method, func(t *testing.T) {
			begin := func(to *http2.Framer, id uint32) {
				_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true, EndStream: ends})
			}
			session := scriptedAgent{answer: begin, early: begin}.session(t)
			var body io.Reader
			if ends {
				reader, writer := io.Pipe()
				defer func() { _ = writer.Close() }()
				body = reader
			}
			response, err := session.RoundTrip(request(t, method, "/", body))
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if n := open(session); n != 0 {
				t.Errorf("%d streams are open, want none", n)
			}
		})
	}
}

// The Content-Length of a response that never has a body announces none.
func TestAResponseThatHasNoBody(t *testing.T) {
	for _, status := range []string{"204", "304"} {
		session := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
			fields := block(":status", status, "content-length", "5")
			_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fields, EndHeaders: true, EndStream: true})
		}}.session(t)
		if body, err := whole(session.RoundTrip(request(t, http.MethodGet, "/", nil))); err != nil || body != "" {
			t.Errorf("%s: got %q, %v, want nothing", status, body, err)
		}
	}
}

// A body whose source fails with an error that has io.EOF in it is not whole.
func TestAnErrorOfABodyIsNotItsEnd(t *testing.T) {
	session := scriptedAgent{answer: respond, takes: func(uint32) {}}.session(t)
	failure := fmt.Errorf("the source broke off: %w", io.EOF)
	_, err := whole(session.RoundTrip(request(t, http.MethodPut, "/", io.MultiReader(strings.NewReader("part"), iotest.ErrReader(failure)))))
	wantError(t, err, failure)
}

// A Content-Length without a body is not sent: the member would wait for it.
func TestALengthWithoutBodyIsNotSent(t *testing.T) {
	overEach(t, Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.ContentLength) }), func(t *testing.T, p *pair) {
		r := request(t, http.MethodPost, "/", nil)
		r.ContentLength = 5
		if body, err := whole(p.session.RoundTrip(r)); err != nil || body != "0" {
			t.Errorf("got %q, %v, want \"0\": an empty request", body, err)
		}
	})
}

// deafConn takes nothing more once it is deaf.
type deafConn struct {
	net.Conn
	deaf   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

func (c *deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

func (c *deafConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// An agent whose connection takes nothing does not hold up a drain beyond its time.
func TestADrainEndsInItsTimeAlthoughNothingIsTaken(t *testing.T) {
	hubEnd, agentEnd := net.Pipe()
	conn := &deafConn{Conn: hubEnd, closed: make(chan struct{})}
	p := overConns(t, Config{}, http.NotFoundHandler(), conn, agentEnd)
	conn.deaf.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.session.Drain(ctx)
	}()
	await(t, "the end of the drain", ended)
}
