// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

// hangable is a connection whose other end can be made to hang: its kernel still accepts bytes, but no data comes back.
type hangable struct {
	net.Conn
	hung   chan struct{}
	closed chan struct{}
	once   sync.Once
}

func newHangable(conn net.Conn) *hangable {
	return &hangable{Conn: conn, hung: make(chan struct{}), closed: make(chan struct{})}
}

func (h *hangable) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	select {
	case <-h.hung:
		<-h.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (h *hangable) Write(p []byte) (int, error) {
	select {
	case <-h.hung:
		return len(p), nil
	default:
		return h.Conn.Write(p)
	}
}

func (h *hangable) Close() error {
	h.once.Do(func() { close(h.closed) })
	return h.Conn.Close()
}

func answer(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// forEver handles a watch without events.
func forEver(w http.ResponseWriter, r *http.Request) {
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func TestHungPeer(t *testing.T) {
	t.Run("the hub notices a hung agent after 25 s, and the running request ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			link := newHangable(hubEnd)
			ends := make(chan error, 2)
			p := overConns(t, Config{OnEnd: func(err error) { ends <- err }}, http.HandlerFunc(forEver), link, agentEnd)
			response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // until the last frame of the response is read
			start := time.Now()
			close(link.hung)
			if _, err := io.ReadAll(response.Body); err == nil {
				t.Error("the watch looks complete, want an error")
			}
			_ = response.Body.Close()
			if took := time.Since(start); took != 25*time.Second {
				t.Errorf("noticed after %v, want 25 s", took)
			}
			wantError(t, p.session.Err(), ErrPingTimeout)
			wantError(t, <-ends, ErrPingTimeout)
			if Reason(p.session.Err()) != "ping-timeout" {
				t.Errorf("reason %q, want ping-timeout", Reason(p.session.Err()))
			}
			_ = agentEnd.Close()
			p.served <- <-p.served // Serve has returned
			if len(ends) > 0 {
				t.Error("OnEnd was called twice, want once")
			}
		})
	})
	t.Run("the agent notices a hung hub after 25 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			link := newHangable(agentEnd)
			p := overConns(t, Config{}, http.HandlerFunc(answer), hubEnd, link)
			synctest.Wait()
			start := time.Now()
			close(link.hung)
			err := <-p.served
			p.served <- nil
			wantError(t, err, ErrPingTimeout)
			if took := time.Since(start); took < 20*time.Second || took > 25*time.Second {
				t.Errorf("noticed after %v, want 25 s", took)
			}
		})
	})
	// This test does not run in a bubble: the ping waits for the lock of the stuck write, and meanwhile the clock of a
	// bubble would stand still.
	for _, test := range []struct {
		name string
		cfg  Config
		want error
	}{
		{"by the time a write may take", Config{WriteTimeout: 50 * time.Millisecond}, ErrWriteTimeout},
		{"by the ping that cannot be written",
			Config{PingInterval: 30 * time.Millisecond, PingTimeout: 20 * time.Millisecond}, ErrPingTimeout},
	} {
		t.Run("an agent that does not even accept bytes is noticed "+test.name, func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			stuck := newHangable(agentEnd)
			newPair(t, NewConn(stuck, Config{}), http.HandlerFunc(answer))
			session, err := NewSession(t.Context(), hubEnd, test.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = session.Close() }()
			close(stuck.hung)
			for session.Err() == nil { // the pending Read may swallow the first one
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if _, err := session.RoundTrip(request(t, http.MethodGet, "/", nil).WithContext(ctx)); err == nil {
					t.Error("the request succeeds, want an error")
				}
				cancel()
			}
			wantError(t, session.Err(), test.want)
		})
	}
}

