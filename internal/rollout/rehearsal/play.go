// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rehearsal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// maxSteps ends a play that would never end; real plans of this size take days.
const maxSteps = 2_000_000

// Line is one thing that happens.
type Line struct {
	At time.Time
	// Cluster is empty for a plan of one cluster, Node for a step of a whole cluster.
	Cluster, Node string
	Verb          rollout.Verb
	// Note says more.
	Note string
}

// Play is a play that runs. New sets it up.
type Play struct {
	Now      time.Time
	Members  []*Member
	Clusters []rollout.Cluster // in the order of Members
	source   v1.Plan
	version  string // for a plan without one
	plan     rollout.Plan
	fleet    *rollout.FleetPlan // nil for a plan of one cluster
	given    []gift             // to each of Members
	rests    []rest             // of each of Members
	// Observe, where set, is called after each line.
	Observe func(Line) error
}

// gift is what a member was given last, and how often that was another plan than before.
type gift struct {
	what       rollout.Delivery
	revision   string
	generation int64
}

// rest is what a member waits for, until it is given something else or something happens there.
type rest struct {
	gift gift
	why  rollout.Wait
}

// New sets a play up.
func New(s Script) (*Play, error) {
	p := &Play{Now: s.Start.Time, source: s.Plan, version: s.Latest, given: make([]gift, len(s.Clusters)), rests: make([]rest, len(s.Clusters))}
	slices.SortFunc(s.Clusters, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range s.Clusters {
		m, err := NewMember(c, s.Durations)
		if err != nil {
			return nil, err
		}
		selected, err := selects(&s.Plan.Spec.PlanTarget, c)
		if err != nil {
			return nil, err
		}
		p.Members = append(p.Members, m)
		p.Clusters = append(p.Clusters, rollout.Cluster{Name: c.Name, Labels: c.Labels, Selected: selected, Away: c.Away, Hold: c.Hold})
	}
	if p.source.Spec.Version == "" && p.version == "" {
		return nil, fmt.Errorf("set up plan %s: set its version, or its channel, to which latest is the answer in a script", s.Plan.Name)
	}
	if len(p.Members) == 0 {
		return nil, fmt.Errorf("set up plan %s: name at least one cluster", s.Plan.Name)
	}
	return p, p.prepare()
}

// Edit changes the plan, as a person does.
func (p *Play) Edit(change func(*v1.PlanSpec)) error {
	change(&p.source.Spec)
	return p.prepare()
}

func (p *Play) prepare() error {
	plan, version := &p.source, cmp.Or(p.source.Spec.Version, p.version)
	spec := rollout.ForMember(plan.Name, &plan.Spec, version)
	hash, err := rollout.Hash(&spec.NodeWork, rollout.Version(version), nil)
	if err != nil {
		return err
	}
	p.plan = rollout.Plan{Name: plan.Name, UID: "rehearsal", Generation: p.plan.Generation + 1, Spec: *spec, Version: rollout.Version(version), Hash: hash}
	if plan.Spec.ClusterName == "" && plan.Spec.ClusterSelector == nil {
		return nil
	}
	revision, err := rollout.Revision(hash, &spec.PlanPace)
	p.fleet = &rollout.FleetPlan{Name: plan.Name, Spec: plan.Spec, Hash: hash, Revision: revision}
	return err
}

func selects(t *v1.PlanTarget, c Cluster) (bool, error) {
	if t.ClusterSelector == nil {
		return t.ClusterName == c.Name, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(t.ClusterSelector)
	if err != nil {
		return false, fmt.Errorf("read clusterSelector: %w", err)
	}
	return selector.Matches(labels.Set(c.Labels)), nil
}

// Run plays to the end, and says what it then waits for: nothing that happens by itself.
func (p *Play) Run() (rollout.Wait, error) { return p.RunUntil(time.Time{}) }

// RunUntil plays until a time, or to the end if that is zero.
func (p *Play) RunUntil(end time.Time) (rollout.Wait, error) {
	for range maxSteps {
		why, err := p.settle()
		if err != nil {
			return why, err
		}
		next := why.Until
		for _, m := range p.Members {
			next = sooner(next, m.Due())
		}
		over := why.Reason == v1.ReasonComplete || why.Reason == v1.ReasonNoNodes || why.Reason == v1.ReasonNoClusters
		over = over || next.IsZero() || !next.After(p.Now)
		switch {
		case end.IsZero() && over:
			return why, nil
		case !end.IsZero() && (over || next.After(end)):
			p.advance(end)
			return why, nil
		}
		p.advance(next)
	}
	return rollout.Wait{}, fmt.Errorf("play plan %s: it does not end within %d steps", p.plan.Name, maxSteps)
}

// advance lets time pass.
func (p *Play) advance(to time.Time) {
	p.Now = to
	for _, m := range p.Members {
		m.Advance(to)
	}
}

// settle takes all steps that can be taken now, and returns why there is no further one, and when there may be.
func (p *Play) settle() (rollout.Wait, error) {
	if p.fleet == nil {
		return p.member(0, p.plan)
	}
	for range maxSteps {
		var until time.Time
		f, err := rollout.NewFleet(p.Clusters, *p.fleet, p.Now)
		if err != nil {
			return rollout.Wait{}, err
		}
		for i := range p.Clusters {
			why, err := p.deliver(f, i)
			if err != nil {
				return why, err
			}
			until = sooner(until, why.Until)
		}
		d := rollout.NextMember(p.Clusters, *p.fleet, p.Now)
		if d.Step == nil {
			d.Wait.Until = sooner(d.Wait.Until, until)
			return d.Wait, nil
		}
		if err := p.apply(d.Step); err != nil {
			return rollout.Wait{}, err
		}
	}
	return rollout.Wait{}, fmt.Errorf("play plan %s: it does not come to rest", p.plan.Name)
}

// deliver lets a member work with what it is given.
func (p *Play) deliver(f *rollout.Fleet, i int) (rollout.Wait, error) {
	given, is := &p.given[i], gift{what: f.Deliver(&p.Clusters[i]), revision: p.fleet.Revision}
	switch {
	case p.Clusters[i].Away != "":
		return rollout.Wait{}, nil
	case is.what == rollout.DeliverNothing && given.generation > 0:
		*given, p.rests[i], p.Clusters[i].Status = gift{}, rest{}, nil
		return rollout.Wait{}, p.Members[i].Remove(&p.plan, p.Now)
	case is.what == rollout.DeliverNothing:
		return rollout.Wait{}, nil
	}
	if is.generation = given.generation; is != *given {
		is.generation++
	}
	*given = is
	if r := &p.rests[i]; r.gift == is && !p.Members[i].changed && (r.why.Until.IsZero() || p.Now.Before(r.why.Until)) {
		return r.why, nil
	}
	plan := p.plan
	plan.Spec.Paused, plan.Generation = is.what == rollout.DeliverPaused, is.generation
	why, err := p.member(i, plan)
	if err != nil {
		return why, err
	}
	p.rests[i] = rest{gift: is, why: why}
	p.Clusters[i].Status, err = p.Members[i].Status(&plan, why, p.fleet.Revision, p.Now)
	return why, err
}

func (p *Play) apply(s *rollout.ClusterStep) error {
	for i := range p.Clusters {
		c := &p.Clusters[i]
		if c.Name != s.Cluster {
			continue
		}
		c.Claim = s.Claim
		note := ""
		if s.Verb == rollout.VerbComplete && c.Status != nil && c.Status.Nodes != nil {
			note = c.Status.Nodes.Summary + " nodes"
		}
		return p.say(Line{At: p.Now, Cluster: c.Name, Verb: s.Verb, Note: note})
	}
	return fmt.Errorf("%s cluster %s: it does not exist", s.Verb, s.Cluster)
}

// member takes all steps in a member that can be taken now.
func (p *Play) member(i int, plan rollout.Plan) (rollout.Wait, error) {
	m := p.Members[i]
	take := func(s *rollout.Step) error {
		if err := m.Apply(s, &plan, p.Now); err != nil {
			return err
		}
		m.active.member.Jobs = m.Jobs
		line := Line{At: p.Now, Node: s.Node, Verb: s.Verb, Note: note(s)}
		if p.fleet != nil {
			line.Cluster = p.Clusters[i].Name
		}
		return p.say(line)
	}
	if err := m.narrow(&plan, p.Now); err != nil {
		return rollout.Wait{}, err
	}
	for {
		m.changed = false
		why, err := rollout.Settle(m.seen(), plan, p.Now, take)
		switch {
		case err != nil:
			return why, err
		case m.changed: // who observes the steps had it crash
			continue
		}
		if more, err := m.widen(&plan, p.Now); err != nil || !more {
			return why, err
		}
	}
}

func (p *Play) say(l Line) error {
	if p.Observe == nil {
		return nil
	}
	return p.Observe(l)
}

func note(s *rollout.Step) string {
	switch {
	case s.Claim != nil && s.Claim.Failure != nil && s.Claim.Failure.Final:
		return s.Claim.Failure.Reason + ", no attempt left"
	case s.Claim != nil && s.Claim.Failure != nil:
		return s.Claim.Failure.Reason
	case s.Claim != nil && s.Claim.Spent > 0:
		return fmt.Sprintf("attempt %d", s.Claim.Spent+1)
	case s.Unschedulable != nil && !*s.Unschedulable:
		return "uncordoned"
	}
	return ""
}
