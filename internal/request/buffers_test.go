// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drover-dev/drover/internal/request"
)

// flushes counts the flushes of a response.
type flushes struct {
	*httptest.ResponseRecorder
	n atomic.Int64
}

func (f *flushes) Flush()            { f.n.Add(1) }
func (f *flushes) FlushError() error { f.n.Add(1); return nil }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestOnlyStreamsAreFlushed(t *testing.T) {
	t.Parallel()
	for target, flushed := range map[string]bool{
		"/api/v1/namespaces/a/configmaps/b":               false,
		"/api/v1/pods?limit=500":                          false,
		"/api/v1/pods?watch=true":                         true,
		"/api/v1/watch/pods":                              true,
		"/api/v1/namespaces/a/pods/b/log":                 true,
		"/api/v1/namespaces/a/pods/b/log?follow=true":     true,
		"/api/v1/namespaces/a/services/b/proxy/events":    true,
		"/apis/x.example/v1/namespaces/a/things/b/stream": true,
		"/metrics": true,
	} {
		t.Run(target, func(t *testing.T) {
			t.Parallel()
			proxy := &httputil.ReverseProxy{
				Rewrite: func(*httputil.ProxyRequest) {},
				Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1,
						Body: io.NopCloser(strings.NewReader("body")), Request: r}, nil
				}),
				ModifyResponse: func(r *http.Response) error {
					request.Of(r.Request, r.Request.URL.Path).FewWrites(r)
					return nil
				},
			}
			w := &flushes{ResponseRecorder: httptest.NewRecorder()}
			proxy.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
			if got := w.n.Load() > 0; got != flushed {
				t.Errorf("flushed %t, want %t", got, flushed)
			}
			if w.Body.String() != "body" {
				t.Errorf("got %q, want the body", w.Body)
			}
		})
	}
}
