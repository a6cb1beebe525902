// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2/hpack"
)

// ErrHeaderTooLarge is returned if the header or the trailer of a request is larger than the other end accepts.
var ErrHeaderTooLarge = errors.New("request header too large")

var errPeerHeader = fmt.Errorf("%w: the other end allows less", ErrHeaderTooLarge)

// Field is a header field. The name is in lower case.
type Field struct{ Name, Value string }

// requestFields is the header of a request in the form that is sent.
type requestFields struct {
	host, method, path string
	header             http.Header
	omit               func(name string) bool
	more               []Field
	trailer            string
	length             int64 // -1 if no length is sent
	size               uint64
}

// fieldsOf returns the header of a request. It returns an error if the header is invalid. An invalid header must not
// reach the encoder, which is shared by all requests.
func (c *Client) fieldsOf(r *http.Request, more []Field) (*requestFields, error) {
	f := &requestFields{
		host: r.Host, method: r.Method, path: r.URL.RequestURI(), header: r.Header,
		omit: c.cfg.Omit, more: more, length: -1,
	}
	if f.host == "" {
		f.host = r.URL.Host
	}
	if f.host == "" {
		f.host = "agent"
	}
	host, err := httpguts.PunycodeHostPort(f.host)
	if err != nil || !httpguts.ValidHostHeader(host) {
		return nil, fmt.Errorf("the host of the request is not valid: %q", f.host)
	}
	f.host = host
	if f.method == "" {
		f.method = http.MethodGet
	}
	if !httpguts.ValidHeaderFieldName(f.method) || f.method == http.MethodConnect { // the method must be a token
		return nil, fmt.Errorf("the method of the request is not valid: %q", f.method)
	}
	if f.path != "*" && !strings.HasPrefix(f.path, "/") {
		return nil, fmt.Errorf("the path of the request is not valid: %q", f.path)
	}
	if HasBody(r) && r.ContentLength > 0 {
		f.length = r.ContentLength
	} else if !HasBody(r) && slices.Contains([]string{"POST", "PUT", "PATCH"}, f.method) {
		f.length = 0
	}
	if err := errors.Join(checkHeader(r.Header), checkHeader(r.Trailer)); err != nil {
		return nil, err
	}
	var names []string
	for name := range r.Trailer {
		names = append(names, http.CanonicalHeaderKey(name))
	}
	slices.Sort(names)
	f.trailer = strings.Join(names, ",")
	f.each(func(name, value string) { f.size += size(name, value) })
	return f, nil
}

// size returns the size of a header field, as HTTP/2 counts it.
func size(name, value string) uint64 {
	return uint64(hpack.HeaderField{Name: name, Value: value}.Size())
}

func checkHeader(h http.Header) error {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return fmt.Errorf("a header of the request has a name that is not valid: %q", name)
		}
		for _, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return fmt.Errorf("the header %s of the request has a value that is not valid", name)
			}
		}
	}
	return nil
}

// each calls the given function for each header field, starting with the pseudo-header fields.
func (f *requestFields) each(to func(name, value string)) {
	to(":authority", f.host)
	to(":method", f.method)
	to(":path", f.path)
	to(":scheme", "https")
	if f.trailer != "" {
		to("trailer", f.trailer)
	}
	agent := "Go-http-client/2.0"
	for name, values := range f.header {
		if f.omit(name) {
			continue
		}
		switch name = lower(name); name {
		case "host", "content-length":
		case "user-agent":
			agent = ""
			if len(values) > 0 {
				agent = values[0]
			}
		default:
			for _, value := range values {
				to(name, value)
			}
		}
	}
	if agent != "" {
		to("user-agent", agent)
	}
	if httpguts.HeaderValuesContainsToken(f.header["Te"], "trailers") {
		to("te", "trailers") // gRPC needs this header, and HTTP/2 allows no other value
	}
	for _, field := range f.more {
		to(field.Name, field.Value)
	}
	if f.length >= 0 {
		to("content-length", strconv.FormatInt(f.length, 10))
	}
}

// lowered maps the names of common request headers to lower case.
var lowered = func() map[string]string {
	names := map[string]string{}
	for _, name := range []string{
		"Accept", "Accept-Encoding", "Accept-Language", "Authorization", "Content-Length", "Content-Type", "Host",
		"If-None-Match", "Impersonate-Group",
		"Impersonate-Uid", "Impersonate-User", "Kubectl-Command", "Kubectl-Session", "Te", "Traceparent", "Tracestate",
		"User-Agent",
	} {
		names[name] = strings.ToLower(name)
	}
	return names
}()

func lower(name string) string {
	if l, known := lowered[name]; known {
		return l
	}
	return strings.ToLower(name)
}

// HasBody reports whether a request has a body.
func HasBody(r *http.Request) bool {
	return r.Body != nil && r.Body != http.NoBody
}

// CloseBody closes the request's body, as a RoundTripper must do even if it does not send the request.
func CloseBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // nothing was read from the body, so an error does not matter
	}
}
