// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

// Frame is the head of one HTTP/2 frame, for Observer.Frame.
type Frame struct {
	Sent     bool // by this end
	Type     http2.FrameType
	Flags    http2.Flags
	StreamID uint32 // 0 is the connection itself
	Length   int    // bytes of its content
}

// String is a line for a debug log, such as "sent HEADERS stream=1 flags=0x5 length=41".
func (f Frame) String() string {
	direction := "received"
	if f.Sent {
		direction = "sent"
	}
	return fmt.Sprintf("%s %s stream=%d flags=%#x length=%d", direction, f.Type, f.StreamID, uint8(f.Flags), f.Length)
}

const frameHeadSize = 9 // RFC 9113, 4.1

// frameScanner finds the heads of frames in one direction of a byte stream that arrives in arbitrary pieces.
type frameScanner struct {
	sent   bool
	report func(Frame)
	skip   int // bytes to pass before the next head
	head   [frameHeadSize]byte
	filled int // bytes of head
}

// newFrameScanner expects the client's preface first if preface is set.
func newFrameScanner(sent, preface bool, report func(Frame)) *frameScanner {
	s := &frameScanner{sent: sent, report: report}
	if preface {
		s.skip = len(http2.ClientPreface)
	}
	return s
}

// scan takes the next piece. A nil scanner does nothing.
func (s *frameScanner) scan(p []byte) {
	for s != nil && len(p) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(p))
			s.skip -= n
			p = p[n:]
			continue
		}
		n := copy(s.head[s.filled:], p)
		s.filled += n
		p = p[n:]
		if s.filled < frameHeadSize {
			return
		}
		s.filled = 0
		frame := Frame{
			Sent:     s.sent,
			Type:     http2.FrameType(s.head[3]),
			Flags:    http2.Flags(s.head[4]),
			StreamID: binary.BigEndian.Uint32(s.head[5:]) & (1<<31 - 1),
			Length:   int(s.head[0])<<16 | int(s.head[1])<<8 | int(s.head[2]),
		}
		s.skip = frame.Length
		s.report(frame)
	}
}
