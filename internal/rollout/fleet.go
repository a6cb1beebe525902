// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Rest is the name of the wave that contains the members that no other wave selects.
const Rest = "rest"

// FleetPlan is a Plan on the hub together with its hash and revision. It specifies the work in the members and the pace
// of the rollout.
type FleetPlan struct {
	Name string
	// Baseline is the name of the Baseline that rolls out instead of a Plan. Name is then empty, because the labels of
	// Plans do not apply to Baselines.
	Baseline string
	Pace     Pace
	// Hash and Revision are the results of the functions with these names, for the spec that members receive.
	Hash, Revision string
	// Resume is the Plan's annotation v1.AnnotationResume. A user sets it to the current revision to continue the plan
	// even though members are ahead.
	Resume string
	// ApprovalRevision is the result of the function of the same name. Approvals are the approvals in the spec.
	ApprovalRevision string
	Approvals        []v1.Approval
	// Omitted contains the counts of members that the caller omitted, by wave. These members affect a step only through
	// their counts.
	Omitted []OmittedMembers
}

// OmittedMembers counts the members of a wave that have completed the plan or have not started it.
type OmittedMembers struct {
	Omitted
	// Absent counts the members that are unavailable or held.
	Absent int
	// Last is the time at which the last of these members completed the plan.
	Last time.Time
}

// Add adds the counts of other members of the wave.
func (a *OmittedMembers) Add(o OmittedMembers) {
	a.Total, a.Complete, a.Absent = a.Total+o.Total, a.Complete+o.Complete, a.Absent+o.Absent
	a.Last = later(a.Last, o.Last)
}

// Cluster is the observed state of a member on the hub.
type Cluster struct {
	Name   string
	Labels map[string]string
	// Selected reports whether the plan selects the member.
	Selected bool
	// Claim is the Cluster's v1.PlanLabel(plan) annotation. It is nil if the plan has never started in the member.
	Claim *ClusterClaim
	// Away is the reason why nothing can be delivered to the member, for example AgentTooOld or AgentReadOnly. It is
	// also set if the member is disconnected. It is empty if the plan can be delivered.
	Away string
	// AwaySince is the latest time at which the member may have become unavailable. It is zero if this time is
	// unknown.
	AwaySince time.Time
	// Hold is the reason why the member's agent does not run plans. See protocol.PlanHold.
	Hold string
	// Status is the member's status from the latest report of its agent, for any revision. It is nil before the first
	// report.
	Status *Status
	// Unreported is true if the agent has not yet reported the state of the plan or that the member has no such plan.
	Unreported bool
	// Ask is true if the agent has to report that the member runs plans before the member can start.
	Ask bool
}

// ClusterClaim records that a member has started or completed a plan. It is stored as JSON in the Cluster's
// v1.PlanLabel(plan) annotation.
type ClusterClaim struct {
	// Revision is the revision of the plan with which the member started.
	Revision string `json:"revision"`
	// Since is the time when the member started.
	Since time.Time `json:"since"`
	// Complete is the time when all nodes of the member had completed the plan. It is nil until then.
	Complete *time.Time `json:"complete,omitempty"`
	// Failed is the time when a node of the member used up its attempts. It is nil if no node has.
	Failed *time.Time `json:"failed,omitempty"`
	// Refused is the time when the member's upgrade checks kept the plan from starting. It is nil if they have not. The
	// member then has no slot, and has not started.
	Refused *time.Time `json:"refused,omitempty"`
	// Ahead is set if the member was ahead of this hub. Revision is then empty.
	Ahead *Ahead `json:"ahead,omitempty"`
}

// ClusterStep is one write to a Cluster.
type ClusterStep struct {
	Verb    Verb
	Cluster string
	// Claim is the new claim. If it is nil, the claim is removed.
	Claim *ClusterClaim
	// Label is the new value of the label v1.PlanLabel(plan). If it is empty, the label is not changed.
	Label string
}

// FleetDecision is a step, or the reason to wait.
type FleetDecision struct {
	Step *ClusterStep
	Wait Wait
	// Ask lists the members that would start now but have to send a report first. Each of them already occupies a
	// slot, so that no more members are asked than may start.
	Ask []string
}

