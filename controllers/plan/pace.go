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
	// reasonPause is the time in which a plan that returns to a reason gets no event: its member flaps.
	reasonPause = time.Minute
)

// pace remembers when statuses were written, and their reasons. The zero value is ready.
type pace struct {
	mu    sync.Mutex // guards what follows
	plans map[types.NamespacedName]written
}

// written has the last writes of a plan of one generation.
type written struct {
	generation int64
	at         time.Time
	reasons    map[string]time.Time // when an event had each reason
}

// news reports whether a change to a reason is worth an event, and a write at once.
func (p *pace) news(plan *v1.Plan, reason string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.plans[client.ObjectKeyFromObject(plan)]
	seen, known := last.reasons[reason]
	return !known || last.generation != plan.Generation || now.Sub(seen) >= reasonPause
}

// wait returns how long a status has to wait for its next write.
func (p *pace) wait(plan *v1.Plan, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plans[client.ObjectKeyFromObject(plan)].at.Add(statusPause).Sub(now)
}

// note records a write, and whether its reason was news.
func (p *pace) note(plan *v1.Plan, reason string, news bool, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := client.ObjectKeyFromObject(plan)
	last := p.plans[name]
	if last.reasons == nil || last.generation != plan.Generation {
		last.generation, last.reasons = plan.Generation, map[string]time.Time{}
	}
	if last.at = now; news {
		last.reasons[reason] = now
	}
	if p.plans == nil {
		p.plans = map[types.NamespacedName]written{}
	}
	p.plans[name] = last
}

func (p *pace) forget(plan types.NamespacedName) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.plans, plan)
}