func TestKeepalive(t *testing.T) {
	t.Run("an idle tunnel stays open and pings after each silence", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var pings atomic.Int32
			p := overPipe(t, Config{Observer: Observer{Ping: func(time.Duration) { pings.Add(1) }}}, http.HandlerFunc(answer))
			time.Sleep(time.Hour)
			if got := p.get(t, "/"); got != "ok" {
				t.Errorf("got %q, want \"ok\"", got)
			}
			// Both ends ping, and the end that was pinged has heard something. So there are between 2 and 4 pings per
			// minute.
			if n := pings.Load(); n < 60 || n > 241 {
				t.Errorf("the hub pinged %d times in an hour, want between 60 and 241", n)
			}
		})
	})
	t.Run("a tunnel in which the reader blocks one direction stays open", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 8<<20)) })
			p := overPipe(t, Config{}, h)
			response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour) // without a reader
			if n, err := io.Copy(io.Discard, response.Body); n != 8<<20 || err != nil {
				t.Errorf("got %d bytes, %v, want all 8 MiB", n, err)
			}
			_ = response.Body.Close()
		})
	})
}

func TestEnds(t *testing.T) {
	overEach(t, Config{}, http.HandlerFunc(forEver), func(t *testing.T, p *pair) {
		response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.session.Err(); err != nil {
			t.Errorf("an open session has the error %v, want none", err)
		}
		_ = innermostOf(p.conn).Close() // as the kernel does for a killed process
		await(t, "the hub to notice at once", p.session.Done())
		wantError(t, p.session.Err(), ErrPeerClosed)
		if _, err := io.ReadAll(response.Body); err == nil {
			t.Error("the watch looks complete, want an error")
		}
		_ = response.Body.Close()
		_, err = p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		wantError(t, err, ErrNotProcessed)
		wantError(t, err, ErrPeerClosed)
	})
	overEach(t, Config{}, http.HandlerFunc(forEver), func(t *testing.T, p *pair) {
		for range 2 {
			if err := p.session.Close(); err != nil {
				t.Errorf("close: %v, want none", err)
			}
		}
		wantError(t, p.session.Err(), ErrClosed)
		err := await(t, "the agent to notice at once", p.served)
		p.served <- nil
		wantError(t, err, ErrPeerClosed)
		_, err = p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		wantError(t, err, ErrNotProcessed)
	})
	overEach(t, Config{}, http.HandlerFunc(forEver), func(t *testing.T, p *pair) {
		for range 2 {
			_ = p.conn.Close()
		}
		err := await(t, "Serve to return", p.served)
		p.served <- nil
		wantError(t, err, ErrClosed)
		await(t, "the hub to notice", p.session.Done())
	})
}

// innermostOf returns the socket, or the pipe, below an agent's tunnel.
func innermostOf(c *Conn) net.Conn {
	below := c.conn.Conn
	if ws, ok := below.(*wsConn); ok {
		return innermost(ws.ws.NetConn())
	}
	return below
}

func TestStopAndDrain(t *testing.T) {
	release := make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.(http.Flusher).Flush()
		<-release
		_, _ = io.WriteString(w, "all of it")
	})
	begin := func(t *testing.T, p *pair) *http.Response {
		response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	t.Run("an agent that stops lets running requests end and takes no more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release = make(chan struct{})
			p := overPipe(t, Config{}, slow)
			response := begin(t, p)
			p.stop()
			synctest.Wait()
			_, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
			wantError(t, err, ErrNotProcessed)
			close(release)
			if got := readAll(t, response); got != "all of it" {
				t.Errorf("got %q, want \"all of it\"", got)
			}
			<-p.session.Done()
			wantError(t, p.session.Err(), ErrPeerClosed)
			err = <-p.served
			p.served <- nil
			wantError(t, err, ErrClosed)
		})
	})
	t.Run("an agent that stops waits no longer than DrainTimeout", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release = make(chan struct{})
			defer close(release)
			p := overPipe(t, Config{DrainTimeout: time.Minute}, slow)
			response := begin(t, p)
			start := time.Now()
			p.stop()
			<-p.session.Done()
			if took := time.Since(start); took != time.Minute {
				t.Errorf("took %v, want one minute", took)
			}
			_ = response.Body.Close()
		})
	})
	t.Run("a hub that drains lets running requests end and sends no more", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release = make(chan struct{})
			p := overPipe(t, Config{}, slow)
			response := begin(t, p)
			drained := make(chan error, 1)
			go func() { drained <- p.session.Drain(t.Context()) }()
			synctest.Wait()
			_, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
			wantError(t, err, ErrNotProcessed)
			close(release)
			if got := readAll(t, response); got != "all of it" {
				t.Errorf("got %q, want \"all of it\"", got)
			}
			if err := <-drained; err != nil {
				t.Error(err)
			}
			wantError(t, p.session.Err(), ErrClosed)
		})
	})
	t.Run("a hub that drains waits no longer than its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			release = make(chan struct{})
			defer close(release)
			p := overPipe(t, Config{}, slow)
			response := begin(t, p)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			wantError(t, p.session.Drain(ctx), context.DeadlineExceeded)
			wantError(t, p.session.Err(), ErrClosed)
			_ = response.Body.Close()
		})
	})
}

