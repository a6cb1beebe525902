// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/drover-dev/drover/internal/protocol"
)

// Sets are the sets of a fake agent. They outlive its tunnel if they are given to the next one.
type Sets struct {
	// Plans are the states of the plans among them.
	Plans *Plans

	mu      sync.Mutex // guards what follows
	held    map[string]protocol.Set
	states  map[string]protocol.SetState
	fail    func(protocol.Set) protocol.SetState // the state of a set that is put
	answer  int                                  // a status to answer PUT and DELETE with, 0 for a good one
	calls   []string
	streams int
	changed chan struct{}
	events  []protocol.SetEvent
}

// NewSets makes an empty store.
func NewSets() *Sets {
	return &Sets{Plans: newPlans(), held: map[string]protocol.Set{}, states: map[string]protocol.SetState{}, changed: make(chan struct{})}
}

// Hold adds a set, as one that the agent had before.
func (s *Sets) Hold(set protocol.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdLocked(set)
}

// Held returns the IDs of the sets, sorted.
func (s *Sets) Held() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.held))
}

// Get returns a set.
func (s *Sets) Get(id string) (protocol.Set, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	set, found := s.held[id]
	return set, found
}

// Calls returns the requests so far, as "PUT crtb/a" and "DELETE crtb/a".
func (s *Sets) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Streams returns how many streams of states were opened.
func (s *Sets) Streams() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.streams
}

// Become has sets that are put from now on get the state that state returns; nil has them be applied. An empty digest becomes the set's own.
func (s *Sets) Become(state func(protocol.Set) protocol.SetState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = state
}

// Answer has every PUT and DELETE fail with a status from now on; 0 has them be served again.
func (s *Sets) Answer(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = status
}

// SetState changes the state of a set, as a change in the member does.
func (s *Sets) SetState(state protocol.SetState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states[state.ID] = state
	s.publishLocked(protocol.SetEvent{State: &state})
}

func (s *Sets) publishLocked(e protocol.SetEvent) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Sets) holdLocked(set protocol.Set) protocol.SetState {
	state := protocol.SetState{ID: set.ID, Digest: set.Digest, Phase: protocol.SetApplied}
	if s.fail != nil {
		state = s.fail(set)
		state.ID, state.Digest = set.ID, cmp.Or(state.Digest, set.Digest)
	}
	s.held[set.ID], s.states[set.ID] = set, state
	s.publishLocked(protocol.SetEvent{State: &state})
	return state
}

// serveSets serves protocol.PathSets.
func (a *Agent) serveSets(w http.ResponseWriter, r *http.Request) {
	s := a.Sets
	if r.Method == http.MethodGet {
		s.stream(w, r)
		return
	}
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+id)
	answer := s.answer
	s.mu.Unlock()
	switch {
	case !a.hear(r):
	case answer != 0:
		http.Error(w, "as the test wants", answer)
	case r.Method == http.MethodDelete:
		_ = json.NewEncoder(w).Encode(s.remove(id))
	default:
		var set protocol.Set
		if err := json.NewDecoder(r.Body).Decode(&set); err != nil || set.Check() != nil || set.ID != id {
			http.Error(w, "no set", http.StatusUnprocessableEntity)
			return
		}
		s.mu.Lock()
		state := s.holdLocked(set)
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(state)
	}
}

func (s *Sets) remove(id string) protocol.SetState {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
	delete(s.states, id)
	s.publishLocked(protocol.SetEvent{Removed: id})
	return protocol.SetState{ID: id, Phase: protocol.SetDeleted}
}

func (s *Sets) stream(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.streams++
	next := len(s.events)
	states := slices.Collect(maps.Values(s.states))
	s.mu.Unlock()
	encoder := json.NewEncoder(w)
	for _, state := range states {
		_ = encoder.Encode(protocol.SetEvent{State: &state})
	}
	_ = encoder.Encode(protocol.SetEvent{Synced: true})
	for {
		_ = http.NewResponseController(w).Flush()
		s.mu.Lock()
		events, changed := slices.Clone(s.events[next:]), s.changed
		next = len(s.events)
		s.mu.Unlock()
		for _, event := range events {
			_ = encoder.Encode(event)
		}
		if len(events) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
