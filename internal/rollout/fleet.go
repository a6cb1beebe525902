// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Rest is the name of the wave of members that no other selects.
const Rest = "rest"

// FleetPlan is a Plan of the hub with what was found out about it.
type FleetPlan struct {
	Name string
	Spec v1.PlanSpec
	// Hash and Revision as the functions make them, of the spec that members are given.
	Hash, Revision string
	// Resume is the annotation v1.AnnotationResume of the Plan: the revision that a person has let go on although members are ahead.
	Resume string
}

// Cluster is what is observed of a member on the hub.
type Cluster struct {
	Name   string
	Labels map[string]string
	// Selected says that the plan is for it.
	Selected bool
	// Claim is the annotation v1.PlanLabel(plan) of the Cluster. Nil when the plan never began there.
	Claim *ClusterClaim
	// Away says why it cannot be given anything: not connected, AgentTooOld, AgentReadOnly. Empty when it can.
	Away string
	// AwaySince is since when at the latest; zero if that is not known.
	AwaySince time.Time
	// Hold is what its agent says, see protocol.PlanHold.
	Hold string
	// Status of the Plan in the member as its agent last said it, for any revision. Nil when it has not.
	Status *v1.PlanStatus
	// Unreported says that its agent has not said yet how the plan is there, or that there is none.
	Unreported bool
}

// ClusterClaim says that a plan is or was at work in a member. It is the annotation v1.PlanLabel(plan) of the Cluster, as JSON.
type ClusterClaim struct {
	// Revision of the plan with which it began.
	Revision string `json:"revision"`
	// Since when it is at work.
	Since time.Time `json:"since"`
	// Complete is when all its nodes had the plan.
	Complete *time.Time `json:"complete,omitempty"`
	// Failed is when a node of it had no attempt left.
	Failed *time.Time `json:"failed,omitempty"`
	// Ahead is set, with no revision, for a member that had done more than this hub knew of.
	Ahead *Ahead `json:"ahead,omitempty"`
}

// ClusterStep is one write of a Cluster.
type ClusterStep struct {
	Verb    Verb
	Cluster string
	// Claim that it is to have; nil removes it.
	Claim *ClusterClaim
	// Label is the value of v1.PlanLabel(plan) to set; empty leaves what is there.
	Label string
}

// FleetDecision is a step, or else why to wait.
type FleetDecision struct {
	Step *ClusterStep
	Wait Wait
}

// Delivery is what a member is given of a plan.
type Delivery string

const (
	// DeliverNothing takes the plan away.
	DeliverNothing Delivery = "Nothing"
	// DeliverPaused gives it the plan with paused set: what runs finishes.
	DeliverPaused Delivery = "Paused"
	// DeliverPlan gives it the plan.
	DeliverPlan Delivery = "Plan"
	// DeliverUnchanged leaves it what it has: it has not been heard yet what that is.
	DeliverUnchanged Delivery = "Unchanged"
)

// Fleet is a plan and its members at a time, looked at together. NewFleet makes it.
type Fleet struct {
	plan     FleetPlan
	label    string // of Clusters that have the plan
	now      time.Time
	clusters []Cluster
	waves    []wave
	of       []int // the wave of each cluster, -1 for those without
	stopped  bool
	failed   int
	slots    int // that are taken
	opened   int // the last wave in which a member has begun
	until    time.Time
}

type wave struct {
	name                            string
	soak                            time.Duration
	total, complete, failed, active int
	absent                          int // away or held, and not begun
	last                            time.Time
}

// NewFleet looks at a plan and its members, which are sorted by name. It fails for selectors that cannot be used.
func NewFleet(clusters []Cluster, plan FleetPlan, now time.Time) (*Fleet, error) {
	f := &Fleet{plan: plan, label: v1.PlanLabel(plan.Name), now: now, clusters: clusters, of: make([]int, len(clusters)), opened: -1}
	selectors, err := f.readWaves()
	if err != nil {
		return nil, err
	}
	for i := range clusters {
		c := &clusters[i]
		f.of[i] = -1
		if f.takes(c) {
			f.slots++
		}
		if !f.counts(c) {
			continue
		}
		at := 0
		for at < len(selectors) && !selectors[at].Matches(labels.Set(c.Labels)) {
			at++
		}
		f.of[i] = at
		f.join(&f.waves[at], c)
		if f.current(c) {
			f.opened = max(f.opened, at)
		}
	}
	f.stopped = f.failed > f.maxFailed()
	return f, nil
}

