// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package watch ends watches of a Kubernetes API between two of their events.
//
// API servers end each watch every few minutes, and clients go on from the last event that they have. A watch that ends the same
// way because a proxy on its way stops is handled like those; one that is broken off is an error.
package watch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover/internal/request"
)

// patience is how long the rest of an event may take when the watch has to end.
const patience = 5 * time.Second

// ErrBrokenOff means that a watch had to end within an event.
var ErrBrokenOff = errors.New("the watch was broken off within an event")

// Is reports whether a request asks for a watch, which never ends by itself. The path may have any prefix. A request that goes
// through an API server to a pod, service or node is not one.
func Is(r *http.Request) bool {
	if r.Method != http.MethodGet || proxied(r.URL.Path) {
		return false
	}
	return request.Truth(r.URL.Query()["watch"]) || deprecated(r.URL.Path)
}

// proxied reports whether a path leads on to a pod, service or node. The agent's and the hub's own prefixes hold no such names in a row.
func proxied(path string) bool {
	parts := strings.Split(path, "/")
	for i := 2; i < len(parts); i++ {
		if kind := parts[i-2]; parts[i] == "proxy" && (kind == "pods" || kind == "services" || kind == "nodes") {
			return true
		}
	}
	return false
}

// deprecated reports whether a path has the old form for watches, which API servers still serve: /api/v1/watch/pods.
func deprecated(path string) bool {
	before, _, found := strings.Cut(path, "/watch/")
	if !found {
		return false
	}
	parts := strings.Split(before, "/")
	n := len(parts)
	return n >= 2 && parts[n-2] == "api" || n >= 3 && parts[n-3] == "apis"
}

// Body is the body of an answer to a watch that can be ended. Read and Close are for one goroutine each, as with any body.
type Body struct {
	source  io.ReadCloser
	forget  func() bool      // stops waiting for the end
	excused func(error) bool // whether a failure of source between two events is an end like any other

	mu       sync.Mutex // guards what follows; not held while source is read
	events   boundaries
	between  bool // what was read ends with an event
	ending   bool // whether to end with the next event
	ended    bool
	deadline *time.Timer
}

// EndWith makes the response of a watch end when ctx does: at once between two events, else with the present one. An event that then does
// not come to its end within 5 s is broken off.
func EndWith(ctx context.Context, answer *http.Response) { end(ctx, answer, nil) }

// EndWithSource is EndWith; also, a failure of the source between two events ends the response cleanly if excused accepts the error.
func EndWithSource(ctx context.Context, answer *http.Response, excused func(error) bool) {
	end(ctx, answer, excused)
}

func end(ctx context.Context, answer *http.Response, excused func(error) bool) {
	if answer.StatusCode != http.StatusOK {
		return // a refusal ends by itself; a 101 is no watch any more
	}
	b := &Body{source: answer.Body, excused: excused, events: boundariesOf(answer.Header), between: true}
	b.forget = context.AfterFunc(ctx, b.end)
	answer.Body = b
}

// end ends the watch now or with the present event.
func (b *Body) end() {
	if b.endNow() {
		_ = b.source.Close() // ends the read under way
	}
}

// endNow reports whether there is no event to wait for.
func (b *Body) endNow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending, b.ended = true, b.between
	if !b.ended {
		b.deadline = time.AfterFunc(patience, func() { _ = b.source.Close() })
	}
	return b.ended
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.isEnded() {
		return 0, io.EOF
	}
	n, err := b.source.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended { // what came meanwhile is in the client's next watch
		return 0, io.EOF
	}
	first, last := b.events.scan(p[:n])
	if n > 0 {
		b.between = last == n
	}
	if b.ending && first >= 0 {
		b.ended = true
		return first, io.EOF
	}
	return n, b.outcome(err)
}

// outcome returns the error for the reader, given that of the source.
func (b *Body) outcome(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case b.ending:
		return ErrBrokenOff
	case b.between && b.excused != nil && b.excused(err):
		return io.EOF
	}
	return err
}

func (b *Body) isEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Close closes the body.
func (b *Body) Close() error {
	b.forget()
	b.mu.Lock()
	if b.deadline != nil {
		b.deadline.Stop()
	}
	b.mu.Unlock()
	return b.source.Close()
}
