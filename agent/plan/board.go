// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/ndjson"
	"github.com/drover-dev/drover/internal/protocol"
)

// board shows how the hub's Plans are to any number of streams.
type board struct {
	ended chan struct{} // closed when there will be no more

	mu      sync.Mutex // guards what follows
	synced  bool
	reason  string // why the member takes no part
	version uint64 // of the latest post; 1 is that of a hold that was never changed
	held    uint64 // version of reason
	posts   map[string]post
	changed chan struct{} // closed, and replaced, when streams should look
}

// post is a state and when it was posted.
type post struct {
	state   protocol.PlanState
	version uint64
}

func newBoard() *board {
	return &board{ended: make(chan struct{}), version: 1, held: 1, posts: map[string]post{}, changed: make(chan struct{})}
}

// hold posts why the member takes no part in plans, unless it is the same.
func (b *board) hold(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason != reason {
		b.version++
		b.reason, b.held = reason, b.version
		b.wake()
	}
}

// wait has the hub know why no Plan can be run yet. With the rights of an older manifest that lasts until somebody applies the present one.
func (b *board) wait(what string, err error) {
	message := fmt.Sprintf("the agent cannot %s: %v", what, err)
	if _, refused := refusedFor(err); refused && apierrors.IsForbidden(err) {
		message = "the agent's rights are those of an older manifest: apply the manifest of the Cluster again (" + message + ")"
	}
	b.hold(message)
	b.keep(nil)
}

// show posts a state, unless it is the same.
func (b *board) show(state protocol.PlanState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before, known := b.posts[state.Name]; known && same(before.state.Status, state.Status) {
		return
	}
	b.version++
	b.posts[state.Name] = post{state: state, version: b.version}
	b.wake()
}

// keep takes all other Plans off. From the first time on everything that is there is posted, or about to be, or the reason why nothing is.
func (b *board) keep(names map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.posts {
		if !names[name] {
			delete(b.posts, name)
			b.wake()
		}
	}
	if !b.synced && len(b.posts) == len(names) {
		b.synced = true
		b.wake()
	}
}

// wake must be called under mu.
func (b *board) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) end() { close(b.ended) }

// reader is what one stream has been told.
type reader struct {
	held   uint64
	told   map[string]uint64
	synced bool
}

// news is what the reader has not been told, and a channel that is closed when there may be more.
func (b *board) news(r *reader) (events []protocol.PlanEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.synced {
		return nil, b.changed
	}
	if r.held != b.held {
		r.held = b.held
		events = append(events, protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: b.reason}})
	}
	for _, name := range slices.Sorted(maps.Keys(b.posts)) {
		if p := b.posts[name]; r.told[name] != p.version {
			r.told[name] = p.version
			events = append(events, protocol.PlanEvent{State: &p.state})
		}
	}
	for name := range r.told {
		if _, there := b.posts[name]; !there {
			delete(r.told, name)
			events = append(events, protocol.PlanEvent{Removed: name})
		}
	}
	if !r.synced {
		r.synced = true
		events = append(events, protocol.PlanEvent{Synced: true})
	}
	return events, b.changed
}

// serve streams until the reader or the board ends.
func (b *board) serve(w http.ResponseWriter, r *http.Request) {
	told := &reader{told: map[string]uint64{}}
	ndjson.Stream(w, r, b.ended, func() ([]protocol.PlanEvent, <-chan struct{}) {
		events, more := b.news(told)
		for i := range events {
			events[i].Bound()
		}
		return events, more
	})
}