// Delivery is the form in which a plan is delivered to a member.
type Delivery string

const (
	// DeliverNothing means that the plan is removed from the member.
	DeliverNothing Delivery = "Nothing"
	// DeliverPaused means that the plan is delivered with the paused field set. Work that is in progress finishes.
	DeliverPaused Delivery = "Paused"
	// DeliverPlan means that the plan is delivered unchanged.
	DeliverPlan Delivery = "Plan"
	// DeliverUnchanged means that the member keeps the plan that it has, because its agent has not yet reported which plan
	// that is.
	DeliverUnchanged Delivery = "Unchanged"
)

// Fleet is a plan and its members at one point in time. Use NewFleet to create a Fleet.
type Fleet struct {
	plan     FleetPlan
	label    string // the label value on Clusters that have completed the plan
	now      time.Time
	clusters []Cluster
	waves    []wave
	of       []int // the wave of each cluster, or -1
	stopped  bool
	failed   int
	slots    int // slots that are taken
	opened   int // the last wave in which a member has started
	gate     int // the first wave that needs an approval and has none, or the number of waves
	until    time.Time
}

type wave struct {
	name                            string
	soak                            time.Duration
	total, complete, failed, active int
	absent                          int // members that are unavailable or held, and have not started
	refused                         int // members that refuse the current revision
	last                            time.Time
}

// NewFleet evaluates a plan and its members. The members must be sorted by name. NewFleet returns an error if a
// selector is invalid.
func NewFleet(clusters []Cluster, plan FleetPlan, now time.Time) (*Fleet, error) {
	f := &Fleet{plan: plan, label: v1.PlanLabel(plan.Name), now: now, clusters: clusters, of: make([]int, len(clusters)),
		opened: -1}
	selectors, err := f.readWaves()
	if err != nil {
		return nil, err
	}
	f.gate = f.closedGate()
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
		if f.current(c) && c.Claim.Refused == nil {
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
			name = "others" // the names of waves are the keys of a list in the status
		}
	}
	f.waves = append(f.waves, wave{name: name})
	return selectors, nil
}

