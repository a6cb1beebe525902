// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
)

const (
	// PlanNodes is the number of nodes of each Plan in each member. The nodes are processed one after another.
	PlanNodes = 10
	// PlanTime is how long the nodes take together. It is a multiple of the interval between an agent's reports, so that
	// no report is late.
	PlanTime = 2 * planInterval

	planInterval = time.Second
)

// plans contains the Plans in the sets of one agent. They cannot fail. A paused plan does not start, and a plan that
// has started is never paused.
type plans struct {
	topic *stream.Topic

	mu    sync.Mutex // guards begun
	begun map[string]begunPlan
}

// begunPlan is a Plan that has started. Its state depends only on the time.
type begunPlan struct {
	revision string
	at       time.Time
}

// Run is a Plan that started in a member.
type Run struct {
	Member        types.NamespacedName
	Plan, Version string
}

// runs contains the runs of all members.
type runs struct {
	mu  sync.Mutex // guards all
	all []Run
}

// Runs returns the Plans that have started since the simulator was started, in order.
func (s *Sim) Runs() []Run {
	s.runs.mu.Lock()
	defer s.runs.mu.Unlock()
	return slices.Clone(s.runs.all)
}

func newPlans(topic *stream.Topic) *plans {
	topic.Put("", &protocol.Line{Plan: &protocol.PlanEvent{Hold: &protocol.PlanHold{}}})
	topic.Sync()
	return &plans{topic: topic, begun: map[string]begunPlan{}}
}

// take starts the Plans of a set that are new or have changed.
func (a *agent) take(content set.Content) {
	for _, o := range content.Objects {
		plan := &v1.Plan{}
		if o.GetKind() != "Plan" || runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, plan) != nil || !a.plans.begin(plan) {
			continue
		}
		a.sim.runs.mu.Lock()
		a.sim.runs.all = append(a.sim.runs.all, Run{Member: a.name(), Plan: plan.Name, Version: plan.Spec.Version})
		a.sim.runs.mu.Unlock()
	}
}

// begin starts a Plan, unless it is paused or has already started.
func (p *plans) begin(plan *v1.Plan) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	revision := plan.Annotations[v1.AnnotationRevision]
	if plan.Spec.Paused || p.begun[plan.Name].revision == revision {
		return false
	}
	p.begun[plan.Name] = begunPlan{revision: revision, at: time.Now()}
	p.publishLocked(plan.Name, revision)
	return true
}

// remove removes the Plan of a set that was removed.
func (p *plans) remove(id string) {
	if name, ok := strings.CutPrefix(id, "plan/"); ok {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.begun, name)
		p.topic.Delete(name)
	}
}

// publishLocked publishes the state of a Plan, and repeats this until the Plan is complete or has another revision.
func (p *plans) publishLocked(name, revision string) {
	plan, present := p.begun[name]
	if !present || plan.revision != revision {
		return
	}
	status := plan.status()
	p.topic.Put(name, &protocol.Line{Plan: &protocol.PlanEvent{State: &protocol.PlanState{Name: name, Status: status}}})
	if status.Nodes.Complete < PlanNodes {
		time.AfterFunc(planInterval, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.publishLocked(name, revision)
		})
	}
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
