// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
)

// watchPatience is how long the rest of an event may take to arrive when the watch has to end.
const watchPatience = 5 * time.Second

// ErrBrokenOff means that a watch had to end in the middle of an event.
var ErrBrokenOff = errors.New("the watch was broken off within an event")

// IsWatch reports whether a request is a watch, which never ends by itself. The path may have any prefix. A request
// that an API server forwards to a pod, service or node is not a watch.
func IsWatch(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	asks := r.URL.RawQuery != "" && BoolParameter(r.URL.Query()["watch"]) || deprecated(r.URL.Path)
	return asks && !proxied(r.URL.Path) // checked last, because few requests get this far
}

// Repeatable reports whether a request may be sent again even if it has already been served. This is the case if it
// only reads from an API server. A pod, service or node behind an API server may do anything on a GET.
func Repeatable(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) &&
		!proxied(r.URL.Path)
}

// proxied reports whether a path leads to a pod, service or node. The path prefixes that the agent and the hub use do
// not contain these path elements in sequence.
func proxied(path string) bool {
	parts := strings.Split(path, "/")
	for i := 2; i < len(parts); i++ {
		if kind := parts[i-2]; parts[i] == "proxy" && (kind == "pods" || kind == "services" || kind == "nodes") {
			return true
		}
	}
	return false
}

// deprecated reports whether a path has the old form of watches, such as /api/v1/watch/pods, which API servers still
// serve.
func deprecated(path string) bool {
	before, _, found := strings.Cut(path, "/watch/")
	if !found {
		return false
	}
	parts := strings.Split(before, "/")
	n := len(parts)
	return n >= 2 && parts[n-2] == "api" || n >= 3 && parts[n-3] == "apis"
}

// watchBody is the body of a response to a watch that can be ended. As with any body, Read and Close must each be
// called from one goroutine.
type watchBody struct {
	source  io.ReadCloser
	forget  []func() bool    // stops waiting for the end
	excused func(error) bool // reports whether a failure of source between two events counts as a normal end

	mu       sync.Mutex // guards the fields below; it is not held while source is read
	events   boundaries
	between  bool // the data that has been read ends at the end of an event
	ending   bool // set if the watch must end with the next event
	ended    bool
	deadline *time.Timer
}

// EndWatch makes the response to a watch end when ctx does. If ctx ends between two events, the response ends
// immediately. Otherwise it ends at the end of the current event. If that event is not complete within 5 s, it is
// broken off.
func EndWatch(ctx context.Context, response *http.Response) { endWatch(response, nil, ctx) }

// EndWatchOrFailure is like EndWatch, but a failure of the source between two events also ends the response cleanly if
// excused accepts the error.
func EndWatchOrFailure(ctx context.Context, response *http.Response, excused func(error) bool) {
	endWatch(response, excused, ctx)
}

func endWatch(response *http.Response, excused func(error) bool, with ...context.Context) bool {
	if len(with) == 0 || response.StatusCode != http.StatusOK {
		return false // a refusal ends by itself, and a 101 is no longer a watch
	}
	b := &watchBody{source: response.Body, excused: excused, events: boundariesOf(response.Header), between: true}
	for _, ctx := range with {
		b.forget = append(b.forget, context.AfterFunc(ctx, b.end))
	}
	response.Body = b
	return true
}

// end ends the watch now, or at the end of the current event.
func (b *watchBody) end() {
	if b.endNow() {
		_ = b.source.Close() // ends the read in progress
	}
}

// endNow reports whether there is no event to wait for.
func (b *watchBody) endNow() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ending, b.ended = true, b.ended || b.between
	if !b.ended && b.deadline == nil {
		b.deadline = time.AfterFunc(watchPatience, func() { _ = b.source.Close() })
	}
	return b.ended
}

// Read implements io.Reader.
func (b *watchBody) Read(p []byte) (int, error) {
	if b.isEnded() {
		return 0, io.EOF
	}
	n, err := b.source.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended { // the client's next watch will contain events that arrive in the meantime
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

// outcome returns the error for the reader that corresponds to an error of the source.
func (b *watchBody) outcome(err error) error {
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

func (b *watchBody) isEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Close closes the body.
func (b *watchBody) Close() error {
	for _, forget := range b.forget {
		forget()
	}
	b.mu.Lock()
	if b.deadline != nil {
		b.deadline.Stop()
	}
	b.mu.Unlock()
	return b.source.Close()
}
