// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	// statusPause is the time between two writes of a status in which only counts have changed.
	statusPause = time.Second
	// turnPause is the time in which a plan that comes back to a reason tells no news: its member cannot make up its mind.
	turnPause = time.Minute
)

// pace remembers when statuses were written, and what they said. The zero value is ready.
type pace struct {
	mu    sync.Mutex // guards what follows
	plans map[types.NamespacedName]telling
}

// telling is what was told of a plan of one generation.
type telling struct {
	generation int64
	last       time.Time
	turns      map[string]time.Time // when each reason was told
}

// news is whether a turn to a reason is worth an event, and a write at once.
func (p *pace) news(plan *v1.Plan, reason string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.plans[client.ObjectKeyFromObject(plan)]
	at, known := told.turns[reason]
	return !known || told.generation != plan.Generation || now.Sub(at) >= turnPause
}

// wait is how long a status has to wait for its next write.
func (p *pace) wait(plan *v1.Plan, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plans[client.ObjectKeyFromObject(plan)].last.Add(statusPause).Sub(now)
}

// note takes a write, and whether its reason was news.
func (p *pace) note(plan *v1.Plan, reason string, news bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := client.ObjectKeyFromObject(plan)
	told := p.plans[name]
	if told.turns == nil || told.generation != plan.Generation {
		told.generation, told.turns = plan.Generation, map[string]time.Time{}
	}
	if told.last = now; news {
		told.turns[reason] = now
	}
	if p.plans == nil {
		p.plans = map[types.NamespacedName]telling{}
	}
	p.plans[name] = told
}

func (p *pace) forget(plan types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.plans, plan)
}
