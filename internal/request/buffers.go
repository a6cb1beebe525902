// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"net/http"
	"sync"
)

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

// FewWrites keeps httputil.ReverseProxy from flushing the header and each piece of a response whose length is not known
// in advance. ReverseProxy does so that streams arrive as they are written; an object or a list is of no use before it
// is complete.
func (i Info) FewWrites(response *http.Response) {
	if i.Resource != "" && i.Subresource == "" && !i.Long && response.ContentLength < 0 {
		response.ContentLength = 0 // ReverseProxy reads it for this decision only: what is sent is the header
	}
}
