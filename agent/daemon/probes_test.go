// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestProbes(t *testing.T) {
	t.Parallel()
	yes, no := func() bool { return true }, func() bool { return false }
	for name, tc := range map[string]struct {
		method, path string
		alive, ready func() bool
		want         int
	}{
		"alive":          {"GET", "/healthz", yes, no, 200},
		"stuck":          {"GET", "/healthz", no, yes, 503},
		"connected":      {"GET", "/readyz", no, yes, 200},
		"not connected":  {"GET", "/readyz", yes, no, 503},
		"metrics":        {"GET", "/metrics", yes, yes, 200},
		"another path":   {"GET", "/", yes, yes, 404},
		"another method": {"POST", "/healthz", yes, yes, 405},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			answer := httptest.NewRecorder()
			probes(tc.alive, tc.ready, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(answer,
				httptest.NewRequest(tc.method, tc.path, nil))
			if answer.Code != tc.want {
				t.Errorf("got the code %d, want another one", answer.Code)
			}
		})
	}
}

func TestServe(t *testing.T) {
	t.Parallel()
	t.Run("stopping it is not an error", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- serve(ctx, listener, http.NotFoundHandler()) }()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Run("a failing listener is an error", func(t *testing.T) {
		t.Parallel()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close()
		if err := serve(t.Context(), listener, http.NotFoundHandler()); err == nil {
			t.Error("got no error, want one")
		}
	})
}
