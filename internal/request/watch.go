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

// watchPatience is how long the rest of an event may take to arrive after the watch has been told to end.
const watchPatience = 5 * time.Second

// ErrBrokenOff is returned if a watch had to end in the middle of an event.
var ErrBrokenOff = errors.New("the watch was broken off within an event")

// IsWatch reports whether a request is a watch. A watch never ends on its own. The path may have any prefix. Requests
// that an API server forwards to a pod, service or node are not watches.
func IsWatch(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	asks := r.URL.RawQuery != "" && BoolParameter(r.URL.Query()["watch"]) || deprecated(r.URL.Path)
	return asks && !proxied(r.URL.Path) // checked last, because few requests get this far
}

// Repeatable reports whether a request may be sent again even if it may already have been served. This is the case if
// the request only reads from an API server. Requests to a pod, service or node behind an API server are not
// repeatable, because even a GET request may change something there.
func Repeatable(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions) &&
		!proxied(r.URL.Path)
}

// proxied reports whether a path refers to a pod, service or node behind an API server. No path prefix of the agent
// or the hub contains these path elements in sequence.
func proxied(path string) bool {
	parts := strings.Split(path, "/")
	for i := 2; i < len(parts); i++ {
		if kind := parts[i-2]; parts[i] == "proxy" && (kind == "pods" || kind == "services" || kind == "nodes") {
			return true
		}
	}
	return false
}

// deprecated reports whether a path has the old format for watches, such as /api/v1/watch/pods. API servers still
// serve such paths.
func deprecated(path string) bool {
	before, _, found := strings.Cut(path, "/watch/")
	if !found {
		return false
	}
	parts := strings.Split(before, "/")
	n := len(parts)
	return n >= 2 && parts[n-2] == "api" || n >= 3 && parts[n-3] == "apis"
}

// watchBody is the body of the response to a watch. The watch can be ended between two events. As with any body, Read
// and Close must each be called from one goroutine.
type watchBody struct {
	source  io.ReadCloser
	forget  []func() bool    // functions that stop waiting for contexts to end
	excused func(error) bool // reports whether an error from source between two events counts as a normal end

	mu       sync.Mutex // guards the fields below; it is not held while source is read
	events   boundaries
	between  bool // set if the data read so far ends at the end of an event
	ending   bool // set if the watch must end after the current event
	ended    bool
	deadline *time.Timer
}

// EndWatch makes the response to a watch end when ctx is done. If ctx is done between two events, the response ends
// immediately. If ctx is done during an event, the response ends after that event. If the event is not complete within
// 5 s, the response ends with ErrBrokenOff.
func EndWatch(ctx context.Context, response *http.Response) { endWatch(response, nil, ctx) }

// EndWatchOrFailure is like EndWatch, but the response also ends normally if the source fails between two events and
// excused returns true for the error.
func EndWatchOrFailure(ctx context.Context, response *http.Response, excused func(error) bool) {
	endWatch(response, excused, ctx)
}

func endWatch(response *http.Response, excused func(error) bool, with ...context.Context) bool {
	if len(with) == 0 || response.StatusCode != http.StatusOK {
		return false // error responses end on their own, and a response with status 101 is no longer a watch
	}
	b := &watchBody{source: response.Body, excused: excused, events: boundariesOf(response.Header), between: true}
	for _, ctx := range with {
		b.forget = append(b.forget, context.AfterFunc(ctx, b.end))
	}
	response.Body = b
	return true
}

// end ends the watch immediately, or at the end of the current event.
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

// outcome returns the error that Read returns for an error from the source.
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
