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

// publisher publishes the status of the hub's Plans to any number of streams.
type publisher struct {
	ended chan struct{} // closed when there will be no more

	mu      sync.Mutex // guards what follows
	synced  bool
	reason  string // why the member takes no part
	version uint64 // of the latest entry; 1 is the version of the initial hold
	held    uint64 // version of reason
	entries map[string]entry
	changed chan struct{} // closed and replaced when there is something to send
}

// entry is a state and the version at which it was published.
type entry struct {
	state   protocol.PlanState
	version uint64
}

func newPublisher() *publisher {
	return &publisher{ended: make(chan struct{}), version: 1, held: 1, entries: map[string]entry{}, changed: make(chan struct{})}
}

// hold publishes why the member takes no part in plans; empty if it does.
func (b *publisher) hold(reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reason != reason {
		b.version++
		b.reason, b.held = reason, b.version
		b.wake()
	}
}

// holdFor publishes why no Plan can be run yet. If the agent's rights are those of an older manifest, that lasts until the present one is
// applied.
func (b *publisher) holdFor(what string, err error) {
	message := fmt.Sprintf("the agent cannot %s: %v", what, err)
	if _, refused := refusedFor(err); refused && apierrors.IsForbidden(err) {
		message = "the agent's rights are those of an older manifest: apply the manifest of the Cluster again (" + message + ")"
	}
	b.hold(message)
	b.keep(nil)
}

// publish publishes a state if it has changed.
func (b *publisher) publish(state protocol.PlanState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before, known := b.entries[state.Name]; known && same(before.state.Status, state.Status) {
		return
	}
	b.version++
	b.entries[state.Name] = entry{state: state, version: b.version}
	b.wake()
}

// keep removes all other Plans. Streams are synced as soon as it is called with exactly the Plans that are published.
func (b *publisher) keep(names map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name := range b.entries {
		if !names[name] {
			delete(b.entries, name)
			b.wake()
		}
	}
	if !b.synced && len(b.entries) == len(names) {
		b.synced = true
		b.wake()
	}
}

// wake must be called under mu.
func (b *publisher) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *publisher) end() { close(b.ended) }

// reader is what one stream has sent.
type reader struct {
	held   uint64
	sent   map[string]uint64
	synced bool
}

// unsent returns the events that the reader has not received, and a channel that is closed when there may be more.
func (b *publisher) unsent(r *reader) (events []protocol.PlanEvent, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.synced {
		return nil, b.changed
	}
	if r.held != b.held {
		r.held = b.held
		events = append(events, protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: b.reason}})
	}
	for _, name := range slices.Sorted(maps.Keys(b.entries)) {
		if p := b.entries[name]; r.sent[name] != p.version {
			r.sent[name] = p.version
			events = append(events, protocol.PlanEvent{State: &p.state})
		}
	}
	for name := range r.sent {
		if _, there := b.entries[name]; !there {
			delete(r.sent, name)
			events = append(events, protocol.PlanEvent{Removed: name})
		}
	}
	if !r.synced {
		r.synced = true
		events = append(events, protocol.PlanEvent{Synced: true})
	}
	return events, b.changed
}

// serve streams until the reader or the publisher ends.
func (b *publisher) serve(w http.ResponseWriter, r *http.Request) {
	to := &reader{sent: map[string]uint64{}}
	ndjson.Stream(w, r, b.ended, func() ([]protocol.PlanEvent, <-chan struct{}) {
		events, more := b.unsent(to)
		for i := range events {
			events[i].Bound()
		}
		return events, more
	})
}
