// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestChunks(t *testing.T) {
	t.Run("the vector of SPEC.md", func(t *testing.T) {
		got := appendChunk(appendChunk(nil, []byte("hello")), nil)
		if want := "\x00\x00\x00\x05hello\x00\x00\x00\x00"; string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	for _, test := range []struct {
		name, wire, want string
		err              error
	}{
		{"several chunks are one stream", "\x00\x00\x00\x02he\x00\x00\x00\x03llo\x00\x00\x00\x00", "hello", nil},
		{"nothing but the end", "\x00\x00\x00\x00", "", nil},
		{"data after the end is not read", "\x00\x00\x00\x00rest", "", nil},
		{"no end", "\x00\x00\x00\x02ab", "ab", io.ErrUnexpectedEOF},
		{"nothing at all", "", "", io.ErrUnexpectedEOF},
		{"a chunk cut short", "\x00\x00\x00\x05ab", "ab", io.ErrUnexpectedEOF},
		{"a length cut short", "\x00\x00", "", io.ErrUnexpectedEOF},
		{"a chunk that is too long", "\x00\x00\x80\x01x", "", ErrProtocol},
		{"a chunk that is far too long", "\xff\xff\xff\xffx", "", ErrProtocol},
	} {
		for way, wrap := range map[string]func(io.Reader) io.Reader{
			"": func(r io.Reader) io.Reader { return r }, ", byte by byte": iotest.OneByteReader,
			", with early EOF": iotest.DataErrReader,
		} {
			t.Run(test.name+way, func(t *testing.T) {
				got, err := io.ReadAll(&chunkReader{source: wrap(strings.NewReader(test.wire))})
				if string(got) != test.want || !errors.Is(err, test.err) {
					t.Errorf("got %q, %v, want %q, %v", got, err, test.want, test.err)
				}
			})
		}
	}
}

func FuzzChunkReader(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x05hello\x00\x00\x00\x00"))
	f.Add([]byte("\x00\x00\x00\x05he"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		got, err := io.ReadAll(&chunkReader{source: bytes.NewReader(wire)})
		if len(got) > len(wire) {
			t.Errorf("got %d bytes out of %d, want no more than these", len(got), len(wire))
		}
		slow, slowErr := io.ReadAll(&chunkReader{source: iotest.OneByteReader(bytes.NewReader(wire))})
		if !bytes.Equal(got, slow) || (err == nil) != (slowErr == nil) {
			t.Errorf("got %q, %v in one piece and %q, %v byte by byte, want the same", got, err, slow, slowErr)
		}
		if err != nil {
			return
		}
		var again []byte
		for rest := got; len(rest) > 0; rest = rest[min(len(rest), maxChunk):] {
			again = appendChunk(again, rest[:min(len(rest), maxChunk)])
		}
		if back, err := io.ReadAll(&chunkReader{source: bytes.NewReader(appendChunk(again, nil))}); err != nil ||
			!bytes.Equal(back, got) {
			t.Errorf("the data that was read differs from the data that was written: %v", err)
		}
	})
}

func FuzzSwitchHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\ndata"), 10)
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"), 3)
	f.Add([]byte("HTTP/1.1 101 x\r\nDrover-Tunnel-Upgrade: y\r\n"+
		"Connection: upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n"), 50)
	f.Add([]byte("\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		const limit = 1 << 10
		whole := switchHead{limit: limit}
		header, protocol, rest, err := whole.collect(text)
		if err == nil && protocol == "" && len(text) > limit {
			t.Error("collect waits for more bytes than the limit allows, want an error")
		}
		if headerSize(header) > limit && err == nil {
			t.Error("the header is larger than the limit, want an error")
		}
		for name := range header {
			if staysHere(name) && err == nil {
				t.Errorf("%s must not go into the tunnel", name)
			}
		}
		cut = max(0, min(cut, len(text)))
		pieces := switchHead{limit: limit}
		_, protocol2, rest2, err2 := pieces.collect(text[:cut])
		if err2 == nil && protocol2 == "" {
			_, protocol2, rest2, err2 = pieces.collect(text[cut:])
		} else {
			rest2 = append(bytes.Clone(rest2), text[cut:]...)
		}
		if (err == nil) != (err2 == nil) || protocol != protocol2 || err == nil && !bytes.Equal(rest, rest2) {
			t.Errorf("got %q, %q, %v in one piece and, cut at %d, %q, %q, %v, want the same",
				protocol, rest, err, cut, protocol2, rest2, err2)
		}
	})
}

func FuzzFrameScanner(f *testing.F) {
	f.Add(unhex(hubBegins), 30)
	f.Add(unhex(agentBegins), 5)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, wire []byte, cut int) {
		var whole, pieces []Frame
		into := func(frames *[]Frame) visitor {
			return func(f Frame, content []byte, _ bool) (bool, error) {
				if len(content) > f.Length {
					t.Errorf("the visitor got %d bytes of content for %v, want no more than its length", len(content), f)
				}
				*frames = append(*frames, f)
				return false, nil
			}
		}
		scan := func(s *frameScanner, p []byte) {
			if out, err := s.scan(p); err != nil || !bytes.Equal(out, p) {
				t.Errorf("got %x, %v, want the bytes unchanged", out, err)
			}
		}
		scan(newFrameScanner(true, true, into(&whole)), wire)
		cut = max(0, min(cut, len(wire)))
		scanner := newFrameScanner(true, true, into(&pieces))
		scan(scanner, wire[:cut])
		scan(scanner, wire[cut:])
		if len(whole) != len(pieces) {
			t.Fatalf("got %d frames in one piece and %d in two, want the same", len(whole), len(pieces))
		}
		for i, frame := range whole {
			if frame != pieces[i] || frame.String() == "" || frame.Length < 0 {
				t.Errorf("frame %d is %v in one piece and %v in two, want the same", i, frame, pieces[i])
			}
		}
	})
}

// FuzzAgentBytes lets an agent send arbitrary bytes. They may end the tunnel, but must have no other effect.
func FuzzAgentBytes(f *testing.F) {
	begin := unhex(agentBegins)
	f.Add(begin)
	f.Add(append(bytes.Clone(begin), unhex("000001010400000001"+"88")...)) // the answer 200 on stream 1
	f.Add(append(bytes.Clone(begin), unhex("000008060100000000"+"0000000000000000")...))
	// with a body
	f.Add(append(bytes.Clone(begin),
		unhex("000001010400000001"+"88"+"000003000100000001"+"616263"+"000004080000000001"+"7fffffff")...))
	// CONTINUATION and a reset
	f.Add(append(bytes.Clone(begin),
		unhex("000001010000000001"+"88"+"000000090400000001"+"000004030000000001"+"00000008")...))
	f.Add([]byte("HTTP/1.1 200 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		hubEnd, agentEnd := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(io.Discard, agentEnd)
		}()
		go func() {
			_, _ = agentEnd.Write(wire)
			_ = agentEnd.Close()
		}()
		session, err := NewSession(t.Context(), hubEnd, quiet(Config{HandshakeTimeout: time.Second}))
		if err == nil {
			response, err := session.RoundTrip(request(t, http.MethodGet, "/", nil))
			if err == nil {
				_, _ = io.Copy(io.Discard, response.Body)
				_ = response.Body.Close()
			}
			_ = session.Close()
		}
		<-done
	})
}
