// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/agent/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// followBaseline records whether the set contains a Baseline, and records the values that Baselines refer to. If the
// values have changed, it returns the IDs of all sets with a Baseline. The caller must hold mu.
func (t *state) followBaseline(s *localSet) (affected []string) {
	if s.content.Baseline != nil {
		t.baselines[s.id] = true
	}
	if s.id != set.Values {
		return nil
	}
	values := maps.Clone(s.content.Values)
	if s.deleting {
		values = nil
	} else if values == nil {
		values = map[string]string{}
	}
	if (values == nil) == (t.values == nil) && maps.Equal(values, t.values) {
		return nil
	}
	t.values = values
	return slices.Collect(maps.Keys(t.baselines))
}

// baselinePass handles the set's Baseline during a pass.
type baselinePass struct{ pass *pass }

// keep applies the objects of the Baseline. It waits while the set has a problem, because the binding that grants the
// rights may be missing.
func (b baselinePass) keep(ctx context.Context, state *protocol.SetState) {
	p, content := b.pass, b.pass.set.content.Baseline
	if content == nil {
		return
	}
	p.mu.Lock()
	troubled := len(p.problems) > 0
	p.mu.Unlock()
	result := baseline.Result{State: *beginning(content)}
	if !troubled {
		p.leader.state.mu.Lock()
		values := p.leader.state.values
		p.leader.state.mu.Unlock()
		result = p.leader.baselines.Keep(ctx, p.set.id, content, values)
	}
	p.mu.Lock()
	state.Baseline = &result.State
	p.mu.Unlock()
	b.note(result)
}

// beginning returns the initial state of a Baseline, in which no object is known to be healthy. It returns nil if the
// set has no Baseline.
func beginning(content *set.BaselineContent) *protocol.BaselineState {
	if content == nil {
		return nil
	}
	return &protocol.BaselineState{Revision: content.Revision, Objects: int32(len(content.Objects))}
}

// meanwhile returns the state to publish during a pass. This is the previous state, unless the revision is new.
func (b baselinePass) meanwhile() *protocol.BaselineState {
	now := beginning(b.pass.set.content.Baseline)
	last := b.pass.leader.publisher.state(b.pass.set.id).Baseline
	if now != nil && last != nil && last.Revision == now.Revision {
		return last
	}
	return now
}

// remove removes the objects of the Baseline, and reports whether all of them are gone.
func (b baselinePass) remove(ctx context.Context) (gone bool) {
	p := b.pass
	if !strings.HasPrefix(p.set.id, set.ID(set.Baseline, "")) {
		return true
	}
	result := p.leader.baselines.Remove(ctx, p.set.id)
	b.note(result)
	return len(result.Problems) == 0 && ctx.Err() == nil
}

// note adds the problems of the Baseline to the problems of the pass.
func (b baselinePass) note(result baseline.Result) {
	b.pass.mu.Lock()
	for _, o := range result.Problems {
		b.pass.problems[ref{kind: "Baseline", name: o.Object}] = o
	}
	b.pass.mu.Unlock()
	if result.Again > 0 {
		b.pass.later(result.Again)
	}
}

// retried reports whether another pass may solve one of the problems. Objects in other phases have already been
// applied, and a watch event for them starts the next pass.
func retried(problems map[ref]protocol.SetObject) bool {
	for _, o := range problems {
		switch o.Phase {
		case protocol.SetProgressing, protocol.SetUnhealthy, protocol.SetDrifted:
		default:
			return true
		}
	}
	return false
}

// publishAgain is the minimum interval between two states of a Baseline with the same phase.
const publishAgain = time.Second

// tooSoon reports whether the state of a Baseline must not be published yet. In that case, it schedules another pass.
func (b baselinePass) tooSoon(state protocol.SetState) bool {
	p := b.pass
	last := p.leader.publisher.state(p.set.id)
	same := state.Baseline != nil && last.Phase == state.Phase && last.Digest == state.Digest
	if wait := p.set.published.Add(publishAgain).Sub(p.now); same && wait > 0 && wait <= publishAgain {
		p.leader.queue.AddAfter(p.set.id, wait)
		return true
	}
	p.set.published = p.now
	return false
}
