// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package answer

import "sync"

// bufferSize is of one piece of an answer, in bytes: what httputil copies at once, and what fits a frame of the tunnel.
const bufferSize = 32 << 10

// Buffers lends buffers for copying answers. The zero value is ready. It may be used concurrently.
type Buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *Buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[bufferSize]byte); ok {
		return p[:]
	}
	return make([]byte, bufferSize)
}

// Put implements httputil.BufferPool.
func (b *Buffers) Put(buffer []byte) {
	if len(buffer) == bufferSize {
		b.pool.Put((*[bufferSize]byte)(buffer))
	}
}
