// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
)

const linkRoundTrip = 50 * time.Millisecond

// overLink connects both ends by a link with a round trip of 50 ms and no limit on its rate. Time is simulated, so call
// it in a synctest bubble.
func overLink(t *testing.T, cfg Config, h http.Handler) *pair {
	t.Helper()
	hubEnd, near := net.Pipe()
	far, agentEnd := net.Pipe()
	var both sync.WaitGroup
	both.Go(func() { delay(near, far) })
	both.Go(func() { delay(far, near) })
	t.Cleanup(both.Wait)
	return overConns(t, cfg, h, hubEnd, agentEnd)
}

// delay copies data in one direction, and delays each byte by half a round trip.
func delay(to, from net.Conn) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	underWay := make(chan piece, 10_000)
	go func() {
		defer close(underWay)
		for {
			buffer := make([]byte, 64<<10)
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			underWay <- piece{buffer[:n], time.Now().Add(linkRoundTrip / 2)}
		}
	}()
	for p := range underWay {
		<-time.After(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
	for range underWay { // lets the reader end
	}
}

func TestWindowGrowsWithTheBandwidthDelayProduct(t *testing.T) {
	const size = 32 << 20
	content := make([]byte, size)
	mux := http.NewServeMux()
	mux.HandleFunc("/download", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		_, _ = fmt.Fprint(w, n)
	})
	for _, tt := range []struct {
		name, method, path string
		max                int
		trips              int // round trips that 32 MiB may take
	}{
		{"a download", http.MethodGet, "/download", 0, 11},
		{"an upload", http.MethodPost, "/upload", 0, 11},
		{"a download whose window may not grow", http.MethodGet, "/download", 1 << 20, 34},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := &Memory{}
				p := overLink(t, Config{Memory: memory, MaxStreamWindow: tt.max}, mux)
				p.get(t, "/upload") // so that the agent has measured the round trip too
				start := time.Now()
				var body io.Reader
				if tt.method == http.MethodPost {
					body = bytes.NewReader(content)
				}
				response, err := p.session.RoundTrip(request(t, tt.method, tt.path, body))
				if err != nil {
					t.Fatal(err)
				}
				readAll(t, response)
				took := time.Since(start)
				if took > time.Duration(tt.trips)*linkRoundTrip {
					t.Errorf("32 MiB took %.1f round trips, want at most %d", float64(took)/float64(linkRoundTrip), tt.trips)
				}
				synctest.Wait()
				if grown := memory.grown.Load(); grown != 0 {
					t.Errorf("%d bytes of growth are still reserved after the end of the stream, want 0", grown)
				}
				if hub, agent := len(p.session.link.windows.streams), len(p.conn.link.windows.streams); hub+agent != 0 {
					t.Errorf("the hub still counts %d streams and the agent %d, want none", hub, agent)
				}
			})
		})
	}
}

// TestCanceledStreamsAreForgotten ends streams in each way except by a complete response.
func TestCanceledStreamsAreForgotten(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/watch", forEver)
	mux.HandleFunc("/early",
		func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the body was not read") })
	mux.HandleFunc("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	synctest.Test(t, func(t *testing.T) {
		p := overLink(t, Config{}, mux)
		for range 3 {
			for _, path := range []string{"/watch", "/early", "/abort"} {
				ctx, cancel := context.WithCancel(t.Context())
				response, err := p.session.RoundTrip(request(t, http.MethodPost, path,
					bytes.NewReader(make([]byte, 4<<20))).WithContext(ctx))
				if err == nil {
					_ = response.Body.Close()
				}
				cancel()
			}
		}
		<-time.After(time.Second)
		synctest.Wait()
		if hub, agent := len(p.session.link.windows.streams), len(p.conn.link.windows.streams); hub+agent != 0 {
			t.Errorf("the hub still counts %d streams and the agent %d, want none", hub, agent)
		}
	})
}

func TestWindowOfASlowReaderDoesNotGrow(t *testing.T) {
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for block := make([]byte, 64<<10); ; {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		memory := &Memory{}
		p := overLink(t, Config{Memory: memory}, endless)
		response, err := p.session.RoundTrip(request(t, http.MethodGet, "/", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		for block := make([]byte, 64<<10); time.Since(p.session.link.start) < 5*time.Second; {
			if _, err := io.ReadFull(response.Body, block); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Millisecond) // a window in 160 ms, more than two round trips
		}
		if grown := memory.grown.Load(); grown != 0 {
			t.Errorf("the window grew by %d bytes, want 0", grown)
		}
	})
}

