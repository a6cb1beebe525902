// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
)

// A workload behind a member's API server can send endless informational responses. They are not part of the Kubernetes
// API, and a user who does not read them must not block the tunnel, which others share.
func TestInformationalResponsesDoNotBlockOtherRequests(t *testing.T) {
	ended := make(chan struct{})
	agent := func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/hints") {
			_, _ = io.WriteString(w, "ok")
			return
		}
		defer close(ended)
		for r.Context().Err() == nil {
			w.Header().Set("Link", strings.Repeat("x", 8<<10))
			w.WriteHeader(http.StatusEarlyHints)
		}
	}
	handler, err := New(testOptions(oneTunnel{openTunnel(t, agent)}.Transport, logr.Discard()))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	stall(t, server, func(int) string { return podsPath + "/web/proxy/hints" }, 1)
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the endless informational responses continue, want them ended")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+podsPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t-alice")
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatalf("another request through the same tunnel failed: %v", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Errorf("another request through the same tunnel got %s, want 200", response.Status)
	}
}
