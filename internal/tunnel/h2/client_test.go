// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"golang.org/x/net/http2"
)

// askedContext reports when its Err is called.
type askedContext struct {
	context.Context
	asked func()
}

func (c askedContext) Err() error {
	c.asked()
	return c.Context.Err()
}

// A request that waits for a place gets the place of a stream that ended while another request had its place but not
// yet its ID.
func TestWaitingRequestGetsAPlaceThatIsReleasedMeanwhile(t *testing.T) {
	arrived, answers := make(chan struct{}), make(chan struct{})
	client := scriptedAgent{
		settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 2}},
		answer: func(to *http2.Framer, id uint32) {
			headersOnly(to, id, ":status", "200")
			if id == 1 {
				close(arrived)
				<-answers
			}
			_ = to.WriteData(id, true, []byte("fine"))
		},
	}.client(t)
	results := make(chan error, 3)
	send := func(asked func()) {
		r := request(t, http.MethodGet, "/", nil)
		_, err := whole(client.RoundTrip(r.WithContext(askedContext{r.Context(), asked})))
		results <- err
	}
	first := make(chan struct{})
	go func() {
		defer close(first)
		send(func() {})
	}()
	await(t, "the first request", arrived)
	client.out.lock <- struct{}{} // keeps the second request between its place and its ID
	for _, which := range []string{"second", "third"} {
		asks := make(chan struct{})
		go send(sync.OnceFunc(func() { close(asks) }))
		await(t, "the "+which+" request", asks)
		client.mu.Lock() // once the lock is free again, the request has its place or waits for it
		opening := client.state.opening
		client.mu.Unlock()
		t.Logf("with the %s request, %d have a place but no ID", which, opening)
	}
	close(answers)
	await(t, "the end of the first request", first)
	<-client.out.lock
	for range 3 {
		if err := await(t, "a response", results); err != nil {
			t.Error(err)
		}
	}
}

// A trailer for which the agent would end the tunnel ends only its request.
func TestTooLargeTrailerIsNotSent(t *testing.T) {
	client := serve(t,
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	r := request(t, http.MethodPost, "/", struct{ io.Reader }{strings.NewReader("x")})
	r.Trailer = http.Header{"X-Sum": {strings.Repeat("x", 3<<20)}}
	_, err := whole(client.RoundTrip(r))
	if !errors.Is(err, ErrHeaderTooLarge) {
		t.Errorf("got error %v, want %v", err, ErrHeaderTooLarge)
	}
	get(t, client)
}

// lateBody ends once the client has forgotten its stream.
type lateBody struct {
	client *Client
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

// The trailer of a request that has ended is not sent, because the agent would end the tunnel.
func TestTrailerOfAnEndedStreamIsNotSent(t *testing.T) {
	client := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }))
	over := make(chan struct{})
	body := &lateBody{client: client, over: over, closed: sync.OnceFunc(func() { close(over) })}
	r := request(t, http.MethodPost, "/", body)
	r.Trailer = http.Header{"X-Sum": {"1"}}
	// whole returns only after the end of the body
	if got, err := whole(client.RoundTrip(r)); err != nil || got != "fine" {
		t.Fatalf("got %q, %v, want \"fine\"", got, err)
	}
	for range 3 {
		get(t, client)
	}
}

// A stream ends when its response is closed, even if the agent ends neither the response nor the request.
func TestClosingAResponseWithoutBodyEndsTheStream(t *testing.T) {
	for method, ends := range map[string]bool{http.MethodHead: false, http.MethodPut: true} {
		t.Run(method, func(t *testing.T) {
			begin := func(to *http2.Framer, id uint32) {
				_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true,
					EndStream: ends})
			}
			client := scriptedAgent{answer: begin, early: begin}.client(t)
			var body io.Reader
			if ends {
				reader, writer := io.Pipe()
				defer func() { _ = writer.Close() }()
				body = reader
			}
			response, err := client.RoundTrip(request(t, method, "/", body))
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if n := client.openStreams(); n != 0 {
				t.Errorf("%d streams are open, want none", n)
			}
		})
	}
}

// The Content-Length of a response that never has a body does not announce a body.
func TestContentLengthOfAResponseWithoutBodyIsIgnored(t *testing.T) {
	for _, status := range []string{"204", "304"} {
		client := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
			fields := block(":status", status, "content-length", "5")
			_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: fields, EndHeaders: true, EndStream: true})
		}}.client(t)
		if body, err := whole(client.RoundTrip(request(t, http.MethodGet, "/", nil))); err != nil || body != "" {
			t.Errorf("%s: got %q, %v, want nothing", status, body, err)
		}
	}
}

// A body is incomplete if its source fails with an error that wraps io.EOF.
func TestErrorThatWrapsEOFIsNotTheEndOfABody(t *testing.T) {
	client := scriptedAgent{answer: respond, takes: func(uint32) {}}.client(t)
	failure := fmt.Errorf("the source broke off: %w", io.EOF)
	_, err := whole(client.RoundTrip(request(t, http.MethodPut, "/",
		io.MultiReader(strings.NewReader("part"), iotest.ErrReader(failure)))))
	if !errors.Is(err, failure) {
		t.Errorf("got error %v, want %v", err, failure)
	}
}

// A Content-Length without a body is not sent, because the member would wait for the body.
func TestContentLengthWithoutBodyIsNotSent(t *testing.T) {
	client := serve(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = fmt.Fprint(w, r.ContentLength) }))
	r := request(t, http.MethodPost, "/", nil)
	r.ContentLength = 5
	if body, err := whole(client.RoundTrip(r)); err != nil || body != "0" {
		t.Errorf("got %q, %v, want \"0\": an empty request", body, err)
	}
}
