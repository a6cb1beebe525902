// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probes serves the kubelet's liveness and readiness probes.
package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// shutdownTimeout is how long a probe under way may take when the agent stops.
const shutdownTimeout = time.Second

// Handler serves /healthz by alive and /readyz by ready.
func Handler(alive, ready func() bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(alive, "the link to the hub makes no progress"))
	mux.HandleFunc("GET /readyz", answer(ready, "no tunnel to the hub is open, or the hub has not read a report yet"))
	return mux
}

func answer(check func() bool, otherwise string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !check() {
			http.Error(w, otherwise, http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // the prober is gone otherwise
	}
}

// Serve answers at an address until ctx ends. It returns at once with an error if it cannot listen there.
func Serve(ctx context.Context, listener net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 8 << 10}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(ctx) // what is still open is closed with the process
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes: %w", err)
	}
	return nil
}
