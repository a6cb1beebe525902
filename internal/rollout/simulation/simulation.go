// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// maxSteps is the maximum number of steps of a simulation, which might otherwise never end. A real plan with this many
// steps would take days.
const maxSteps = 2_000_000

// Event is a step and the time at which it is performed.
type Event struct {
	At time.Time
	// Cluster is empty if the plan runs in a single cluster. Node is empty if the step affects a whole cluster.
	Cluster, Node string
	Verb          rollout.Verb
	// Note contains details.
	Note string
}

// Simulation is a run of a scenario. Use New to create a Simulation.
type Simulation struct {
	Now       time.Time
	Members   []*Member
	Clusters  []rollout.Cluster // in the order of Members
	source    v1.Plan
	version   string // the version of a plan that does not specify one
	plan      rollout.Plan
	fleet     *rollout.FleetPlan // nil for a plan that runs in a single cluster
	active    activeMembers      // the members for which steps are computed
	delivered []delivered        // one entry for each member
	settled   []settled          // one entry for each member
	// Observe is called after each step. It may be nil.
	Observe func(Event) error
}

// delivered records the plan that was last delivered to a member, and how many different plans have been delivered to
// it.
type delivered struct {
	delivery   rollout.Delivery
	revision   string
	generation int64
}

// settled records what a member is waiting for. It applies until another plan is delivered to the member or its state
// changes.
type settled struct {
	delivered delivered
	wait      rollout.Wait
	// nodes contains the number of complete nodes and the number of all nodes. The status contains the same numbers.
	nodes string
}

