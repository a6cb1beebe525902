// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"context"
	"net/http"
	"strings"
	"sync"
)

// Kind is how a request ends.
type Kind int

const (
	// Short ends by itself, soon.
	Short Kind = iota
	// Watch ends between two events on request, and its user continues elsewhere.
	Watch
	// Session lasts as long as its user wants, and the user notices its loss: a shell, a forwarded port, a log that is
	// followed.
	Session

	kinds
)

// KindOf is what kind of request one is.
func KindOf(r *http.Request) Kind {
	switch {
	case IsUpgrade(r.Header), follows(r):
		return Session
	case IsWatch(r):
		return Watch
	}
	return Short
}

// follows reports whether a log is followed: kubectl logs -f.
func follows(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/log") && BoolParameter(r.URL.Query()["follow"])
}

// Counts are the requests under way.
type Counts struct {
	Requests, Watches, Sessions int
}

// Group is the requests under way in one server. NewGroup makes it. All methods may be called concurrently.
type Group struct {
	all context.Context // ends when all requests shall
	cut context.CancelFunc

	mu         sync.Mutex      // guards what follows
	watches    context.Context // ends when the watches that have it shall
	endWatches context.CancelFunc
	under      [kinds]int
	empty      chan struct{} // closed when nothing is under way; nil while no caller waits for that
}

// NewGroup makes an empty Group.
func NewGroup() *Group {
	g := &Group{}
	g.watches, g.endWatches = context.WithCancel(context.Background())
	g.all, g.cut = context.WithCancel(context.Background())
	return g
}

type groupKey struct{}

// Handler counts the requests that next serves, and gives them a context that Cut ends.
func (g *Group) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := KindOf(r)
		g.add(kind, 1)
		defer g.add(kind, -1)
		ctx, cancel := context.WithCancel(context.WithValue(r.Context(), groupKey{}, g))
		defer cancel()
		defer context.AfterFunc(g.all, cancel)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// EndResponse makes the response to a watch end with any of some contexts, and with RenewWatches and EndWatches if the
// request went through Handler; also, when the responder is lost between two events. Call it before any of the response
// is read. It reports whether the response ends so.
func EndResponse(response *http.Response, r *http.Request, with ...context.Context) bool {
	if KindOf(r) != Watch {
		return false
	}
	if g, ok := r.Context().Value(groupKey{}).(*Group); ok {
		with = append(with, g.watching())
	}
	return endWatch(response, func(error) bool { return true }, with...)
}

// RenewWatches ends the watches that are under way between two of their events. Others may begin.
func (g *Group) RenewWatches() {
	g.mu.Lock()
	end := g.endWatches
	g.watches, g.endWatches = context.WithCancel(context.Background())
	g.mu.Unlock()
	end()
}

// EndWatches ends all watches between two of their events, and those that begin later at once.
func (g *Group) EndWatches() {
	g.mu.Lock()
	end := g.endWatches
	g.mu.Unlock()
	end()
}

func (g *Group) watching() context.Context {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.watches
}

// Cut ends the context of all requests that are under way or begin later.
func (g *Group) Cut() { g.cut() }

// Counts are those of this moment.
func (g *Group) Counts() Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Counts{Requests: g.under[Short], Watches: g.under[Watch], Sessions: g.under[Session]}
}

// Wait returns nil when nothing is under way, or why ctx ended before.
func (g *Group) Wait(ctx context.Context) error {
	select {
	case <-g.whenEmpty():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (g *Group) whenEmpty() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.empty == nil {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.tellLocked()
	return empty
}

func (g *Group) add(kind Kind, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.under[kind] += n
	g.tellLocked()
}

// tellLocked wakes those who wait, if they may go.
func (g *Group) tellLocked() {
	if g.empty != nil && g.under == [kinds]int{} {
		close(g.empty)
		g.empty = nil
	}
}