func (f *Fleet) readWaves() ([]labels.Selector, error) {
	var selectors []labels.Selector
	if f.plan.Spec.Rollout != nil {
		for _, w := range f.plan.Spec.Rollout.Waves {
			selector := labels.Everything()
			if w.ClusterSelector != nil {
				var err error
				if selector, err = metav1.LabelSelectorAsSelector(w.ClusterSelector); err != nil {
					return nil, fmt.Errorf("read selector of wave %s: %w", w.Name, err)
				}
			}
			selectors = append(selectors, selector)
			f.waves = append(f.waves, wave{name: w.Name, soak: duration(w.Soak, 0)})
		}
	}
	name := Rest
	for _, w := range f.waves {
		if w.name == Rest {
			name = "others" // the names are keys of a list in the status
		}
	}
	f.waves = append(f.waves, wave{name: name})
	return selectors, nil
}

// join counts a member in its wave.
func (f *Fleet) join(w *wave, c *Cluster) {
	w.total++
	switch {
	case !f.current(c):
		if c.Away != "" || f.held(c) != "" {
			w.absent++
		}
	case c.Claim.Complete != nil:
		w.complete++
		w.last = later(w.last, *c.Claim.Complete)
	case c.Claim.Failed != nil:
		w.failed++
	default:
		w.active++
	}
	if f.current(c) && c.Claim.Failed != nil {
		f.failed++
	}
}

// counts says whether the plan is for a member.
func (f *Fleet) counts(c *Cluster) bool {
	return c.Selected && c.Labels[f.label] != v1.PlanDisabled
}

// current says whether a member has begun with the plan as it is now.
func (f *Fleet) current(c *Cluster) bool {
	return c.Claim != nil && c.Claim.Revision == f.plan.Revision
}

// held is why a member takes part in no plan.
func (f *Fleet) held(c *Cluster) string {
	if value, set := c.Labels[v1.LabelPlansHold]; set && value != "false" {
		return fmt.Sprintf("cluster %s is labelled %s", c.Name, v1.LabelPlansHold)
	}
	if c.Hold != "" {
		return fmt.Sprintf("cluster %s: %s", c.Name, c.Hold)
	}
	return ""
}

// takes says whether a member takes one of the places. One that failed does while nodes of it are at work that are not stuck; one that is lost
// does until a person says that the plan is not for it.
func (f *Fleet) takes(c *Cluster) bool {
	switch {
	case !f.counts(c) && f.lost(c):
		return false
	case !f.current(c):
		return f.lingers(c)
	case c.Claim.Failed != nil:
		return c.Status != nil && c.Status.Revision == f.plan.Revision && busy(c.Status)
	}
	return c.Claim.Complete == nil
}

// lingers says whether nodes of a member may still be at work for a revision that is no more.
func (f *Fleet) lingers(c *Cluster) bool {
	return c.Claim != nil && !f.current(c) && c.Claim.Complete == nil && !f.idle(c)
}

// idle says whether no node of a member is at work and none will begin. What is not known is not idle.
func (f *Fleet) idle(c *Cluster) bool {
	if c.Away != "" || c.Status == nil || c.Status.Revision != f.plan.Revision || busy(c.Status) {
		return false
	}
	reason := reasonOf(c.Status)
	return reason == v1.ReasonPaused || reason == v1.ReasonComplete || reason == v1.ReasonNoNodes || reason == v1.ReasonNodeFailed
}

// busy says whether nodes of a member are at work. Those that are stuck are listed as applying and counted as failed: nothing happens there.
func busy(s *v1.PlanStatus) bool {
	if s.Nodes == nil {
		return len(s.Applying) > 0
	}
	return s.Nodes.Applying > 0
}

// reasonOf is why a plan in a member is as it is.
func reasonOf(s *v1.PlanStatus) string {
	for i := range s.Conditions {
		if s.Conditions[i].Type == v1.ConditionComplete {
			return s.Conditions[i].Reason
		}
	}
	return ""
}

func (f *Fleet) maxFailed() int {
	if f.plan.Spec.Rollout == nil {
		return 0
	}
	return int(f.plan.Spec.Rollout.MaxFailedClusters)
}

func (f *Fleet) maxConcurrent() int {
	if f.plan.Spec.Rollout == nil {
		return 1
	}
	return max(int(f.plan.Spec.Rollout.MaxConcurrentClusters), 1)
}

// Deliver says what a member is given. It follows from its claim, so that a new leader need not ask.
func (f *Fleet) Deliver(c *Cluster) Delivery {
	switch {
	case c.Claim == nil:
		return DeliverNothing
	case !f.counts(c):
		return DeliverPaused
	case c.Unreported:
		return DeliverUnchanged
	case !f.current(c), f.plan.Spec.Paused, f.unlooked(c), f.ahead(c):
		return DeliverPaused
	case f.stopped && c.Claim.Complete == nil && c.Claim.Failed == nil:
		return DeliverPaused
	}
	return DeliverPlan
}