// New returns a simulation of a scenario.
func New(s Scenario) (*Simulation, error) {
	p := &Simulation{Now: s.Start.Time, source: s.Plan, version: s.Latest, delivered: make([]delivered, len(s.Clusters)),
		settled: make([]settled, len(s.Clusters))}
	slices.SortFunc(s.Clusters, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	for _, c := range s.Clusters {
		m, err := NewMember(c, s.Durations)
		if err != nil {
			return nil, err
		}
		selected, err := s.Plan.Spec.Target().Selects(c.Name, c.Labels)
		if err != nil {
			return nil, err
		}
		m.start = s.Start.Time
		p.Members = append(p.Members, m)
		p.Clusters = append(p.Clusters, rollout.Cluster{Name: c.Name, Labels: c.Labels, Selected: selected, Away: c.Away,
			Hold: c.Hold})
	}
	if p.source.Spec.Version == "" && p.version == "" {
		return nil, fmt.Errorf("set up plan %s: set its version, or its channel and the scenario's latest version",
			s.Plan.Name)
	}
	if len(p.Members) == 0 {
		return nil, fmt.Errorf("set up plan %s: name at least one cluster", s.Plan.Name)
	}
	return p, p.prepare()
}

func (p *Simulation) prepare() error {
	plan, version := &p.source, cmp.Or(p.source.Spec.Version, p.version)
	spec := rollout.ForMember(plan.Name, &plan.Spec, version)
	hash, err := rollout.Hash(&spec.NodeWork, rollout.Version(version), nil)
	if err != nil {
		return err
	}
	p.plan = rollout.Plan{Name: plan.Name, UID: "simulation", Generation: p.plan.Generation + 1, Spec: *spec,
		Version: rollout.Version(version), Hash: hash}
	if p.plan.Revision, err = rollout.Revision(hash, &spec.PlanPace); err != nil {
		return err
	}
	if plan.Spec.ClusterName == "" && plan.Spec.ClusterSelector == nil {
		return nil
	}
	revision := p.plan.Revision
	p.fleet = &rollout.FleetPlan{Name: plan.Name, Pace: rollout.PaceOf(&plan.Spec), Hash: hash, Revision: revision,
		Approvals: plan.Spec.Approvals}
	p.fleet.ApprovalRevision, err = rollout.ApprovalRevision(plan.UID, revision, &plan.Spec)
	return err
}

// Run runs the plan to the end, and returns the final reason to wait.
func (p *Simulation) Run() (rollout.Wait, error) { return p.RunUntil(time.Time{}) }

// RunUntil runs the plan until the given time. If the time is zero, it runs the plan to the end.
func (p *Simulation) RunUntil(end time.Time) (rollout.Wait, error) {
	if err := p.selectActive(); err != nil {
		return rollout.Wait{}, err
	}
	for range maxSteps {
		wait, err := p.settle()
		if err != nil {
			return wait, err
		}
		next := wait.Until
		for _, i := range p.active.members {
			next = rollout.Sooner(next, p.Members[i].Due())
		}
		over := !p.inactiveAbsent() && (wait.Reason == v1.ReasonComplete || wait.Reason == v1.ReasonNoNodes || wait.Reason == v1.ReasonNoClusters)
		over = over || next.IsZero() || !next.After(p.Now)
		switch {
		case end.IsZero() && over:
			return p.conclude()
		case !end.IsZero() && (over || next.After(end)):
			if wait, err = p.conclude(); err == nil {
				p.advance(end)
			}
			return wait, err
		}
		p.advance(next)
	}
	return rollout.Wait{}, fmt.Errorf("simulate plan %s: it does not end within %d steps", p.plan.Name, maxSteps)
}

// conclude returns the final reason to wait. It activates all members first, because the reason counts and names them.
func (p *Simulation) conclude() (rollout.Wait, error) {
	p.activateAll()
	return p.settle()
}

func (p *Simulation) advance(to time.Time) {
	p.Now = to
	for _, i := range p.active.members {
		p.Members[i].Advance(to)
	}
}

// settle performs all steps that are possible now. It returns the reason why no more steps are possible now, and the
// time when more steps may be possible.
func (p *Simulation) settle() (rollout.Wait, error) {
	if p.fleet == nil {
		wait, err := p.settleMember(0, p.plan)
		if err == nil {
			_, err = p.Members[0].Status(&p.plan, wait, "", p.Now)
		}
		return wait, err
	}
	for range maxSteps {
		var until time.Time
		f, err := rollout.NewFleet(p.activeClusters(), *p.fleet, p.Now)
		if err != nil {
			return rollout.Wait{}, err
		}
		for _, i := range p.active.members {
			wait, err := p.deliver(f, i)
			if err != nil {
				return wait, err
			}
			until = rollout.Sooner(until, wait.Until)
		}
		d := rollout.NextMember(p.activeClusters(), *p.fleet, p.Now)
		if d.Step == nil {
			d.Wait.Until = rollout.Sooner(d.Wait.Until, until)
			p.deactivateComplete(f)
			return d.Wait, nil
		}
		if err := p.apply(d.Step); err != nil {
			return rollout.Wait{}, err
		}
	}
	return rollout.Wait{}, fmt.Errorf("simulate plan %s: its steps do not end", p.plan.Name)
}

// deliver delivers a plan to a member.
func (p *Simulation) deliver(f *rollout.Fleet, i int) (rollout.Wait, error) {
	last, is := &p.delivered[i], delivered{delivery: f.Deliver(&p.Clusters[i]), revision: p.fleet.Revision}
	switch {
	case p.Clusters[i].Away != "":
		return rollout.Wait{}, nil
	case is.delivery == rollout.DeliverNothing && last.generation > 0:
		*last, p.settled[i], p.Clusters[i].Status = delivered{}, settled{}, nil
		return rollout.Wait{}, p.Members[i].Remove(&p.plan, p.Now)
	case is.delivery == rollout.DeliverNothing:
		return rollout.Wait{}, nil
	}
	if is.generation = last.generation; is != *last {
		is.generation++
	}
	*last = is
	if r := &p.settled[i]; r.delivered == is && !p.Members[i].changed &&
		(r.wait.Until.IsZero() || p.Now.Before(r.wait.Until)) {
		return r.wait, nil
	}
	plan := p.plan
	plan.Spec.Paused, plan.Generation = is.delivery == rollout.DeliverPaused, is.generation
	wait, err := p.settleMember(i, plan)
	if err != nil {
		return wait, err
	}
	p.settled[i] = settled{delivered: is, wait: wait}
	status, err := p.Members[i].Status(&plan, wait, p.fleet.Revision, p.Now)
	p.Clusters[i].Status, p.settled[i].nodes = rollout.StatusOf(status), ""
	if status != nil && status.Nodes != nil {
		p.settled[i].nodes = status.Nodes.Summary
	}
	return wait, err
}

func (p *Simulation) apply(s *rollout.ClusterStep) error {
	i, found := slices.BinarySearchFunc(p.Clusters, s.Cluster,
		func(c rollout.Cluster, name string) int { return strings.Compare(c.Name, name) })
	if !found {
		return fmt.Errorf("%s cluster %s: it does not exist", s.Verb, s.Cluster)
	}
	c := &p.Clusters[i]
	c.Claim = s.Claim
	if s.Verb == rollout.VerbBegin {
		p.activateNext()
	}
	note := ""
	if nodes := p.settled[i].nodes; s.Verb == rollout.VerbComplete && nodes != "" {
		note = nodes + " nodes"
	}
	return p.observe(Event{At: p.Now, Cluster: c.Name, Verb: s.Verb, Note: note})
}

// settleMember performs all steps in a member that are possible now.
func (p *Simulation) settleMember(i int, plan rollout.Plan) (rollout.Wait, error) {
	m := p.Members[i]
	take := func(s *rollout.Step) error {
		if err := m.Apply(s, &plan, p.Now); err != nil {
			return err
		}
		m.active.member.Jobs = m.Jobs
		line := Event{At: p.Now, Node: s.Node, Verb: s.Verb, Note: note(s)}
		if p.fleet != nil {
			line.Cluster = p.Clusters[i].Name
		}
		return p.observe(line)
	}
	if err := m.deactivateComplete(&plan, p.Now); err != nil {
		return rollout.Wait{}, err
	}
	for {
		m.changed, m.checks.Hub = false, p.fleet != nil
		plan.Guard(m.checks, p.Now)
		wait, err := rollout.Settle(m.activeView(), plan, p.Now, take)
		switch {
		case err != nil:
			return wait, err
		case m.changed: // Observe restarted the agent
			continue
		case wait.Unchecked:
			checked, next := m.check(plan.Revision, p.Now)
			if checked {
				continue
			}
			wait.Until = rollout.Sooner(wait.Until, next)
		}
		if more, err := m.activateMore(&plan, p.Now); err != nil || !more {
			return wait, err
		}
	}
}

func (p *Simulation) observe(l Event) error {
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