func TestNothingIsLeftRunning(t *testing.T) {
	agent, _ := withTarget(t)
	var watch sync.WaitGroup
	for name, carrier := range carriers() {
		t.Run("over "+name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			t.Run("", func(t *testing.T) { // the end of the subtest runs the cleanups
				p := carrier(t, Config{}, agent)
				for range 10 {
					readAll(t, p.upgrade(t, "/declines"))
					stream := p.upgraded(t, "/echo")
					watch.Go(func() { _, _ = io.Copy(io.Discard, stream) })
				}
			})
			watch.Wait()
			agent.(*httputil.ReverseProxy).Transport.(*http.Transport).CloseIdleConnections()
			deadline := time.Now().Add(patience)
			for runtime.NumGoroutine() > before+2 && time.Now().Before(deadline) { // 2: the target's own
				runtime.Gosched()
			}
			if n := runtime.NumGoroutine(); n > before+2 {
				stacks := make([]byte, 1<<20)
				t.Errorf("%d goroutines before and %d after, want no more:\n%s", before, n, stacks[:runtime.Stack(stacks, true)])
			}
		})
	}
}

func TestIdleSessionHasOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hubEnd, agentEnd := net.Pipe()
		p := overConns(t, Config{}, http.HandlerFunc(answer), hubEnd, agentEnd)
		p.get(t, "/")
		synctest.Wait()
		stacks := make([]byte, 1<<20)
		all := string(stacks[:runtime.Stack(stacks, true)])
		hub := 0
		for _, stack := range strings.Split(all, "\n\n") {
			if !strings.Contains(stack, "synctest bubble") {
				continue // of another test
			}
			if strings.Contains(stack, "h2.(*Client)") || strings.Contains(stack, "tunnel.(*Session)") ||
				strings.Contains(stack, "tunnel.(*keepalive)") {
				hub++
			}
		}
		if hub != 1 {
			t.Errorf("the session has %d goroutines, want 1", hub)
		}
	})
}

// SPEC.md contains the first bytes of each end. Change it whenever a change of settings changes these bytes.
const (
	hubBegins = "" +
		"505249202a20485454502f322e300d0a0d0a534d0d0a0d0a" + // the preface of HTTP/2
		"000018040000000000" + // SETTINGS
		"000200000000" + // no server push
		"000400100000" + // window of a stream: 1 MiB
		"000500010000" + // frame: 64 KiB
		"000600010140" + // header list: 64 KiB, and 320 bytes that HTTP/2 itself needs
		"000004080000000000" + "40000000" // WINDOW_UPDATE of the connection: 1 GiB
	agentBegins = "" +
		"000024040000000000" + // SETTINGS
		"000500010000" + // frame: 64 KiB
		"0003000186a0" + // streams: 100,000
		"000600100140" + // header list: 1 MiB, and 320 bytes
		"000100001000" + // header table: 4 KiB
		"000400100000" + // window of a stream: 1 MiB
		"000900000001" + // no priorities as in RFC 7540
		"000004080000000000" + "7fff0000" // WINDOW_UPDATE of the connection: up to 2 GiB
)

func TestFirstBytes(t *testing.T) {
	t.Run("of the hub", func(t *testing.T) {
		hubEnd, agentEnd := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		started := make(chan error, 1)
		go func() {
			_, err := NewSession(ctx, hubEnd, Config{})
			started <- err
		}()
		wantBytes(t, agentEnd, hubBegins)
		go func() { _, _ = io.Copy(io.Discard, agentEnd) }()
		cancel()
		wantError(t, await(t, "the session to give up", started), context.Canceled)
	})
	t.Run("of the agent", func(t *testing.T) {
		hubEnd, agentEnd := net.Pipe()
		p := newPair(t, NewConn(agentEnd, Config{}), http.HandlerFunc(answer))
		// The agent would answer the rest of the hub's first frames, before or after the bytes that this test expects.
		go func() { _, _ = io.WriteString(hubEnd, http2.ClientPreface) }()
		wantBytes(t, hubEnd, agentBegins)
		_ = hubEnd.Close()
		err := await(t, "Serve to return", p.served)
		p.served <- nil
		wantError(t, err, ErrPeerClosed)
	})
}

