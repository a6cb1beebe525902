// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"context"
	"net/http"
	"strings"
	"sync"
)

// Kind determines how a request ends.
type Kind int

const (
	// Short requests end by themselves after a short time.
	Short Kind = iota
	// Watch requests can be ended between two events. Clients then continue with another replica.
	Watch
	// Session requests last as long as the user wants. Users notice if they are interrupted. Examples are a shell, a
	// forwarded port, and a log that is followed.
	Session

	kinds
)

// KindOf returns the kind of a request.
func KindOf(r *http.Request) Kind {
	switch {
	case IsUpgrade(r.Header), follows(r):
		return Session
	case IsWatch(r):
		return Watch
	}
	return Short
}

// follows reports whether a request follows a log, as kubectl logs -f does.
func follows(r *http.Request) bool {
	return strings.HasSuffix(r.URL.Path, "/log") && BoolParameter(r.URL.Query()["follow"])
}

// Counts contains the number of requests in progress for each kind.
type Counts struct {
	Requests, Watches, Sessions int
}

// Group tracks the requests in progress in one server. Use NewGroup to create a Group. All methods are safe for
// concurrent use.
type Group struct {
	all context.Context // ends when all requests must end
	cut context.CancelFunc

	mu         sync.Mutex      // guards the fields below
	watches    context.Context // ends when the watches in progress must end
	endWatches context.CancelFunc
	under      [kinds]int
	empty      chan struct{} // closed when no request is in progress; nil while no caller is waiting
}

// NewGroup returns an empty Group.
func NewGroup() *Group {
	g := &Group{}
	g.watches, g.endWatches = context.WithCancel(context.Background())
	g.all, g.cut = context.WithCancel(context.Background())
	return g
}

type groupKey struct{}

// Handler counts the requests that next serves, and gives each of them a context that is canceled by Cut.
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

// EndResponse ends the response to a watch when one of the given contexts ends, or when the connection to the responder
// is lost between two events. If the request went through Handler, RenewWatches and EndWatches also end the response.
// EndResponse must be called before any part of the response is read. It returns false if the response is not a watch.
func EndResponse(response *http.Response, r *http.Request, with ...context.Context) bool {
	if KindOf(r) != Watch {
		return false
	}
	if g, ok := r.Context().Value(groupKey{}).(*Group); ok {
		with = append(with, g.watching())
	}
	return endWatch(response, func(error) bool { return true }, with...)
}

// RenewWatches ends all watches in progress, each between two events. New watches may start.
func (g *Group) RenewWatches() {
	g.mu.Lock()
	end := g.endWatches
	g.watches, g.endWatches = context.WithCancel(context.Background())
	g.mu.Unlock()
	end()
}

// EndWatches ends all watches, each between two events. Watches that start later end immediately.
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

// Cut cancels the contexts of all requests in progress, and of requests that start later.
func (g *Group) Cut() { g.cut() }

// Counts returns the current counts.
func (g *Group) Counts() Counts {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Counts{Requests: g.under[Short], Watches: g.under[Watch], Sessions: g.under[Session]}
}

// Wait returns nil once no request is in progress, or an error if ctx is done first.
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

// tellLocked notifies the callers of Wait if no request is in progress.
func (g *Group) tellLocked() {
	if g.empty != nil && g.under == [kinds]int{} {
		close(g.empty)
		g.empty = nil
	}
}
