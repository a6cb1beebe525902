// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// After an upgrade, the hub sends bytes to the agent unchanged, and the end of the request marks the end of the data.
// In the other direction, the end of the response would also end the request. The agent therefore sends its bytes in
// chunks. Each chunk is preceded by its length as four bytes, and a length of 0 marks the end of the data.
const (
	chunkHeadSize = 4
	maxChunk      = 32 << 10 // maximum number of bytes in one chunk; readers reject larger chunks
)

// chunkReader returns the concatenated contents of the chunks.
type chunkReader struct {
	source io.Reader
	left   int // number of bytes left in the current chunk
	ended  bool
}

// Read returns io.EOF after the final chunk. If the source ends before the final chunk, Read returns
// io.ErrUnexpectedEOF.
func (c *chunkReader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if c.left == 0 && !c.ended {
		if err := c.next(); err != nil {
			return 0, err
		}
	}
	if c.ended {
		return 0, io.EOF
	}
	n, err := c.source.Read(p[:min(len(p), c.left)])
	c.left -= n
	if errors.Is(err, io.EOF) {
		err = nil
		if c.left > 0 || n == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	return n, err // return the reader's error unchanged
}

func (c *chunkReader) next() error {
	var head [chunkHeadSize]byte
	if _, err := io.ReadFull(c.source, head[:]); err != nil {
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err // return the reader's error unchanged
	}
	length := binary.BigEndian.Uint32(head[:])
	if length > maxChunk {
		return fmt.Errorf("read upgraded stream: %w: chunk of %d bytes", ErrProtocol, length)
	}
	c.left, c.ended = int(length), length == 0
	return nil
}

// appendChunk appends p as one chunk. p must not be longer than maxChunk. An empty p produces the final chunk.
func appendChunk(to, p []byte) []byte {
	to = binary.BigEndian.AppendUint32(to, uint32(len(p)))
	return append(to, p...)
}

// upgradedStream is the hub's end of an upgraded connection.
type upgradedStream struct {
	decoder  chunkReader
	response io.Closer
	writer   *io.PipeWriter
	cancel   context.CancelFunc // resets the stream
	closing  sync.Once

	mu           sync.Mutex // guards stopWatching
	stopWatching func() bool
}

// newUpgradedStream returns a stream that is closed when ctx is done. It behaves like a connection that an
// http.Transport has upgraded.
func newUpgradedStream(ctx context.Context, response io.ReadCloser, writer *io.PipeWriter,
	cancel context.CancelFunc) *upgradedStream {
	u := &upgradedStream{decoder: chunkReader{source: response}, response: response, writer: writer, cancel: cancel}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.stopWatching = context.AfterFunc(ctx, func() { _ = u.Close() })
	return u
}

// Read returns the data that the target has sent. After the last byte, it returns io.EOF.
func (u *upgradedStream) Read(p []byte) (int, error) { return u.decoder.Read(p) }

// Write sends data to the target. It blocks while the target is not reading.
func (u *upgradedStream) Write(p []byte) (int, error) {
	n, err := u.writer.Write(p)
	if err != nil {
		return n, fmt.Errorf("write upgraded stream: %w", err)
	}
	return n, nil
}

// CloseWrite signals to the target that no more data will follow. The stream can still be read.
func (u *upgradedStream) CloseWrite() error {
	return u.writer.Close() // Close always returns nil
}

// Close closes both directions. As with a socket, data that has already been written still arrives. It would be lost if
// the stream were reset immediately.
func (u *upgradedStream) Close() error {
	u.closing.Do(func() {
		u.mu.Lock()
		u.stopWatching()
		u.mu.Unlock()
		_ = u.writer.Close() // Close always returns nil
		time.AfterFunc(upgradeLinger, func() {
			u.cancel()
			_ = u.response.Close() // returns the flow-control credit for unread data
		})
	})
	return nil
}
