// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

const (
	exchangeTimeout = 5 * time.Second // timeout for one probe or one request to change the log level
	shutdownTimeout = time.Second     // timeout for requests that are in progress when the agent stops
)

// probes returns a handler that serves the result of alive at /healthz, the result of ready at /readyz, and /metrics.
func probes(alive, ready func() bool, metrics http.Handler) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
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
		_, _ = w.Write([]byte("ok\n")) // an error means that the prober has disconnected
	}
}

func serveProbes(ctx context.Context, listener net.Listener, h http.Handler) error {
	if err := serve(ctx, listener, h); err != nil {
		return fmt.Errorf("serve probes: %w", err)
	}
	return nil
}

// serve handles short requests on a listener until ctx is done.
func serve(ctx context.Context, listener net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: exchangeTimeout, ReadTimeout: exchangeTimeout, WriteTimeout: exchangeTimeout,
		MaxHeaderBytes: 8 << 10,
	}
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		_ = server.Shutdown(ctx) // any open connections are closed when the process exits
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
