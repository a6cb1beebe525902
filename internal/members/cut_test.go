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

// TestRequestsWhenTheirTunnelIsCut cuts the tunnel of a request that the agent has received but not answered.
func TestRequestsWhenTheirTunnelIsCut(t *testing.T) {
	back := func(w *world) { // the agent is back after 300 ms, as after a network failure
		w.pass(300 * time.Millisecond)
		w.serve("prod", "key", reporting(respond("answered")))
	}
	for name, tt := range map[string]struct {
		method string
		before func(*world) // opens other tunnels before the newest, which is cut
		after  func(*world)
		want   error // nil for a response
	}{
		"a GET is sent through another tunnel": {
			http.MethodGet, func(w *world) { w.serve("prod", "key", reporting(respond("answered"))) }, nil, nil,
		},
		"a GET waits for the agent to return":  {http.MethodGet, nil, back, nil},
		"a HEAD waits for the agent to return": {http.MethodHead, nil, back, nil},
		"a GET fails if the agent does not return, so its user can repeat it": {
			http.MethodGet, nil, nil, members.ErrNotConnected,
		},
		"a DELETE is not sent again, because it may have had an effect": {
			http.MethodDelete, func(w *world) { w.serve("prod", "key", reporting(respond("answered"))) }, nil,
			tunnel.ErrPeerClosed,
		},
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

// roundTrip sends a request and reads the response.
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
		err = fmt.Errorf("got the response %q, want %q", body, "answered")
	}
	return err
}
