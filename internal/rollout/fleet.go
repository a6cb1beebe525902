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

// FleetPlan is what the members of a fleet are given, and at which pace: a Plan of the hub with its hash and revision.
type FleetPlan struct {
	Name string
	Pace Pace
	// Hash and Revision of a Plan as the functions make them, of the spec that members are given.
	Hash, Revision string
	// Resume is the annotation v1.AnnotationResume of the Plan: the revision that continues although members are ahead,
	// since a user decided so.
	Resume string
	// Omitted counts, by wave, members that are not among those given. A step depends on these counts only.
	Omitted []OmittedMembers
}

// OmittedMembers counts members of a wave that are complete, or have not begun.
type OmittedMembers struct {
	Omitted
	// Absent are away or held.
	Absent int
	// Last is when the last of them was complete.
	Last time.Time
}

// Add adds other members of the wave.
func (a *OmittedMembers) Add(o OmittedMembers) {
	a.Total, a.Complete, a.Absent, a.Last = a.Total+o.Total, a.Complete+o.Complete, a.Absent+o.Absent, later(a.Last, o.Last)
}

// Cluster is what is observed of a member on the hub.
type Cluster struct {
	Name   string
	Labels map[string]string
	// Selected reports whether the plan is for it.
	Selected bool
	// Claim is the annotation v1.PlanLabel(plan) of the Cluster. Nil when the plan never began there.
	Claim *ClusterClaim
	// Away says why it cannot be given anything: not connected, AgentTooOld, AgentReadOnly. Empty when it can.
	Away string
	// AwaySince is the time since when it is away, at the latest; zero if that is not known.
	AwaySince time.Time
	// Hold is the reason for which its agent takes part in no plan, see protocol.PlanHold.
	Hold string
	// Status of the member as its agent last reported it, for any revision. Nil before its first report.
	Status *Status
	// Unreported reports whether its agent has yet to report the state of the plan there, or that there is none.
	Unreported bool
	// Ask reports whether its agent has to report that it takes part before it begins.
	Ask bool
}

// ClusterClaim is the part of a Cluster in a plan that is or was at work in its member. It is the annotation
// v1.PlanLabel(plan) of the Cluster, as JSON.
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

// FleetDecision is a step, or the reason to wait.
type FleetDecision struct {
	Step *ClusterStep
	Wait Wait
	// Ask has the members that would begin now, and have to report first. Each has a place meanwhile, so that no more are
	// asked than may begin.
	Ask []string
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
	// DeliverUnchanged leaves it what it has: its agent has not reported yet what that is.
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
	for i, omitted := range plan.Omitted {
		w := &f.waves[i]
		w.total, w.complete, w.absent, w.last = omitted.Total, omitted.Complete, omitted.Absent, omitted.Last
		if omitted.Complete > 0 {
			f.opened = i
		}
	}
	f.assign(selectors)
	for i := range clusters {
		c, at := &clusters[i], f.of[i]
		if f.takes(c) {
			f.slots++
		}
		if at < 0 {
			continue
		}
		f.join(&f.waves[at], c)
		if f.current(c) {
			f.opened = max(f.opened, at)
		}
	}
	f.stopped = f.failed > f.plan.Pace.MaxFailed
	return f, nil
}

func (f *Fleet) readWaves() ([]labels.Selector, error) {
	var selectors []labels.Selector
	for _, w := range f.plan.Pace.Waves {
		selector := labels.Everything()
		if w.Selector != nil {
			var err error
			if selector, err = metav1.LabelSelectorAsSelector(w.Selector); err != nil {
				return nil, fmt.Errorf("read selector of wave %s: %w", w.Name, err)
			}
		}
		selectors = append(selectors, selector)
		f.waves = append(f.waves, wave{name: w.Name, soak: w.Soak})
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

// CountOf returns the wave of a member, by its place among those given to NewFleet, and what it alone counts there. The
// wave is -1 for a member that the plan is not for.
func (f *Fleet) CountOf(i int) (int, OmittedMembers) {
	if f.of[i] < 0 {
		return -1, OmittedMembers{}
	}
	var w wave
	(&Fleet{plan: f.plan}).join(&w, &f.clusters[i])
	return f.of[i], OmittedMembers{Omitted: Omitted{Total: w.total, Complete: w.complete}, Absent: w.absent, Last: w.last}
}

// counts reports whether the plan is for a member.
func (f *Fleet) counts(c *Cluster) bool {
	return c.Selected && c.Labels[f.label] != v1.PlanDisabled
}

// current reports whether a member has begun with the plan as it is now.
func (f *Fleet) current(c *Cluster) bool {
	return c.Claim != nil && c.Claim.Revision == f.plan.Revision
}

// held returns why a member takes part in no plan, empty if it does.
func (f *Fleet) held(c *Cluster) string {
	if value, set := c.Labels[v1.LabelPlansHold]; set && value != "false" {
		return fmt.Sprintf("cluster %s is labelled %s", c.Name, v1.LabelPlansHold)
	}
	if c.Hold != "" {
		return fmt.Sprintf("cluster %s: %s", c.Name, c.Hold)
	}
	return ""
}

// takes reports whether a member occupies one of the places. A member that failed does while nodes of it are at work
// and not stuck. A member that is lost does until a user labels it so that the plan is not for it.
func (f *Fleet) takes(c *Cluster) bool {
	switch {
	case !f.counts(c) && f.lost(c):
		return false
	case !f.current(c):
		return f.lingers(c)
	case c.Claim.Failed != nil:
		return c.Status != nil && c.Status.Revision == f.plan.Revision && c.Status.Busy
	}
	return c.Claim.Complete == nil
}

// lingers reports whether nodes of a member may still be at work for an earlier revision.
func (f *Fleet) lingers(c *Cluster) bool {
	return c.Claim != nil && !f.current(c) && c.Claim.Complete == nil && !f.idle(c)
}

// idle reports whether it is known that no node of a member is at work and none will begin.
func (f *Fleet) idle(c *Cluster) bool {
	if c.Away != "" || c.Status == nil || c.Status.Revision != f.plan.Revision || c.Status.Busy {
		return false
	}
	reason := c.Status.Reason
	return reason == v1.ReasonPaused || reason == v1.ReasonComplete || reason == v1.ReasonNoNodes || reason == v1.ReasonNodeFailed
}

// Deliver returns what a member is given. It follows from the member's claim, so that a new leader need not ask.
func (f *Fleet) Deliver(c *Cluster) Delivery {
	switch {
	case c.Claim == nil:
		return DeliverNothing
	case !f.counts(c):
		return DeliverPaused
	case c.Unreported:
		return DeliverUnchanged
	case !f.current(c), f.plan.Pace.Paused, f.unlooked(c), f.ahead(c):
		return DeliverPaused
	case f.stopped && c.Claim.Complete == nil && c.Claim.Failed == nil:
		return DeliverPaused
	}
	return DeliverPlan
}
