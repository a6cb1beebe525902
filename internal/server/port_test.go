// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/request"
)

func TestRequestsReachTheRightHandler(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, header string
		closing      bool
		code         int
		users        bool // whether the proxy serves it
		last         bool // whether the response is the last on its connection
	}{
		"a user's request reaches the proxy": {
			path: "/k8s/clusters/a/b/api", code: http.StatusTeapot, users: true,
		},
		"an unclean path reaches the proxy, unchanged": {
			path: "/k8s/clusters//../healthz", code: http.StatusTeapot, users: true,
		},
		"a request to the hub's API reaches the proxy": {
			path: "/k8s/local/api", code: http.StatusTeapot, users: true,
		},
		"a probe does not reach the proxy": {path: "/healthz", code: http.StatusOK},
		"a stopping replica sends the last response": {
			path: "/k8s/local/api", closing: true, code: http.StatusTeapot, users: true, last: true,
		},
		"a header that is too large goes no further": {
			path: "/k8s/local/api", header: strings.Repeat("x", maxHeaderBytes), code: http.StatusRequestHeaderFieldsTooLarge,
		},
		"a path that belongs to neither is not found": {path: "/k8s", code: http.StatusNotFound},
		"a stopping replica also ends the connection of a probe": {
			path: "/healthz", closing: true, code: http.StatusOK, last: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := members.New(logr.Discard(), time.Now)
			s := &Server{
				Members: registry, Registration: &registration.Server{}, Stop: Stop{Calls: request.NewGroup()},
				telemetry: observe(nil, registry.States, prometheus.NewRegistry()),
			}
			served := false
			s.Proxy = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if n := s.Stop.Calls.Counts().Requests; n != 1 {
					t.Errorf("%d requests are in progress, want 1", n)
				}
				served = true
				w.WriteHeader(http.StatusTeapot)
			})
			closing, closeNow := context.WithCancel(t.Context())
			defer closeNow()
			if tc.closing {
				closeNow()
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.URL.Path = tc.path
			r.Header.Set("X-Large", tc.header)
			w := httptest.NewRecorder()
			s.handler(t.Context(), closing).ServeHTTP(w, r)
			if w.Code != tc.code || served != tc.users || (w.Header().Get("Connection") == "close") != tc.last {
				t.Errorf("got %d with %v, from the proxy %t; want %d, %t, the last response %t", w.Code, w.Header(), served,
					tc.code, tc.users, tc.last)
			}
		})
	}
}
