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

// boundaries finds in a stream where an event has ended. It sees the stream piece by piece.
type boundaries interface {
	// scan takes the next piece and returns how many bytes of it are up to the first and up to the last end of an event in
	// it, -1 if there is none. A stream begins at a boundary.
	scan(p []byte) (first, last int)
}

// boundariesOf chooses how to find the events of an answer. Of a format that it does not know, each piece that was read
// counts as whole: API servers write an event at a time.
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

// lines are events of JSON: each ends in a newline, which JSON has nowhere inside.
type lines struct{}

func (lines) scan(p []byte) (first, last int) {
	first, last = bytes.IndexByte(p, '\n'), bytes.LastIndexByte(p, '\n')
	if first < 0 {
		return -1, -1
	}
	return first + 1, last + 1
}

// headSize is that of the length before each event of protobuf.
const headSize = 4

// frames are events of protobuf: each comes after its length in four bytes, big endian.
type frames struct {
	head [headSize]byte
	have int    // bytes of head
	left uint32 // bytes of the present event, once head is complete
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

// pieces are events that end with each piece.
type pieces struct{}

func (pieces) scan(p []byte) (first, last int) {
	if len(p) == 0 {
		return -1, -1
	}
	return len(p), len(p)
}
