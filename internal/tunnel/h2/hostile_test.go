// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// scriptedAgent speaks HTTP/2 frame by frame. It answers PING and SETTINGS, and returns the flow-control credit that a
// request's body has used.
type scriptedAgent struct {
	settings []http2.Setting
	answer   func(to *http2.Framer, id uint32) // called for a whole request
	early    func(to *http2.Framer, id uint32) // called for a request whose body has not arrived; may be nil
	takes    func(bytes uint32)                // called for a piece of a request's body; nil if there are no bodies
}

// client returns a client of the agent.
func (a scriptedAgent) client(t *testing.T) *Client {
	t.Helper()
	near, far := net.Pipe()
	writes := make(chan func(*http2.Framer), 1000) // a pipe has no buffer, so the goroutine that reads must not write
	written := make(chan struct{})
	go func() {
		defer close(written)
		buffered := bufio.NewWriter(far) // lets the client read several frames at once
		framer := http2.NewFramer(buffered, nil)
		framer.AllowIllegalWrites = true
		for write := range writes {
			write(framer)
			_ = buffered.Flush()
		}
	}()
	go func() {
		defer close(writes)
		writes <- func(framer *http2.Framer) { _ = framer.WriteSettings(a.settings...) }
		reader := bufio.NewReader(far)
		_, _ = reader.Discard(len(http2.ClientPreface))
		framer := http2.NewFramer(nil, reader)
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			switch f := frame.(type) {
			case *http2.PingFrame:
				if data := f.Data; !f.IsAck() {
					writes <- func(framer *http2.Framer) { _ = framer.WritePing(true, data) }
				}
			case *http2.SettingsFrame:
				if !f.IsAck() {
					writes <- func(framer *http2.Framer) { _ = framer.WriteSettingsAck() }
				}
			case *http2.HeadersFrame:
				if id := f.StreamID; f.StreamEnded() {
					writes <- func(framer *http2.Framer) { a.answer(framer, id) }
				} else if a.early != nil {
					writes <- func(framer *http2.Framer) { a.early(framer, id) }
				}
			case *http2.DataFrame:
				a.takes(f.Length)
				id, size, ended := f.StreamID, f.Length, f.StreamEnded()
				writes <- func(framer *http2.Framer) {
					if ended {
						a.answer(framer, id)
						return
					}
					_ = framer.WriteWindowUpdate(0, size)
					_ = framer.WriteWindowUpdate(id, size)
				}
			}
		}
	}()
	t.Cleanup(func() { <-written }) // after the end of the client
	return start(t, near)
}

// block encodes a header that does not depend on the state of the encoder.
func block(fields ...string) []byte {
	var out bytes.Buffer
	encoder := hpack.NewEncoder(&out)
	encoder.SetMaxDynamicTableSize(0)
	for i := 0; i < len(fields); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return out.Bytes()
}

// respond answers a request like an honest agent.
func respond(to *http2.Framer, id uint32) {
	_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200"), EndHeaders: true})
	_ = to.WriteData(id, true, []byte("fine"))
}

// headersOnly begins a response.
func headersOnly(to *http2.Framer, id uint32, fields ...string) {
	_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(fields...), EndHeaders: true})
}

