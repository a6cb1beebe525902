// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import "sync"

const (
	leastPiece = 512
	mostPiece  = 16 << 10
)

// pieces holds bytes that have arrived but have not been read. Its memory is proportional to the number of bytes,
// regardless of the size of the frames.
type pieces struct {
	list [][]byte // each piece is filled up to its length; the last piece has room up to its capacity
	from int      // number of bytes of the first piece that have been read
	size int
}

var largePieces = sync.Pool{New: func() any { return new([mostPiece]byte) }}

func (b *pieces) write(p []byte) {
	b.size += len(p)
	for len(p) > 0 {
		last := len(b.list) - 1
		if last < 0 || len(b.list[last]) == cap(b.list[last]) {
			b.list = append(b.list, newPiece(max(len(p), b.size)))
			last++
		}
		piece := b.list[last]
		n := copy(piece[len(piece):cap(piece)], p)
		b.list[last] = piece[:len(piece)+n]
		p = p[n:]
	}
}

func newPiece(bytes int) []byte {
	if bytes > mostPiece/2 {
		return largePieces.Get().(*[mostPiece]byte)[:0]
	}
	return make([]byte, 0, max(bytes, leastPiece))
}

func (b *pieces) read(p []byte) int {
	n := 0
	for n < len(p) && b.size > 0 {
		first := b.list[0]
		taken := copy(p[n:], first[b.from:])
		n += taken
		b.from += taken
		b.size -= taken
		if b.from == len(first) && (b.from == cap(first) || b.size == 0) {
			b.drop()
		}
	}
	return n
}

func (b *pieces) drop() {
	if first := b.list[0]; cap(first) == mostPiece {
		largePieces.Put((*[mostPiece]byte)(first[:mostPiece]))
	}
	b.list, b.from = b.list[1:], 0
	if len(b.list) == 0 {
		b.list = nil
	}
}

func (b *pieces) clear() {
	for len(b.list) > 0 {
		b.drop()
	}
	b.size = 0
}
