// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestRequests(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Method", r.Method)
		w.Header().Set("X-Host", r.Host)
		w.Header().Set("X-Uri", r.RequestURI)
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("/nothing", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/trailer", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "response after "+r.Trailer.Get("X-Sum"))
	})
	overEach(t, Config{}, mux, func(t *testing.T, p *pair) {
		t.Run("method, host, path, body and status arrive", func(t *testing.T) {
			r := request(t, http.MethodPut, "/echo?a=%2F&b", strings.NewReader("hello"))
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprint(response.StatusCode, " ", response.Header.Get("X-Method"), " ", response.Header.Get("X-Host"), " ",
				response.Header.Get("X-Uri"), " ", readAll(t, response))
			if want := "202 PUT member /echo?a=%2F&b hello"; got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
		t.Run("a handler that does nothing answers 200", func(t *testing.T) {
			if got := p.get(t, "/nothing"); got != "" {
				t.Errorf("got %q, want an empty body", got)
			}
		})
		t.Run("trailers pass both ways", func(t *testing.T) {
			r := request(t, http.MethodPost, "/trailer", struct{ io.Reader }{strings.NewReader("x")})
			r.Trailer = http.Header{"X-Sum": {"request"}}
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			readAll(t, response)
			if got := response.Trailer.Get("X-Sum"); got != "response after request" {
				t.Errorf("got trailer %q, want \"response after request\"", got)
			}
		})
		t.Run("a request without a host is sent", func(t *testing.T) {
			r := request(t, http.MethodGet, "/echo", nil)
			r.URL.Host, r.URL.Scheme, r.Host = "", "", ""
			response, err := p.session.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			readAll(t, response)
		})
		t.Run("no stream is left", func(t *testing.T) {
			if n := p.session.Streams(); n != 0 {
				t.Errorf("%d streams, want none left", n)
			}
		})
	})
}

func TestWatch(t *testing.T) {
	events := make(chan string)
	ended := make(chan struct{}, 1)
	watch := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		for {
			select {
			case event := <-events:
				_, _ = io.WriteString(w, event)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				ended <- struct{}{}
				return
			}
		}
	})
	overEach(t, Config{}, watch, func(t *testing.T, p *pair) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil).WithContext(ctx))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		for i := range 3 {
			event := fmt.Sprintf("event %d", i)
			events <- event
			got := make([]byte, len(event))
			if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != event {
				t.Fatalf("got %q, %v, want each event as soon as it is flushed", got, err)
			}
		}
		if n := p.session.Streams(); n != 1 {
			t.Errorf("%d streams, want 1", n)
		}
		cancel()
		await(t, "the handler's context to end with the request's", ended)
	})
}

func TestBulk(t *testing.T) {
	content := make([]byte, 2<<20)
	_, _ = rand.Read(content)
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || !bytes.Equal(got, content) {
			w.WriteHeader(http.StatusTeapot)
		}
		_, _ = w.Write(content)
	})
	overEach(t, Config{}, echo, func(t *testing.T, p *pair) {
		var wait sync.WaitGroup
		for range 4 {
			wait.Go(func() {
				response, err := p.session.RoundTrip(request(t, http.MethodPost, "/", bytes.NewReader(content)))
				if err != nil {
					t.Error(err)
					return
				}
				if readAll(t, response) != string(content) || response.StatusCode != http.StatusOK {
					t.Error("got other content back, want the same 2 MiB")
				}
			})
		}
		wait.Wait()
	})
}

func TestManyAtOnce(t *testing.T) {
	const n = 1000 // net/http2's own limits are 100 before the first settings and 250 afterward
	var arrived sync.WaitGroup
	barrier := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived.Done()
		arrived.Wait() // no request is answered before all have arrived
		_, _ = io.WriteString(w, r.URL.Path)
	})
	overEach(t, Config{}, barrier, func(t *testing.T, p *pair) {
		arrived.Add(n)
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() {
				path := fmt.Sprintf("/%d", i)
				response, err := p.session.RoundTrip(request(t, http.MethodGet, path, nil))
				if err != nil {
					t.Error(err)
					arrived.Done()
					return
				}
				if got := readAll(t, response); got != path {
					t.Errorf("got the answer for %s, want the one for %s", got, path)
				}
			})
		}
		wait.Wait()
	})
}

func TestStuckStreamsDoNotDisturbOthers(t *testing.T) {
	release := make(chan struct{})
	content := make([]byte, 4<<20)
	started := make(chan struct{}, 300)
	mux := http.NewServeMux()
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "small") })
	mux.HandleFunc("/stuck", func(http.ResponseWriter, *http.Request) {
		started <- struct{}{}
		<-release
	})
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	})
	mux.HandleFunc("/download", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(content)
	})
	// A window smaller than the default keeps 300 stalled readers cheap. The test is about who waits for whom.
	overEach(t, Config{StreamWindow: 256 << 10}, mux, func(t *testing.T, p *pair) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wait sync.WaitGroup
		defer wait.Wait()
		defer cancel()
		for range 8 { // together more than the library's window for a connection
			wait.Go(func() {
				r := request(t, http.MethodPost, "/stuck", bytes.NewReader(content)).WithContext(ctx)
				if _, err := p.session.RoundTrip(r); !errors.Is(err, context.Canceled) {
					t.Errorf("a stuck upload ended with %v, want it to wait until it is canceled", err)
				}
			})
			await(t, "the upload to be stuck", started)
		}
		for range 300 {
			response, err := p.session.RoundTrip(request(t, http.MethodGet, "/download", nil).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }() // the test does not read it
		}
		within, done := context.WithTimeout(t.Context(), patience)
		defer done()
		for range 20 {
			response, err := p.session.RoundTrip(request(t, http.MethodGet, "/small", nil).WithContext(within))
			if err != nil {
				t.Fatalf("a small request failed beside stuck ones: %v", err)
			}
			readAll(t, response)
		}
		response, err := p.session.RoundTrip(request(t, http.MethodPost, "/upload",
			bytes.NewReader(content)).WithContext(within))
		if err != nil {
			t.Fatalf("an upload failed beside stuck ones: %v", err)
		}
		if got := readAll(t, response); got != fmt.Sprint(len(content)) {
			t.Errorf("uploaded %s bytes, want %d", got, len(content))
		}
		response, err = p.session.RoundTrip(request(t, http.MethodGet, "/download", nil).WithContext(within))
		if err != nil {
			t.Fatalf("a download failed beside stuck ones: %v", err)
		}
		if got := len(readAll(t, response)); got != len(content) {
			t.Errorf("downloaded %d bytes, want %d", got, len(content))
		}
	})
	close(release)
}

func TestBackPressure(t *testing.T) {
	const window = 128 << 10
	written := make(chan int, 1)
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		total := 0
		block := make([]byte, 16<<10)
		for {
			// The deadline tells the test that the writer is waiting.
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
			n, err := w.Write(block)
			total += n
			if err != nil {
				written <- total
				return
			}
		}
	})
	overEach(t, Config{StreamWindow: window}, endless, func(t *testing.T, p *pair) {
		response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		// Without a reader, the handler can write the window and its current block.
		if got := await(t, "the handler to be blocked", written); got > window+64<<10 {
			t.Errorf("the handler wrote %d unread bytes, want at most the window of %d and one block", got, window)
		}
	})
}
