// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
)

// publishAfter is the interval at which the state of a long pass is published.
const publishAfter = 2 * time.Second

// publishMeanwhile publishes the state of a long pass at intervals, until the returned function is called.
func (p *pass) publishMeanwhile(state *protocol.SetState) (over func()) {
	ended := false // guarded by p.mu
	var timer *time.Timer
	p.mu.Lock()
	defer p.mu.Unlock()
	timer = time.AfterFunc(publishAfter, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if ended {
			return
		}
		now := *state
		now.Phase = protocol.SetPending
		p.summarizeLocked(&now)
		p.leader.publisher.publish(now)
		timer.Reset(publishAfter)
	})
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		ended = true
		timer.Stop()
	}
}

// summarize sets the phase and the problems of a state.
func (p *pass) summarize(state *protocol.SetState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	state.Phase = cmp.Or(state.Phase, protocol.SetApplied)
	p.summarizeLocked(state)
}

// summarizeLocked is like summarize, but the caller must hold mu. Objects that are still being written count as
// problems.
func (p *pass) summarizeLocked(state *protocol.SetState) {
	all := slices.Collect(maps.Values(p.problems))
	for r := range p.writing {
		all = append(all, protocol.SetObject{
			Object: r.String(), Phase: protocol.SetPending, Message: "the API server has not answered yet",
		})
	}
	slices.SortFunc(all, func(a, b protocol.SetObject) int { return cmp.Compare(a.Object, b.Object) })
	for _, phase := range []protocol.SetPhase{protocol.SetDrifted, protocol.SetProgressing, protocol.SetPending,
		protocol.SetUnhealthy, protocol.SetForbidden, protocol.SetRoleMissing, protocol.SetFailed, protocol.SetConflict,
		protocol.SetFighting} {
		if slices.ContainsFunc(all, func(o protocol.SetObject) bool { return o.Phase == phase }) {
			state.Phase = phase
		}
	}
	state.Failed = int32(len(all))
	state.Objects = all
	state.Bound()
}

func (p *pass) setWriting(r ref, writing bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if writing {
		p.writing[r] = true
	} else {
		delete(p.writing, r)
	}
}

// publisher publishes the state of each set to the hub.
type publisher struct{ *stream.Topic }

// publish publishes the state of a set, and reports whether the state differs from the previous one.
func (p publisher) publish(state protocol.SetState) bool {
	return p.Put(state.ID, &protocol.Line{Set: &protocol.SetEvent{State: &state}})
}

func (p publisher) state(id string) protocol.SetState {
	if line := p.Get(id); line != nil {
		return *line.Set.State
	}
	return protocol.SetState{}
}
