// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

var errDeclined = errors.New("the response header was too large for the tunnel")

// handler wraps the agent's handler. It restores upgrade requests, and keeps headers within the hub's limit. A header
// far above the limit would end the whole tunnel rather than only the request.
type handler struct {
	next           http.Handler
	maxHeaderBytes int
}

// ServeHTTP serves a request from the hub.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protocol, method := r.Header.Get(headerUpgrade), r.Header.Get(headerMethod)
	for name := range r.Header {
		if isPrivate(name) {
			delete(r.Header, name)
		}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	r = r.WithContext(ctx)
	limited := &limitedWriter{ResponseWriter: w, limit: h.maxHeaderBytes, cancel: cancel}
	defer limited.recoverDeclined()
	if protocol != "" && r.Method == http.MethodPost {
		upgrading := &upgradeWriter{limitedWriter: limited, request: r}
		defer upgrading.release()
		h.next.ServeHTTP(upgrading, originalRequest(r, method, protocol))
		upgrading.wait()
	} else {
		h.next.ServeHTTP(limited, r)
	}
	limited.finish()
}

// originalRequest returns the upgrade request that the POST request represents. The body of the POST request belongs
// to the hijacked connection.
func originalRequest(post *http.Request, method, protocol string) *http.Request {
	r := post.Clone(post.Context())
	r.Method = method
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", protocol)
	r.Body, r.ContentLength = http.NoBody, 0
	return r
}

// limitedWriter responds with 502 if the handler's header is larger than the hub allows.
type limitedWriter struct {
	http.ResponseWriter
	limit    int
	cancel   context.CancelFunc // cancels the request
	began    bool
	declined bool // set if the header was too large
}

// WriteHeader writes the header if it is small enough. It drops the fields that must not be sent through a tunnel,
// such as Connection. net/http2 would interpret "Connection: close" as the end of the whole tunnel.
func (w *limitedWriter) WriteHeader(status int) {
	if w.began {
		return
	}
	w.began = status >= http.StatusOK
	header := w.Header()
	for name := range header {
		if staysHere(name) && name != "Priority" {
			delete(header, name)
		}
	}
	size := headerSize(header)
	switch {
	case size > w.limit:
		w.decline(fmt.Sprintf("the response header has %d bytes, but the tunnel allows only %d", size, w.limit))
	case status == http.StatusSwitchingProtocols:
		w.decline("the handler answered 101 to a request that did not ask for an upgrade")
	default:
		w.ResponseWriter.WriteHeader(status)
	}
}

// decline responds with 502 and the given reason, discards the handler's response, and cancels the request.
func (w *limitedWriter) decline(reason string) {
	w.began, w.declined = true, true
	clear(w.Header())
	http.Error(w.ResponseWriter, reason, http.StatusBadGateway)
	w.cancel()
}

// recoverDeclined recovers from a panic after the response has been declined. A handler may panic to abort its
// response.
func (w *limitedWriter) recoverDeclined() {
	if !w.declined {
		return
	}
	reason := recover()
	if err, ok := reason.(error); reason == nil || ok && errors.Is(err, http.ErrAbortHandler) {
		return
	}
	panic(reason)
}

// Write writes the body.
func (w *limitedWriter) Write(p []byte) (int, error) {
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	if w.declined {
		return 0, errDeclined
	}
	return w.ResponseWriter.Write(p) // return the writer's error unchanged
}

// FlushError sends the data that has been written so far.
func (w *limitedWriter) FlushError() error {
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush() // return the writer's error unchanged
}

// Flush implements http.Flusher.
func (w *limitedWriter) Flush() { _ = w.FlushError() }

// Unwrap gives http.ResponseController access to the deadlines.
func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// finish writes the header if the handler has not written it. It aborts the response if the trailer is too large to
// send.
func (w *limitedWriter) finish() {
	if !w.began {
		w.WriteHeader(http.StatusOK)
	}
	header := w.Header()
	trailer := make(http.Header)
	for _, names := range header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = http.CanonicalHeaderKey(strings.TrimSpace(name))
			trailer[name] = header[name]
		}
	}
	for name, values := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			trailer[name] = values
		}
	}
	if headerSize(trailer) > w.limit {
		panic(http.ErrAbortHandler)
	}
}