func wantBytes(t *testing.T, from net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want)/2)
	if _, err := io.ReadFull(from, got); err != nil {
		t.Fatal(err)
	}
	if hex.EncodeToString(got) != want {
		t.Errorf("got  %x\nwant %s", got, want)
	}
}

func TestObserver(t *testing.T) {
	var (
		mu            sync.Mutex
		frames        []string
		read, written int
	)
	locked := func(f func()) { mu.Lock(); defer mu.Unlock(); f() }
	observer := Observer{
		BytesRead:    func(n int) { locked(func() { read += n }) },
		BytesWritten: func(n int) { locked(func() { written += n }) },
		Frame:        func(f Frame) { locked(func() { frames = append(frames, f.String()) }) },
	}
	hubEnd, agentEnd := net.Pipe()
	newPair(t, NewConn(agentEnd, Config{}), http.HandlerFunc(answer))
	session, err := NewSession(t.Context(), hubEnd, Config{Observer: observer})
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{session: session}
	p.get(t, "/secret-path")
	_ = session.Close()
	mu.Lock()
	defer mu.Unlock()
	if read == 0 || written == 0 {
		t.Errorf("the observer counted %d bytes read and %d written, want some of both", read, written)
	}
	all := strings.Join(frames, "\n")
	for _, want := range []string{
		"sent SETTINGS stream=0 flags=0x0 length=24", "received SETTINGS stream=0 flags=0x0 length=36",
		"sent HEADERS stream=1 flags=0x5", "received HEADERS stream=1 flags=0x4", "received DATA stream=1 flags=0x1 length=2",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("got frames\n%[2]s\nwant %[1]q among them", want, all)
		}
	}
	if strings.Contains(all, "secret") {
		t.Error("the frames show the path, want no content")
	}
}

func TestRequestWhoseTunnelEndsBeforeTheAnswer(t *testing.T) {
	for _, tt := range []struct {
		method string
		header http.Header
		body   io.Reader
		config Config
		again  bool
	}{
		{method: http.MethodGet, again: true},
		{method: http.MethodGet, config: Config{Repeatable: func(*http.Request) bool { return false }}},
		{method: http.MethodHead, again: true},
		{method: http.MethodGet, body: strings.NewReader("body")},
		{method: http.MethodGet, header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}}, // exec
		{method: http.MethodDelete},
		{method: http.MethodPost},
	} {
		name := fmt.Sprint(tt.method, " ", tt.header, " ", tt.body != nil, " ", tt.config.Repeatable == nil)
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{}, 1)
			p := overPipe(t, tt.config, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				seen <- struct{}{}
				<-r.Context().Done()
			}))
			failed := make(chan error, 1)
			r := request(t, tt.method, "/", tt.body)
			if tt.header != nil {
				r.Header = tt.header
			}
			go func() {
				_, err := p.session.RoundTrip(r)
				failed <- err
			}()
			await(t, "the handler to see the request", seen)
			_ = innermostOf(p.conn).Close()
			err := await(t, "the request to fail", failed)
			wantError(t, err, ErrPeerClosed)
			if again := errors.Is(err, ErrNotProcessed); again != tt.again {
				t.Errorf("the request may be sent again: %t, want %t: %v", again, tt.again, err)
			}
		})
	}
}

