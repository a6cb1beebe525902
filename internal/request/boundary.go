// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"bytes"
	"encoding/binary"
	"mime"
	"net/http"
	"strings"
)

// boundaries finds the ends of events in a stream that is read in pieces.
type boundaries interface {
	// scan processes the next piece. It returns two offsets in the piece: the end of the first event and the end of the
	// last event that end in it. Both are -1 if no event ends in the piece. A stream starts at a boundary.
	scan(p []byte) (first, last int)
}

// boundariesOf returns boundaries for the format of a response. In an unknown format, each piece counts as complete,
// because API servers write one event at a time.
func boundariesOf(h http.Header) boundaries {
	if encoding := h.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return pieces{}
	}
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	switch {
	case err != nil:
		return pieces{}
	case kind == "application/json", strings.HasSuffix(kind, "+json"):
		return lines{}
	case kind == "application/vnd.kubernetes.protobuf":
		return &frames{}
	}
	return pieces{}
}

// lines finds JSON events. Each event ends with a newline, and contains no other newline.
type lines struct{}

func (lines) scan(p []byte) (first, last int) {
	first, last = bytes.IndexByte(p, '\n'), bytes.LastIndexByte(p, '\n')
	if first < 0 {
		return -1, -1
	}
	return first + 1, last + 1
}

// headSize is the size of the length prefix of each protobuf event.
const headSize = 4

// frames finds protobuf events. Each event is preceded by its length, which is encoded as four bytes in big-endian
// order.
type frames struct {
	head [headSize]byte
	have int    // number of bytes of the head that have arrived
	left uint32 // remaining bytes of the current event, once the head is complete
}

func (f *frames) scan(p []byte) (first, last int) {
	first, last = -1, -1
	for at := 0; at < len(p); {
		if f.have < headSize {
			n := copy(f.head[f.have:], p[at:])
			f.have += n
			at += n
			if f.have < headSize {
				return first, last
			}
			f.left = binary.BigEndian.Uint32(f.head[:])
		}
		n := min(uint64(f.left), uint64(len(p)-at))
		f.left -= uint32(n)
		at += int(n)
		if f.left > 0 {
			return first, last
		}
		f.have = 0
		if last = at; first < 0 {
			first = at
		}
	}
	return first, last
}

// pieces treats each piece as the end of an event.
type pieces struct{}

func (pieces) scan(p []byte) (first, last int) {
	if len(p) == 0 {
		return -1, -1
	}
	return len(p), len(p)
}
