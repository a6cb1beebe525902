// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
)

// No window, stream or place leaks, however requests end, because a connection stays open for weeks.
func TestCanceledRequestsLeakNothing(t *testing.T) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 20<<10)
		switch r.URL.Path {
		case "/early":
			w.WriteHeader(http.StatusForbidden)
		case "/abort":
			_, _ = io.CopyN(w, r.Body, 100)
			panic(http.ErrAbortHandler)
		case "/both":
			_, _ = io.Copy(w, r.Body)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			for range 20 {
				_, _ = w.Write(piece)
			}
		}
	})
	client := serve(t, answer)
	var running sync.WaitGroup
	for worker := range uint64(16) {
		running.Go(func() {
			random := rand.New(rand.NewPCG(worker, 1))
			for range 15 {
				giveUp(t, client, random)
			}
		})
	}
	running.Wait()
	if err := client.Ping(t.Context()); err != nil { // wait for the last frames of the server
		t.Fatal(err)
	}
	client.mu.Lock()
	defer client.mu.Unlock()
	if got := client.state.arriving.credit + client.state.arriving.read; got != connWindow+firstWindow {
		t.Errorf("the window of the connection is %d, want %d", got, connWindow+firstWindow)
	}
	if len(client.streams) != 0 || client.state.opening != 0 {
		t.Errorf("%d streams and %d places are left, want none", len(client.streams), client.state.opening)
	}
}

// giveUp sends a request, reads a random part of its response, and cancels it.
func giveUp(t *testing.T, c *Client, random *rand.Rand) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var body io.Reader
	if random.IntN(2) == 0 {
		body = bytes.NewReader(make([]byte, random.IntN(200<<10)+1))
	}
	paths := []string{"/early", "/abort", "/both", "/long"}
	r := request(t, http.MethodPut, paths[random.IntN(len(paths))], body).WithContext(ctx)
	if random.IntN(3) == 0 {
		go cancel()
	}
	response, err := c.RoundTrip(r)
	if err != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, response.Body, random.Int64N(300<<10))
	_ = response.Body.Close()
}
