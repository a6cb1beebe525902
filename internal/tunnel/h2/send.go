// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const frameHeadSize = 9 // see RFC 9113, section 4.1

// writer is the sending half of a connection. Its lock is a channel, so that a canceled request does not have to wait
// for it.
type writer struct {
	lock    chan struct{}
	encoder *hpack.Encoder
	header  bytes.Buffer
}

// write writes frames, and releases the lock, which the caller must hold.
func (c *Client) write(frames []byte) error {
	defer func() { <-c.out.lock }()
	err := c.writeAll(frames)
	if err != nil {
		c.cfg.Ends() // called here, because the callers of failed requests ask for the reason
		go c.fail(err)
	}
	return err
}

// writeAll writes all frames. It continues as long as the connection accepts at least some bytes within the timeout.
func (c *Client) writeAll(frames []byte) error {
	for {
		if err := c.conn.SetWriteDeadline(time.Now().Add(c.cfg.WriteTimeout)); err != nil {
			return err
		}
		n, err := c.conn.Write(frames)
		if frames = frames[n:]; err == nil || n == 0 || len(frames) == 0 {
			return err
		}
	}
}

// control writes small frames, and blocks until the connection has accepted them.
func (c *Client) control(frames []byte) error {
	select {
	case c.out.lock <- struct{}{}:
		return c.write(frames)
	case <-c.ended:
		return errClientEnded
	}
}

// answer writes small frames on behalf of the connection's reader. It waits for the lock, so the other end can cause
// only one write at a time.
//
// answer writes in another goroutine, because a write through TLS and WebSocket needs a stack of 8 KB. If the reader
// itself wrote the frames, its stack would keep this size for the lifetime of the tunnel. The garbage collector
// shrinks a stack only if less than a quarter of it is in use, and the reader uses 3 KB while it waits.
func (c *Client) answer(frames []byte) error {
	select {
	case c.out.lock <- struct{}{}:
		go func() { _ = c.write(frames) }() // ignore the error, because it ends the tunnel
		return nil
	case <-c.ended:
		return errClientEnded
	}
}

// soon writes small frames. If another goroutine is already writing, soon writes in a separate goroutine.
func (c *Client) soon(frames []byte) {
	select {
	case c.out.lock <- struct{}{}:
		_ = c.write(frames) // an error ends the tunnel
	default:
		go func() { _ = c.control(frames) }()
	}
}

// lastWords sends the other end the reason why this end is closing the connection. It gives up after goodbyeTimeout.
func (c *Client) lastWords(code http2.ErrCode) {
	select {
	case c.out.lock <- struct{}{}:
		defer func() { <-c.out.lock }()
		if c.conn.SetWriteDeadline(time.Now().Add(goodbyeTimeout)) == nil {
			_, _ = c.conn.Write(goAway(code)) // best effort, because the connection is closed in any case
		}
	default:
	}
}

// headersFrames turns a header block into a HEADERS frame, followed by CONTINUATION frames if the block is too long
// for one frame. The block starts with room for a frame header.
func headersFrames(block []byte, id uint32, ends bool, most int) []byte {
	var flags http2.Flags
	if ends {
		flags = http2.FlagHeadersEndStream
	}
	if len(block)-frameHeadSize <= most {
		putFrameHead(block, len(block)-frameHeadSize, http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, id)
		return block
	}
	block = block[frameHeadSize:]
	var out []byte
	for kind := http2.FrameHeaders; len(block) > 0; kind, flags = http2.FrameContinuation, 0 {
		piece := block[:min(len(block), most)]
		if block = block[len(piece):]; len(block) == 0 {
			flags |= http2.FlagHeadersEndHeaders // the flag has the same value in CONTINUATION frames
		}
		out = append(appendFrameHead(out, len(piece), kind, flags, id), piece...)
	}
	return out
}

func appendFrameHead(to []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(to, byte(length>>16), byte(length>>8), byte(length), byte(kind), byte(flags),
		byte(id>>24), byte(id>>16),
		byte(id>>8), byte(id))
}

func putFrameHead(at []byte, length int, kind http2.FrameType, flags http2.Flags, id uint32) {
	appendFrameHead(at[:0], length, kind, flags, id)
}

// appendNumber appends a frame whose content is a four-byte number: WINDOW_UPDATE or RST_STREAM.
func appendNumber(to []byte, kind http2.FrameType, id, n uint32) []byte {
	return append(appendFrameHead(to, 4, kind, 0, id), byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
}

func goAway(code http2.ErrCode) []byte {
	return append(appendFrameHead(nil, 8, http2.FrameGoAway, 0, 0), 0, 0, 0, 0, 0, 0, 0, byte(code))
}