// TestGrowthIsBounded lets streams without an end grow. The streams of one tunnel stay within its share, and all
// streams together stay within the pool.
func TestGrowthIsBounded(t *testing.T) {
	memory := &Memory{}
	var tunnels []*windows
	for range 6 {
		w := newWindows(Config{Memory: memory}.withDefaults(), true)
		w.pings.least = time.Hour
		tunnels = append(tunnels, w)
		for id := uint32(1); id < 20; id += 2 {
			w.open(id)
			for range 20 {
				stream := w.streams[id]
				size := stream.credit
				if err := w.arrive(stream, size); err != nil {
					t.Fatal(err)
				}
				w.refill(stream, size, true)
				w.unread -= size
			}
			if size := w.streams[id].size; size > 16<<20 {
				t.Errorf("the window of a stream grew to %d bytes, want at most MaxStreamWindow", size)
			}
		}
		if w.reserved > growthPerTunnel {
			t.Errorf("the windows of a tunnel grew by %d bytes, want at most its share", w.reserved)
		}
	}
	if grown := memory.grown.Load(); grown < growthShared/2 || grown > growthShared {
		t.Errorf("all windows grew by %d bytes, want between half of the limit and all of it, %d", grown, growthShared)
	}
	t.Run("the memory of a stream stays reserved until its data is read", func(t *testing.T) {
		w := tunnels[0]
		before := memory.grown.Load()
		if err := w.arrive(w.streams[1], 5<<20); err != nil {
			t.Fatal(err)
		}
		grown := w.streams[1].size - w.initial
		w.close(1)
		if freed := before - memory.grown.Load(); freed != grown-5<<20 {
			t.Errorf("%d of %d bytes were released while 5 MiB are unread, want none of the unread ones", freed, grown)
		}
		var read [4]byte
		binary.BigEndian.PutUint32(read[:], 5<<20)
		if _, err := w.sent(Frame{Type: http2.FrameWindowUpdate}, read[:], true); err != nil {
			t.Fatal(err)
		}
		if freed := before - memory.grown.Load(); freed != grown {
			t.Errorf("%d bytes were released after all data was read, want %d", freed, grown)
		}
	})
	for _, w := range tunnels {
		w.end()
	}
	if grown := memory.grown.Load(); grown != 0 {
		t.Errorf("%d bytes are reserved after the end of all tunnels, want 0", grown)
	}
}

// TestAgentThatExceedsItsWindowEndsTheTunnel sends more than the agent was told, but less than net/http2 was given.
func TestAgentThatExceedsItsWindowEndsTheTunnel(t *testing.T) {
	hubEnd, agentEnd := net.Pipe()
	writes := make(chan func(*http2.Framer), 10) // a pipe has no buffer, so the goroutine that reads must not write
	go func() {
		framer := http2.NewFramer(agentEnd, nil)
		for write := range writes {
			write(framer)
		}
	}()
	go func() {
		defer close(writes)
		writes <- func(framer *http2.Framer) { _ = framer.WriteSettings() }
		reader := bufio.NewReader(agentEnd)
		_, _ = reader.Discard(len(http2.ClientPreface))
		framer := http2.NewFramer(nil, reader)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := frame.(type) {
			case *http2.PingFrame:
				data := f.Data
				writes <- func(framer *http2.Framer) { _ = framer.WritePing(true, data) }
			case *http2.HeadersFrame:
				id := f.StreamID
				writes <- func(framer *http2.Framer) {
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: true})
					for block := make([]byte, 16<<10); framer.WriteData(id, false, block) == nil; {
					}
				}
			}
		}
	}()
	session, err := NewSession(t.Context(), hubEnd, quiet(Config{}))
	if err != nil {
		t.Fatal(err)
	}
	response, err := session.RoundTrip(request(t, http.MethodGet, "/", nil))
	if err == nil {
		defer func() { _ = response.Body.Close() }() // the test does not read it
	}
	await(t, "the end of the tunnel", session.Done())
	if err := session.Err(); !errors.Is(err, ErrProtocol) || !errors.Is(err, errWindow) {
		t.Errorf("the tunnel ended with %v, want %v", err, errWindow)
	}
	if unread := session.link.windows.unread; unread > 1<<20+16<<10 {
		t.Errorf("the hub accepted %d bytes, want at most the window of 1 MiB", unread)
	}
}

func TestSettingsThatAreWrittenInPartsEndTheTunnel(t *testing.T) {
	wire := unhex(hubBegins)
	cut := len(http2.ClientPreface) + frameHeadSize + 3
	l := newLink(nil, Config{}.withDefaults(), true)
	_, first := l.sent.scan(wire[:cut])
	_, second := l.sent.scan(wire[cut:])
	if first != nil || !errors.Is(second, errSettings) {
		t.Errorf("got %v and %v, want nil and %v", first, second, errSettings)
	}
}
