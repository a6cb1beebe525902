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

// publisher publishes the state of each set to any number of streams.
type publisher struct {
	ended chan struct{} // closed when there will be no more

	mu      sync.Mutex // guards what follows
	synced  bool
	version uint64
	entries map[string]entry
	changed chan struct{} // closed and replaced when there is something to send
}

// entry is a state and the version at which it was published.
type entry struct {
	state   protocol.SetState
	version uint64
}

func newPublisher() *publisher {
	return &publisher{ended: make(chan struct{}), entries: map[string]entry{}, changed: make(chan struct{})}
}

// publish sets the state of a set, and reports whether it differs from the one before.
func (b *publisher) publish(state protocol.SetState) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before, known := b.entries[state.ID]; known && reflect.DeepEqual(before.state, state) {
		return false
	}
	b.version++
	b.entries[state.ID] = entry{state: state, version: b.version}
	b.wake()
	return true
}

// state returns the last published state of a set.
func (b *publisher) state(id string) protocol.SetState {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries[id].state
}

// remove removes the state of a set.
func (b *publisher) remove(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.entries, id)
	b.wake()
}

// setSynced records that all present sets are published.
func (b *publisher) setSynced() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.synced = true
	b.wake()
}

// wake must be called under mu.
func (b *publisher) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *publisher) end() { close(b.ended) }

// stream is what one reader has received.
type stream struct {
	sent   map[string]uint64
	synced bool
}

// unsent returns the events that the reader has not received, and a channel that is closed when there may be more.
func (b *publisher) unsent(s *stream) (events []protocol.SetEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.synced {
		return nil, b.changed
	}
	for id, p := range b.entries {
		if s.sent[id] != p.version {
			s.sent[id] = p.version
			events = append(events, protocol.SetEvent{State: &p.state})
		}
	}
	for id := range s.sent {
		if _, there := b.entries[id]; !there {
			delete(s.sent, id)
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

// serve streams until the reader or the publisher ends.
func (b *publisher) serve(w http.ResponseWriter, r *http.Request) {
	reader := &stream{sent: map[string]uint64{}}
	ndjson.Stream(w, r, b.ended, func() ([]protocol.SetEvent, <-chan struct{}) {
		events, more := b.unsent(reader)
		for i := range events {
			events[i].Bound()
		}
		return events, more
	})
}
