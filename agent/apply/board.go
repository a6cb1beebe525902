// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"net/http"
	"reflect"
	"slices"
	"sync"

	"github.com/drover-dev/drover/agent/ndjson"
	"github.com/drover-dev/drover/internal/protocol"
)

// board shows the state of each set to any number of streams.
type board struct {
	ended chan struct{} // closed when there will be no more

	mu      sync.Mutex // guards what follows
	synced  bool
	version uint64
	posts   map[string]post
	changed chan struct{} // closed, and replaced, when streams should look
}

// post is a state and when it was posted.
type post struct {
	state   protocol.SetState
	version uint64
}

func newBoard() *board {
	return &board{ended: make(chan struct{}), posts: map[string]post{}, changed: make(chan struct{})}
}

// show posts a state, and says whether it is another than before.
func (b *board) show(state protocol.SetState) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before, known := b.posts[state.ID]; known && reflect.DeepEqual(before.state, state) {
		return false
	}
	b.version++
	b.posts[state.ID] = post{state: state, version: b.version}
	b.wake()
	return true
}

// state is what was posted of a set last.
func (b *board) state(id string) protocol.SetState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.posts[id].state
}

// remove takes a state off.
func (b *board) remove(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.posts, id)
	b.wake()
}

// sync says that all sets that are there are posted.
func (b *board) sync() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.synced = true
	b.wake()
}

// wake must be called under mu.
func (b *board) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *board) end() { close(b.ended) }

// stream is what one reader has been told.
type stream struct {
	told   map[string]uint64
	synced bool
}

// news is what the reader has not been told, and a channel that is closed when there may be more.
func (b *board) news(s *stream) (events []protocol.SetEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.synced {
		return nil, b.changed
	}
	for id, p := range b.posts {
		if s.told[id] != p.version {
			s.told[id] = p.version
			events = append(events, protocol.SetEvent{State: &p.state})
		}
	}
	for id := range s.told {
		if _, there := b.posts[id]; !there {
			delete(s.told, id)
			events = append(events, protocol.SetEvent{Removed: id})
		}
	}
	slices.SortFunc(events, func(x, y protocol.SetEvent) int { return compareEvents(x, y) })
	if !s.synced {
		s.synced = true
		events = append(events, protocol.SetEvent{Synced: true})
	}
	return events, b.changed
}

func compareEvents(x, y protocol.SetEvent) int {
	return slices.Compare([]string{idOf(x)}, []string{idOf(y)})
}

func idOf(e protocol.SetEvent) string {
	if e.State != nil {
		return e.State.ID
	}
	return e.Removed
}

// serve streams until the reader or the board ends.
func (b *board) serve(w http.ResponseWriter, r *http.Request) {
	reader := &stream{told: map[string]uint64{}}
	ndjson.Stream(w, r, b.ended, func() ([]protocol.SetEvent, <-chan struct{}) {
		events, more := b.news(reader)
		for i := range events {
			events[i].Bound()
		}
		return events, more
	})
}