// TestHostileFrames lists the frames that an agent may send for the first request, and what they end: nothing, the
// request, or the connection.
func TestHostileFrames(t *testing.T) {
	const flood = 20_000
	long := strings.Repeat("x", 16<<10)
	for _, test := range []struct {
		name   string
		ends   string // "", "request" or "connection"
		attack func(to *http2.Framer, id uint32)
	}{
		{"a flood of SETTINGS", "", func(to *http2.Framer, id uint32) {
			for i := range uint32(flood) {
				_ = to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
			}
			respond(to, id)
		}},
		{"a flood of PING", "", func(to *http2.Framer, id uint32) {
			for range flood {
				_ = to.WritePing(false, [8]byte{1})
			}
			respond(to, id)
		}},
		{"answers to PINGs that were never sent", "", func(to *http2.Framer, id uint32) {
			for range flood {
				_ = to.WritePing(true, [8]byte{1})
			}
			respond(to, id)
		}},
		{"a flood of empty DATA", "", func(to *http2.Framer, id uint32) {
			headersOnly(to, id, ":status", "200")
			for range flood {
				_ = to.WriteData(id, false, nil)
			}
			_ = to.WriteData(id, true, []byte("fine"))
		}},
		{"frames of unknown types and priorities", "", func(to *http2.Framer, id uint32) {
			for range flood {
				_ = to.WriteRawFrame(0xee, 0xff, id, []byte("?"))
				_ = to.WritePriority(id, http2.PriorityParam{Weight: 1})
			}
			respond(to, id)
		}},
		{"resets of ended streams", "", func(to *http2.Framer, id uint32) {
			respond(to, id)
			for range flood {
				_ = to.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		}},
		{"DATA and HEADERS on an ended stream", "", func(to *http2.Framer, id uint32) {
			respond(to, id)
			for range 100 {
				_ = to.WriteData(id, false, []byte(long))
				headersOnly(to, id, ":status", "200")
			}
		}},
		{"padded DATA", "", func(to *http2.Framer, id uint32) {
			headersOnly(to, id, ":status", "200")
			for range flood {
				_ = to.WriteDataPadded(id, false, nil, make([]byte, 255))
			}
			_ = to.WriteDataPadded(id, true, []byte("fine"), make([]byte, 9))
		}},
		{"a reset", "request", func(to *http2.Framer, id uint32) { _ = to.WriteRSTStream(id, http2.ErrCodeInternal) }},
		{"DATA before the header", "request", func(to *http2.Framer, id uint32) { _ = to.WriteData(id, false, []byte("x")) }},
		{"no status", "request", func(to *http2.Framer, id uint32) { headersOnly(to, id, "a", "b") }},
		{"a status that is not a number", "request",
			func(to *http2.Framer, id uint32) { headersOnly(to, id, ":status", "2x0") }},
		{"a negative status", "request", func(to *http2.Framer, id uint32) { headersOnly(to, id, ":status", "-20") }},
		{"a header in capitals", "request",
			func(to *http2.Framer, id uint32) { headersOnly(to, id, ":status", "200", "Big", "b") }},
		{"a pseudo-header field of a request", "request",
			func(to *http2.Framer, id uint32) { headersOnly(to, id, ":status", "200", ":path", "/") }},
		{"an informational response that ends the stream", "request", func(to *http2.Framer, id uint32) {
			_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "103"), EndHeaders: true,
				EndStream: true})
		}},
		{"endless informational responses", "request", func(to *http2.Framer, id uint32) {
			for range 100 {
				headersOnly(to, id, ":status", "103", "link", long)
			}
		}},
		{"a header that is too large", "request", func(to *http2.Framer, id uint32) {
			_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id,
				BlockFragment: block(":status", "200", "a", long, "b", long, "c", long, "d", long, "e", long)[:firstFrameSize]})
			rest := block(":status", "200", "a", long, "b", long, "c", long, "d", long, "e", long)[firstFrameSize:]
			for len(rest) > 0 {
				n := min(len(rest), firstFrameSize)
				_ = to.WriteContinuation(id, n == len(rest), rest[:n])
				rest = rest[n:]
			}
		}},
		{"a stream window that is too large", "request", func(to *http2.Framer, id uint32) {
			_ = to.WriteWindowUpdate(id, largestWindow)
			_ = to.WriteWindowUpdate(id, largestWindow)
		}},
		{"a WINDOW_UPDATE of nothing for the stream", "request",
			func(to *http2.Framer, id uint32) { _ = to.WriteWindowUpdate(id, 0) }},
		{"endless CONTINUATION", "connection", func(to *http2.Framer, id uint32) {
			err := to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			for piece := block("a", long); err == nil; {
				err = to.WriteContinuation(id, false, piece)
			}
		}},
		{"endless empty CONTINUATION", "connection", func(to *http2.Framer, id uint32) {
			err := to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block(":status", "200")})
			for i := 0; err == nil && i < 10*flood; i++ {
				err = to.WriteContinuation(id, false, nil)
			}
			_ = to.WriteContinuation(id+2, true, nil)
		}},
		{"a connection window that is too large", "connection", func(to *http2.Framer, _ uint32) {
			_ = to.WriteWindowUpdate(0, largestWindow)
			_ = to.WriteWindowUpdate(0, largestWindow)
		}},
		{"a WINDOW_UPDATE of nothing", "connection", func(to *http2.Framer, _ uint32) { _ = to.WriteWindowUpdate(0, 0) }},
		{"a push", "connection", func(to *http2.Framer, id uint32) {
			_ = to.WritePushPromise(http2.PushPromiseParam{StreamID: id, PromiseID: 2, BlockFragment: block(":method", "GET"),
				EndHeaders: true})
		}},
		{"DATA on a stream that was never opened", "connection",
			func(to *http2.Framer, id uint32) { _ = to.WriteData(id+2, false, []byte("x")) }},
		{"DATA on a stream that the agent opened", "connection",
			func(to *http2.Framer, _ uint32) { _ = to.WriteData(2, false, []byte("x")) }},
		{"HEADERS on a stream that was never opened", "connection",
			func(to *http2.Framer, id uint32) { headersOnly(to, id+2, ":status", "200") }},
		{"an initial window that is too large", "connection", func(to *http2.Framer, _ uint32) {
			_ = to.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31})
		}},
		{"a second acknowledgement of SETTINGS", "connection",
			func(to *http2.Framer, _ uint32) { _ = to.WriteSettingsAck() }},
		{"an invalid header block", "connection", func(to *http2.Framer, id uint32) {
			_ = to.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
				EndHeaders: true})
		}},
		{"a trailer that does not end the stream", "connection", func(to *http2.Framer, id uint32) {
			headersOnly(to, id, ":status", "200")
			headersOnly(to, id, "a", "b")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
				if id == 1 {
					test.attack(to, id)
				} else {
					respond(to, id)
				}
			}}.client(t)
			body, err := whole(client.RoundTrip(request(t, http.MethodGet, "/", nil)))
			if test.ends == "" && (err != nil || body != "fine") {
				t.Errorf("the request got %q, %v, want the response", body, err)
			}
			if test.ends != "" && err == nil {
				t.Errorf("the request got %q, want an error", body)
			}
			if test.ends == "connection" {
				await(t, "the end of the connection", client.ended)
				return
			}
			if body, err := whole(client.RoundTrip(request(t, http.MethodGet, "/", nil))); err != nil || body != "fine" {
				t.Errorf("the next request got %q, %v, want the response", body, err)
			}
			if n := client.openStreams(); n != 0 {
				t.Errorf("%d streams are open, want none", n)
			}
		})
	}
}

