// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// Sets contains the sets of a fake agent. They remain when its tunnel ends, if they are passed to the next one.
type Sets struct {
	// Plans contains the states of the plans in the sets.
	Plans *Plans

	stream *stream.Stream
	topic  *stream.Topic

	mu     sync.Mutex // guards what follows
	held   map[string]HeldSet
	fail   func(set.Content) protocol.SetState // returns the state of a set that was put
	answer int                                 // a status to answer PUT and DELETE with, 0 for a good one
	calls  []string
	serve  http.HandlerFunc // replaces the stream's handler unless it is nil
}

// NewSets returns an empty store.
func NewSets() *Sets {
	all := stream.New()
	s := &Sets{stream: all, topic: all.Topic(protocol.SubjectSets), Plans: newPlans(all.Topic(protocol.SubjectPlans)), held: map[string]HeldSet{}}
	s.topic.Sync()
	return s
}

// Hold adds a set as if the agent already had it.
func (s *Sets) Hold(put *set.Set, content set.Content) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holdLocked(put, content)
}

// Held returns the IDs of the sets, sorted.
func (s *Sets) Held() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.held))
}

// HeldSet is a set with its content.
type HeldSet struct {
	set.Set
	Content set.Content
}

// Get returns a set.
func (s *Sets) Get(id string) (HeldSet, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, found := s.held[id]
	return held, found
}

// Calls returns the requests so far, such as "PUT crtb/a" and "DELETE crtb/a".
func (s *Sets) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// Lead sets whether the agent is the leader. Initially, it is. An agent that is not the leader reports no sets and no
// plans.
func (s *Sets) Lead(leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, topic := range []*stream.Topic{s.topic, s.Plans.topic} {
		if leads {
			topic.Sync()
		} else {
			topic.Reset()
		}
	}
}

// Serve replaces the fake's handler of the stream, for example with the handler of a malicious agent.
func (s *Sets) Serve(serve http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serve = serve
}

// Become sets the function that returns the state of sets that are put from now on. If it is nil, they are applied. An
// empty digest is replaced by the set's digest.
func (s *Sets) Become(state func(set.Content) protocol.SetState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = state
}

// Answer makes all subsequent PUT and DELETE requests fail with a status. With 0, they succeed again.
func (s *Sets) Answer(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = status
}

// Reach makes the agent report a checkpoint of the hub, as if it had received the checkpoint with a set.
func (s *Sets) Reach(checkpoint string) {
	s.topic.Put("//", &protocol.Line{Set: &protocol.SetEvent{Checkpoint: checkpoint}})
}

// Reached returns the checkpoint that the agent reports, or "" if there is none.
func (s *Sets) Reached() string {
	if line := s.topic.Get("//"); line != nil {
		return line.Set.Checkpoint
	}
	return ""
}

// SetState changes the state of a set, like a change in the member.
func (s *Sets) SetState(state protocol.SetState) {
	s.topic.Put(state.ID, &protocol.Line{Set: &protocol.SetEvent{State: &state}})
}

func (s *Sets) holdLocked(put *set.Set, content set.Content) protocol.SetState {
	state := protocol.SetState{ID: put.ID, Digest: put.Digest, Phase: protocol.SetApplied}
	if s.fail != nil {
		state = s.fail(content)
		state.ID, state.Digest = put.ID, cmp.Or(state.Digest, put.Digest)
	}
	s.held[put.ID] = HeldSet{*put, content}
	s.SetState(state)
	return state
}

// serveSets serves the paths below protocol.PathSets.
func (a *Agent) serveSets(w http.ResponseWriter, r *http.Request) {
	s := a.Sets
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+id)
	answer := s.answer
	s.mu.Unlock()
	if checkpoint := r.URL.Query().Get(protocol.QueryCheckpoint); checkpoint != "" && answer == 0 {
		s.Reach(checkpoint)
	}
	switch {
	case !a.hear(r):
	case answer != 0:
		http.Error(w, "as the test wants", answer)
	case r.Method == http.MethodDelete:
		_ = json.NewEncoder(w).Encode(s.remove(id))
	default:
		raw, err := io.ReadAll(r.Body)
		put, content, invalid := set.Parse(raw)
		if err != nil || invalid != nil || put.ID != id {
			http.Error(w, "no set", http.StatusUnprocessableEntity)
			return
		}
		s.mu.Lock()
		state := s.holdLocked(put, content)
		s.mu.Unlock()
		_ = json.NewEncoder(w).Encode(state)
	}
}

func (s *Sets) remove(id string) protocol.SetState {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, id)
	s.topic.Delete(id)
	return protocol.SetState{ID: id, Phase: protocol.SetDeleted}
}
