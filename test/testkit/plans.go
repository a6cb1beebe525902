// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"sync"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Plans are the states of a fake agent's plans. They outlive its tunnel as its Sets do.
type Plans struct {
	mu      sync.Mutex // guards what follows
	hold    string
	states  map[string]protocol.PlanState
	answer  int              // a status to answer with, 0 for a good one
	serve   http.HandlerFunc // answers in place of this, nil if nothing does
	streams int
	events  []protocol.PlanEvent
	changed chan struct{}
}

func newPlans() *Plans {
	return &Plans{states: map[string]protocol.PlanState{}, changed: make(chan struct{})}
}

// SetStatus changes the status of a plan.
func (p *Plans) SetStatus(name string, status v1.PlanStatus) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state := protocol.PlanState{Name: name, Status: status}
	p.states[name] = state
	p.tellLocked(protocol.PlanEvent{State: &state})
}

// Remove removes a plan.
func (p *Plans) Remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.states, name)
	p.tellLocked(protocol.PlanEvent{Removed: name})
}

// Hold sets why the member takes no part; it is empty if the member does.
func (p *Plans) Hold(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = reason
	p.tellLocked(protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: reason}})
}

// Answer has streams fail with a status from now on; 0 has them be served again.
func (p *Plans) Answer(status int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = status
}

// Serve has a handler serve in place of this fake, such as that of a malicious agent.
func (p *Plans) Serve(serve http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.serve = serve
}

// Streams returns how many streams were opened.
func (p *Plans) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

func (p *Plans) tellLocked(e protocol.PlanEvent) {
	p.events = append(p.events, e)
	close(p.changed)
	p.changed = make(chan struct{})
}

// ServeHTTP serves protocol.PathPlans.
func (p *Plans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.streams++
	next, hold, answer, serve := len(p.events), p.hold, p.answer, p.serve
	states := slices.Collect(maps.Values(p.states))
	p.mu.Unlock()
	if answer != 0 {
		http.Error(w, "as the test wants", answer)
		return
	}
	if serve != nil {
		serve(w, r)
		return
	}
	encoder := json.NewEncoder(w)
	_ = encoder.Encode(protocol.PlanEvent{Hold: &protocol.PlanHold{Reason: hold}})
	for _, state := range states {
		_ = encoder.Encode(protocol.PlanEvent{State: &state})
	}
	_ = encoder.Encode(protocol.PlanEvent{Synced: true})
	for {
		_ = http.NewResponseController(w).Flush()
		p.mu.Lock()
		events, changed := slices.Clone(p.events[next:]), p.changed
		next = len(p.events)
		p.mu.Unlock()
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
