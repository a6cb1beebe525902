// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/tunnel"
)

// TestRequestsWhoseTunnelIsCut cuts the tunnel under a request that the agent has seen and not answered.
func TestRequestsWhoseTunnelIsCut(t *testing.T) {
	back := func(w *world) { // the agent is back after 300 ms, as after a failure of the network
		w.pass(300 * time.Millisecond)
		w.serve("prod", "key", reporting(said("answered")))
	}
	for name, tt := range map[string]struct {
		method string
		before func(*world) // the tunnels beside the one that is cut, which is the newest
		after  func(*world)
		want   error // nil for an answer
	}{
		"a GET goes by another tunnel":                                     {http.MethodGet, func(w *world) { w.serve("prod", "key", reporting(said("answered"))) }, nil, nil},
		"a GET waits for the agent to return":                              {http.MethodGet, nil, back, nil},
		"a HEAD waits for the agent to return":                             {http.MethodHead, nil, back, nil},
		"a GET of a member that does not return is sent again by its user": {http.MethodGet, nil, nil, members.ErrNotConnected},
		"a DELETE may have been done, and is not sent again":               {http.MethodDelete, func(w *world) { w.serve("prod", "key", reporting(said("answered"))) }, nil, tunnel.ErrPeerClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(w *world) {
				if tt.before != nil {
					tt.before(w)
				}
				seen := 0
				cut := w.serve("prod", "key", reporting(func(_ http.ResponseWriter, r *http.Request) {
					seen++
					<-r.Context().Done()
				}))
				transport, err := w.Transport(peer("prod", "key").Name())
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				go func() { done <- roundTrip(transport, tt.method) }()
				synctest.Wait()
				_ = cut.conn.Close()
				if tt.after != nil {
					tt.after(w)
				}
				if err := <-done; !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
				if seen != 1 {
					t.Errorf("the agent whose tunnel was cut saw %d requests, want 1", seen)
				}
			})
		})
	}
}

// roundTrip sends a request and reads the answer.
func roundTrip(transport http.RoundTripper, method string) error {
	r, err := http.NewRequestWithContext(context.Background(), method, "http://agent/api", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && method != http.MethodHead && string(body) != "answered" {
		err = fmt.Errorf("the answer is %q", body)
	}
	return err
}