func (f *Fleet) join(w *wave, c *Cluster) {
	w.total++
	switch {
	case f.current(c) && c.Claim.Refused != nil && f.busy(c):
		w.active++
	case f.refuses(c):
		w.refused++
	case f.startable(c):
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

// CountOf returns a member's wave and the counts for this member alone. i is the member's index in the slice that was
// passed to NewFleet. The wave is -1 if the plan does not select the member.
func (f *Fleet) CountOf(i int) (int, OmittedMembers) {
	if f.of[i] < 0 {
		return -1, OmittedMembers{}
	}
	var w wave
	(&Fleet{plan: f.plan}).join(&w, &f.clusters[i])
	return f.of[i], OmittedMembers{Omitted: Omitted{Total: w.total, Complete: w.complete}, Absent: w.absent, Last: w.last}
}

// counts reports whether the plan selects a member.
func (f *Fleet) counts(c *Cluster) bool {
	return c.Selected && c.Labels[f.label] != v1.PlanDisabled
}

// current reports whether a member has started with the current revision of the plan.
func (f *Fleet) current(c *Cluster) bool {
	return c.Claim != nil && c.Claim.Revision == f.plan.Revision
}

// held returns the reason why a member does not run plans, or "" if it does.
func (f *Fleet) held(c *Cluster) string {
	if value, set := c.Labels[v1.LabelPlansHold]; set && value != "false" {
		return fmt.Sprintf("cluster %s is labelled %s", c.Name, v1.LabelPlansHold)
	}
	if c.Hold != "" {
		return fmt.Sprintf("cluster %s: %s", c.Name, c.Hold)
	}
	return ""
}

// takes reports whether a member occupies a slot. A member that has failed or refused the plan occupies a slot only
// while work is in progress on any of its nodes and is not stuck, so that the member does not block the others. A lost
// member occupies a slot until a user changes its labels so that the plan no longer selects it.
func (f *Fleet) takes(c *Cluster) bool {
	switch {
	case !f.counts(c) && f.lost(c):
		return false
	case !f.current(c):
		return f.lingers(c)
	case c.Claim.Failed != nil, c.Claim.Refused != nil:
		return f.busy(c)
	}
	return c.Claim.Complete == nil
}

// lingers reports whether an earlier revision may still be in progress on nodes of a member.
func (f *Fleet) lingers(c *Cluster) bool {
	return c.Claim != nil && !f.current(c) && c.Claim.Complete == nil && !f.idle(c)
}

// idle reports whether it is certain that no work is in progress on any node of a member, and that none will start.
func (f *Fleet) idle(c *Cluster) bool {
	if c.Away != "" || c.Status == nil || c.Status.Revision != f.plan.Revision || c.Status.Busy {
		return false
	}
	reason := c.Status.Reason
	return reason == v1.ReasonPaused || reason == v1.ReasonComplete || reason == v1.ReasonNoNodes ||
		reason == v1.ReasonNodeFailed || reason == v1.ReasonUpgradeUnsafe
}

// Deliver returns the form in which the hub delivers the plan to a member. The result depends only on the hub's
// knowledge of the member, so a new leader does not have to query the member.
func (f *Fleet) Deliver(c *Cluster) Delivery {
	switch {
	case c.Claim == nil:
		return DeliverNothing
	case !f.counts(c):
		return DeliverPaused
	case c.Unreported:
		return DeliverUnchanged
	case !f.current(c), c.Claim.Refused != nil, f.plan.Pace.Paused, f.unlooked(c), f.ahead(c):
		return DeliverPaused
	case f.stopped && c.Claim.Complete == nil && c.Claim.Failed == nil:
		return DeliverPaused
	case c.Claim.Complete == nil && f.unapproved(c):
		return DeliverPaused
	}
	return DeliverPlan
}

// LostTime is how long a member that has started the plan must be disconnected to count as lost. Most members reconnect
// sooner, because usually only the network or the hub was down.
const LostTime = 5 * time.Minute

// AwaySince returns when a disconnected member was disconnected according to its Cluster's conditions. Until they
// contain that time, it returns the current time.
func AwaySince(conditions []metav1.Condition, now time.Time) time.Time {
	if c := meta.FindStatusCondition(conditions, v1.ConditionConnected); c != nil && c.Status == metav1.ConditionFalse {
		return c.LastTransitionTime.Time
	}
	return now
}

// lost reports whether a member has been away for at least LostTime.
func (f *Fleet) lost(c *Cluster) bool {
	return c.Away != "" && !c.AwaySince.IsZero() && !f.now.Before(c.AwaySince.Add(LostTime))
}

// working returns the reason to wait while the plan is in progress in members. It names the first lost member that
// keeps its slot. Nodes of a lost member may be in the middle of an upgrade, so only a user can decide to continue the
// plan without that member.
func (f *Fleet) working() Wait {
	var away *Cluster
	lost := 0
	for i := range f.clusters {
		c := &f.clusters[i]
		if c.Away == "" || !f.takes(c) {
			continue
		}
		switch {
		case f.lost(c):
			if lost++; lost == 1 {
				away = c
			}
		case !c.AwaySince.IsZero():
			f.until = Sooner(f.until, c.AwaySince.Add(LostTime))
		}
		if away == nil {
			away = c
		}
	}
	w := Wait{Reason: v1.ReasonApplying, Message: Clusters(f.slots) + " at work"}
	if away != nil {
		w.Message += fmt.Sprintf("; cluster %s keeps its slot although %s: reconnect it, label it %s=%s to continue without it, or delete it if it is gone for good",
			away.Name, away.Away, v1.PlanLabel(f.plan.Name), v1.PlanDisabled)
	}
	if lost > 0 {
		w.Reason = v1.ReasonMemberLost
	}
	if lost > 1 {
		w.Message += fmt.Sprintf("; %d more lost in the same way", lost-1)
	}
	return w
}
