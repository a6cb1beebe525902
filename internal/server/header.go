// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import "net/http"

// Bounds of a request's header, with its path, in bytes.
const (
	// maxHeaderBytes is what is served.
	maxHeaderBytes = 64 << 10
	// maxReadHeaderBytes is what is read. Between the two the answer is 431. Beyond it HTTP/1.1 answers 431 as well, and HTTP/2 ends the connection:
	// net/http stops to decode a header as soon as it is too large, and cannot go on with the connection then.
	maxReadHeaderBytes = 256 << 10
)

// withinHeader answers 431 to a request with a header that is too large.
func withinHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if headerBytes(r) > maxHeaderBytes {
			http.Error(w, "the header of the request has more than 64 KiB", http.StatusRequestHeaderFieldsTooLarge)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func headerBytes(r *http.Request) int {
	const perField = 32 // as HTTP/2 counts
	n := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			n += len(name) + len(value) + perField
		}
	}
	return n
}