func TestRefusedStreamMayBeSentAgain(t *testing.T) {
	// This peer speaks HTTP/2 frame by frame, so that it can refuse requests that a real agent would refuse only in a
	// race.
	hubEnd, agentEnd := net.Pipe()
	writes := make(chan func(), 10) // a pipe has no buffer, so the goroutine that reads must not write
	go func() {
		for write := range writes {
			write()
		}
	}()
	go func() {
		defer close(writes)
		reader := bufio.NewReader(agentEnd)
		_, _ = reader.Discard(len(http2.ClientPreface))
		framer := http2.NewFramer(agentEnd, reader)
		writes <- func() { _ = framer.WriteSettings() }
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := frame.(type) {
			case *http2.PingFrame:
				data := f.Data
				writes <- func() { _ = framer.WritePing(true, data) }
			case *http2.HeadersFrame:
				if f.StreamID == 1 {
					writes <- func() { _ = framer.WriteRSTStream(1, http2.ErrCodeRefusedStream) }
				} else {
					writes <- func() { _ = framer.WriteGoAway(1, http2.ErrCodeNo, nil) }
				}
			}
		}
	}()
	session, err := NewSession(t.Context(), hubEnd, Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = session.Close() }()
	for _, how := range []string{"REFUSED_STREAM", "GOAWAY", "an earlier GOAWAY"} {
		_, err := session.RoundTrip(request(t, http.MethodGet, "/", nil))
		if !errors.Is(err, ErrNotProcessed) {
			t.Errorf("got %v after %s, want an answer", how, err)
		}
	}
}

// addressed calls a function when its address is read. net/http2 reads the address before it knows the connection.
type addressed struct {
	net.Conn
	read func()
}

func (a *addressed) RemoteAddr() net.Addr {
	a.read()
	return a.Conn.RemoteAddr()
}

func TestAnAgentThatStopsWhileItsTunnelStartsSendsGOAWAY(t *testing.T) {
	hubEnd, agentEnd := net.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var conn *Conn
	draining := func() bool {
		conn.link.mu.Lock()
		defer conn.link.mu.Unlock()
		return conn.link.cause != nil
	}
	conn = NewConn(&addressed{agentEnd, func() {
		stop()
		for !draining() {
			runtime.Gosched()
		}
	}}, quiet(Config{DrainTimeout: time.Hour}))
	defer func() { _ = conn.Close() }()
	served := make(chan error, 1)
	go func() { served <- conn.Serve(ctx, http.NotFoundHandler()) }()
	if session, err := NewSession(t.Context(), hubEnd, quiet(Config{})); err == nil {
		defer func() { _ = session.Close() }()
	} // the tunnel may end before the ping is answered
	if err := await(t, "the agent to send GOAWAY and to end the tunnel", served); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve returned %v, want %v", err, ErrClosed)
	}
}

func TestGarbage(t *testing.T) {
	headers := "000000010500000001" // HEADERS of stream 1, which the hub has not opened
	for _, test := range []struct {
		name  string
		bytes []byte
	}{
		{"HTTP/1.1", []byte("HTTP/1.1 400 Bad Request\r\n\r\n")},
		{"zeros", make([]byte, 1<<16)},
		{"ones", bytes.Repeat([]byte{0xff}, 1<<16)},
		{"a frame of a stream that does not exist", append(unhex("000000040000000000"), unhex(headers)...)},
		{"DATA before SETTINGS", unhex("000001000000000001ff")},
		{"a frame that is too long", unhex("ffffff000000000001")},
	} {
		t.Run("an agent that sends "+test.name+" is refused by the hub", func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, agentEnd) }()
			go func() {
				_, _ = agentEnd.Write(test.bytes)
				_ = agentEnd.Close()
			}()
			session, err := NewSession(t.Context(), hubEnd, quiet(Config{}))
			if err == nil {
				_ = session.Close()
				t.Error("the session started, want an error")
			}
		})
		t.Run("a hub that sends "+test.name+" is refused by the agent", func(t *testing.T) {
			hubEnd, agentEnd := net.Pipe()
			p := newPair(t, NewConn(agentEnd, quiet(Config{})), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				t.Error("the handler was called, want no call")
			}))
			go func() { _, _ = io.Copy(io.Discard, hubEnd) }()
			go func() {
				_, _ = hubEnd.Write(test.bytes)
				_ = hubEnd.Close()
			}()
			err := await(t, "Serve to return", p.served)
			p.served <- nil
			if err == nil {
				t.Error("Serve returned nil, want an error")
			}
		})
	}
}

func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", s, err))
	}
	return b
}
