// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

// Frame is the header of one HTTP/2 frame, for Observer.Frame.
type Frame struct {
	Sent     bool // whether this end sent the frame
	Type     http2.FrameType
	Flags    http2.Flags
	StreamID uint32 // 0 is the connection itself
	Length   int    // the length of the content, in bytes
}

// String returns a line for a debug log, such as "sent HEADERS stream=1 flags=0x5 length=41".
func (f Frame) String() string {
	direction := "received"
	if f.Sent {
		direction = "sent"
	}
	return fmt.Sprintf("%s %s stream=%d flags=%#x length=%d", direction, f.Type, f.StreamID, uint8(f.Flags), f.Length)
}

const frameHeadSize = 9 // see RFC 9113, section 4.1

// frameScanner finds the frames in one direction of a byte stream. The bytes arrive in pieces of any length.
type frameScanner struct {
	sent   bool
	visit  visitor
	skip   int // number of bytes to skip before the next frame header
	frame  Frame
	kept   [frameHeadSize + maxControl]byte // the frame header, followed by the content if the visitor needs it
	filled int                              // number of bytes in the kept field
	want   int                              // number of bytes in the kept field that the scanner needs to continue
}

// maxControl is the maximum length of the SETTINGS frame that this end sends.
const maxControl = 64

// visitor is called for each frame, and reports whether it has changed the frame's content. It receives the content
// only of SETTINGS and WINDOW_UPDATE frames that this end sends, and may change the content only if whole is true.
type visitor func(f Frame, content []byte, whole bool) (changed bool, err error)

// newFrameScanner returns a scanner. If preface is true, the scanner first expects the client's preface.
func newFrameScanner(sent, preface bool, visit visitor) *frameScanner {
	s := &frameScanner{sent: sent, visit: visit, want: frameHeadSize}
	if preface {
		s.skip = len(http2.ClientPreface)
	}
	return s
}

// scan scans the next piece and returns it. If the visitor has changed the content of a frame, scan returns a
// modified copy of the piece.
func (s *frameScanner) scan(p []byte) ([]byte, error) {
	out := p
	for at := 0; at < len(p); {
		if s.skip > 0 {
			n := min(s.skip, len(p)-at)
			s.skip -= n
			at += n
			continue
		}
		n := copy(s.kept[s.filled:s.want], p[at:])
		s.filled += n
		at += n
		if s.filled < s.want || s.wantsContent() {
			continue
		}
		content := s.kept[frameHeadSize:s.filled]
		start := at - len(content)
		changed, err := s.visit(s.frame, content, start >= 0)
		if err != nil {
			return nil, err
		}
		if changed {
			if &out[0] == &p[0] {
				out = bytes.Clone(p)
			}
			copy(out[start:], content)
		}
		s.skip = s.frame.Length - len(content)
		s.filled, s.want = 0, frameHeadSize
	}
	return out, nil
}

// wantsContent parses the frame header once the header is complete. It returns true if the visitor needs the frame's
// content and the content is not complete yet.
func (s *frameScanner) wantsContent() bool {
	if s.want > frameHeadSize {
		return false
	}
	head := s.kept[:frameHeadSize]
	s.frame = Frame{
		Sent:     s.sent,
		Type:     http2.FrameType(head[3]),
		Flags:    http2.Flags(head[4]),
		StreamID: binary.BigEndian.Uint32(head[5:]) & (1<<31 - 1),
		Length:   int(head[0])<<16 | int(head[1])<<8 | int(head[2]),
	}
	control := s.frame.Type == http2.FrameSettings || s.frame.Type == http2.FrameWindowUpdate
	if !s.sent || !control || s.frame.Length == 0 || s.frame.Length > maxControl {
		return false
	}
	s.want += s.frame.Length
	return true
}
