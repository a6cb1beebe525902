// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"net/http"
	"sync"
)

// bufferSize is the size of one piece of a response, in bytes. It equals the number of bytes that httputil copies at a
// time, and fits in a frame of the tunnel.
const bufferSize = 32 << 10

// Buffers is a pool of buffers for copying responses. The zero value is ready to use. It is safe for concurrent use.
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

// FewWrites prevents httputil.ReverseProxy from flushing the header and each piece of a response of unknown length.
// Flushing allows clients to receive the parts of a stream immediately, but an object or a list is useless until it is
// complete.
func (i Info) FewWrites(response *http.Response) {
	if i.Resource != "" && i.Subresource == "" && !i.Long && response.ContentLength < 0 {
		response.ContentLength = 0 // used only to decide whether to flush; the client receives the header
	}
}