func TestBodyOfAnotherLengthThanAnnounced(t *testing.T) {
	for _, test := range []struct {
		name, sent, read string
		err              error
	}{
		{"shorter", "1234", "1234", io.ErrUnexpectedEOF},
		{"longer", "123456", "12345", errLongerBody},
		{"empty", "", "", io.ErrUnexpectedEOF},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
				headersOnly(to, id, ":status", "200", "content-length", "5")
				_ = to.WriteData(id, true, []byte(test.sent))
			}}.client(t)
			if body, err := whole(client.RoundTrip(request(t, http.MethodGet, "/", nil))); body != test.read ||
				!errors.Is(err, test.err) {
				t.Errorf("got %q, %v, want %q, %v", body, err, test.read, test.err)
			}
		})
	}
}

// A response that arrived completely before its agent broke the protocol can be read, even if both arrived at once.
func TestResponseBeforeAViolationIsRead(t *testing.T) {
	client := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
		respond(to, id)
		_ = to.WriteWindowUpdate(0, 0)
	}}.client(t)
	if body, err := whole(client.RoundTrip(request(t, http.MethodGet, "/", nil))); err != nil || body != "fine" {
		t.Errorf("got %q, %v, want the response", body, err)
	}
	await(t, "the end of the connection", client.ended)
}

// A response reaches its reader even if only a part of the next frame has arrived.
func TestPartOfAFrameDoesNotDelayAResponse(t *testing.T) {
	client := scriptedAgent{answer: func(to *http2.Framer, id uint32) {
		headersOnly(to, id, ":status", "200")
		_ = to.WriteRawFrame(http2.FrameData, 0, id, nil)
		// larger than the buffers of both ends, so that it arrives in parts
		_ = to.WriteRawFrame(http2.FrameData, 0, id, make([]byte, 5000))
	}}.client(t)
	response, err := client.RoundTrip(request(t, http.MethodGet, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.ReadFull(response.Body, make([]byte, 5000)); err != nil {
		t.Errorf("the body did not come: %v", err)
	}
}

// A request's body is sent as the other end allows, no matter how small its windows are.
func TestUploadRespectsSmallWindows(t *testing.T) {
	for _, window := range []uint32{1, 1000, 1<<16 - 1} {
		var total, largest atomic.Uint32
		client := scriptedAgent{
			settings: []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: window}},
			answer:   respond,
			takes: func(bytes uint32) {
				total.Add(bytes)
				largest.Store(max(largest.Load(), bytes))
			},
		}.client(t)
		size := min(window, 1000) * 300
		body, err := whole(client.RoundTrip(request(t, http.MethodPut, "/",
			strings.NewReader(strings.Repeat("x", int(size))))))
		if err != nil || body != "fine" || total.Load() != size || largest.Load() > window {
			t.Errorf("window %d: got %q, %v; sent %d bytes of %d, at most %d in one frame", window, body, err, total.Load(),
				size, largest.Load())
		}
	}
}

// The memory of unread data is proportional to its length, no matter how small its frames are, and the data stays in
// order.
func TestPiecesUseMemoryInProportionToTheirData(t *testing.T) {
	for _, frame := range []int{1, 3, 511, 513, 5000, 16 << 10, 64 << 10} {
		var kept pieces
		var want []byte
		for i := 0; len(want) < 1<<20; i++ {
			p := bytes.Repeat([]byte{byte(i)}, frame)
			kept.write(p)
			want = append(want, p...)
		}
		taken := cap(kept.list) * 24
		for _, piece := range kept.list {
			taken += cap(piece)
		}
		if taken > len(want)*5/4 || kept.size != len(want) {
			t.Errorf("%d bytes in frames of %d use %d bytes of memory, and count as %d", len(want), frame, taken, kept.size)
		}
		var got []byte
		for piece := make([]byte, 777); kept.size > 0; {
			got = append(got, piece[:kept.read(piece)]...)
		}
		if !bytes.Equal(got, want) || len(kept.list) != 0 {
			t.Errorf("the content of frames of %d bytes has changed, or %d pieces are left", frame, len(kept.list))
		}
		kept.write(want[:100])
		kept.clear()
		if kept.size != 0 || len(kept.list) != 0 || kept.read(make([]byte, 1)) != 0 {
			t.Errorf("data is left after clear, want none")
		}
	}
}
