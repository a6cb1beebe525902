// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// maxArrivals bounds how many arrivals are kept: the first ones.
const maxArrivals = 1 << 20

// Arrival is a set that came to a member, or was taken away there.
type Arrival struct {
	ID string
	At time.Time
}

// arrivals are the sets that came to all members.
type arrivals struct {
	mu  sync.Mutex // guards all
	all []Arrival
}

func (a *arrivals) note(id string) {
	at := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) < maxArrivals {
		a.all = append(a.all, Arrival{ID: id, At: at})
	}
}

// Arrivals returns the sets that were put and taken away since it was called last, in the order in which they came.
func (s *Sim) Arrivals() []Arrival {
	s.arrivals.mu.Lock()
	defer s.arrivals.mu.Unlock()
	all := s.arrivals.all
	s.arrivals.all = nil
	return all
}

// sets are those of one agent: digests by id. What they hold is not kept, and applied at once.
type sets struct {
	mu      sync.Mutex // guards what follows
	digests map[string]string
	changed chan struct{} // closed, and replaced, with each change
}

func newSets() *sets { return &sets{digests: map[string]string{}, changed: make(chan struct{})} }

// set puts a digest, or takes one away that is empty.
func (s *sets) set(id, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if digest == "" {
		delete(s.digests, id)
	} else {
		s.digests[id] = digest
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// news returns the events for what differs from sent, and updates sent.
func (s *sets) news(sent map[string]string) (events []protocol.SetEvent, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, digest := range s.digests {
		if sent[id] != digest {
			sent[id] = digest
			events = append(events, protocol.SetEvent{State: &protocol.SetState{ID: id, Digest: digest, Phase: protocol.SetApplied}})
		}
	}
	for id := range sent {
		if _, there := s.digests[id]; !there {
			delete(sent, id)
			events = append(events, protocol.SetEvent{Removed: id})
		}
	}
	return events, s.changed
}

// serveSets serves protocol.PathSets.
func (a *agent) serveSets(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == protocol.PathSets {
		a.streamSets(w, r)
		return
	}
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	state := protocol.SetState{ID: id, Phase: protocol.SetDeleted}
	if r.Method == http.MethodPut {
		digest, err := a.readSet(id, http.MaxBytesReader(w, r.Body, protocol.MaxSet))
		if err != nil || digest == "" {
			http.Error(w, "this is no set", http.StatusUnprocessableEntity)
			return
		}
		state.Phase, state.Digest = protocol.SetApplied, digest
	}
	a.sets.set(id, state.Digest)
	a.sim.arrivals.note(id)
	_ = json.NewEncoder(w).Encode(state) // the client may be gone
}

// readSet returns the digest of a set, and its Plans. The simulator ignores its other objects.
func (a *agent) readSet(id string, body io.Reader) (string, error) {
	if !strings.HasPrefix(id, "plan/") {
		var put struct{ Digest string }
		err := json.NewDecoder(body).Decode(&put)
		return put.Digest, err
	}
	var set protocol.Set
	if err := json.NewDecoder(body).Decode(&set); err != nil {
		return "", fmt.Errorf("read set %s: %w", id, err)
	}
	a.plans.take(set)
	return set.Digest, nil
}

func (a *agent) streamSets(w http.ResponseWriter, r *http.Request) {
	sent, encoder := map[string]string{}, json.NewEncoder(w)
	for synced := false; ; synced = true {
		events, changed := a.sets.news(sent)
		if !synced {
			events = append(events, protocol.SetEvent{Synced: true})
		}
		for _, event := range events {
			if err := encoder.Encode(event); err != nil {
				return // the reader is gone
			}
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
