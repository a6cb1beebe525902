// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// PlanNodes is how many nodes each Plan has in each member. They are done one after the other.
	PlanNodes = 10
	// PlanTime is how long they take together. It is a multiple of the interval of an agent's reports, so that none is late.
	PlanTime = 2 * planInterval

	planInterval = time.Second
)

// plans are those in the sets of one agent. They are never paused, and cannot fail.
type plans struct {
	mu      sync.Mutex // guards what follows
	begun   map[string]begunPlan
	changed chan struct{} // closed, and replaced, when a Plan begins
}

// begunPlan is a Plan that has begun; its state follows from the time.
type begunPlan struct {
	revision string
	at       time.Time
}

func newPlans() *plans {
	return &plans{begun: map[string]begunPlan{}, changed: make(chan struct{})}
}

// take begins the Plans of a set that are new or changed.
func (p *plans) take(set protocol.Set) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range set.Content.Objects {
		plan := &v1.Plan{}
		if o.GetKind() != "Plan" || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, plan) != nil {
			continue
		}
		if revision := plan.Annotations[v1.AnnotationRevision]; p.begun[plan.Name].revision != revision {
			p.begun[plan.Name] = begunPlan{revision: revision, at: time.Now()}
			close(p.changed)
			p.changed = make(chan struct{})
		}
	}
}

// news returns the states that differ from sent, and updates sent. It also returns whether there will be more, and a channel that is
// closed when a Plan begins.
func (p *plans) news(sent map[string]int32) (events []protocol.PlanEvent, working bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, plan := range p.begun {
		status := plan.status()
		done := status.Nodes.Complete
		if before, known := sent[name+plan.revision]; !known || before != done {
			sent[name+plan.revision] = done
			events = append(events, protocol.PlanEvent{State: &protocol.PlanState{Name: name, Status: status}})
		}
		working = working || done < PlanNodes
	}
	return events, working, p.changed
}

func (b begunPlan) status() v1.PlanStatus {
	done := min(PlanNodes, int(time.Since(b.at)*PlanNodes/PlanTime))
	count := rollout.Count(PlanNodes, done, min(1, PlanNodes-done), 0, 0)
	complete := metav1.Condition{Type: v1.ConditionComplete, Status: metav1.ConditionFalse, Reason: v1.ReasonApplying, LastTransitionTime: metav1.NewTime(b.at)}
	if done == PlanNodes {
		complete.Status, complete.Reason = metav1.ConditionTrue, v1.ReasonComplete
	}
	return v1.PlanStatus{Revision: b.revision, Nodes: &count, Conditions: []metav1.Condition{complete}}
}

// ServeHTTP serves protocol.PathPlans.
func (p *plans) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sent, encoder := map[string]int32{}, json.NewEncoder(w)
	if err := encoder.Encode(protocol.PlanEvent{Hold: &protocol.PlanHold{}}); err != nil {
		return // the reader is gone
	}
	for synced := false; ; synced = true {
		events, working, changed := p.news(sent)
		if !synced {
			events = append(events, protocol.PlanEvent{Synced: true})
		}
		for _, event := range events {
			if err := encoder.Encode(event); err != nil {
				return
			}
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		var later <-chan time.Time
		if working {
			later = time.After(planInterval)
		}
		select {
		case <-changed:
		case <-later:
		case <-r.Context().Done():
			return
		}
	}
}
