// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// Member is a simulated member. It contains the objects in the member's API server, and pending events that are not
// steps of the plan, such as the end of a Job.
type Member struct {
	rollout.Member
	scenario Cluster
	base     Durations
	jobs     map[string]time.Time // the time when each Job ends, by name
	drains   map[string]time.Time // the time when each drain ends, by node
	active   *activeNodes
	start    time.Time // the start of the scenario
	checks   rollout.Checks
	// changed is set when an event other than a step changes the state.
	changed bool
}

// NewMember returns a simulated member.
func NewMember(c Cluster, base Durations) (*Member, error) {
	window, err := rollout.ParseWindow(c.Window)
	if err != nil {
		return nil, fmt.Errorf("set up cluster %s: %w", c.Name, err)
	}
	// Clone the nodes, because the simulation uses up their failures.
	c.Nodes = slices.SortedFunc(slices.Values(c.Nodes), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	m := &Member{scenario: c, base: base, jobs: map[string]time.Time{}, drains: map[string]time.Time{}}
	m.Hold, m.Window, m.Drains = c.Hold, window, map[string]rollout.Drain{}
	m.checks = rollout.Checks{Policy: v1.UpgradeChecksDisabled, Last: &v1.PlanStatus{}}
	if len(c.Unsafe) > 0 {
		m.checks.Policy = v1.UpgradeChecksEnforce
	}
	for _, n := range c.Nodes {
		labels := maps.Clone(n.Labels)
		if labels == nil {
			labels = map[string]string{}
		}
		m.Nodes = append(m.Nodes, rollout.Node{
			Name: n.Name, Hostname: n.Name, Labels: labels, Unschedulable: n.Unschedulable, Ready: !n.NotReady, Claims: map[string]rollout.Claim{},
		})
	}
	return m, nil
}

// Apply applies a step of a plan to the member. It returns an error if an API server would reject the step.
func (m *Member) Apply(s *rollout.Step, plan *rollout.Plan, now time.Time) error {
	at, found := slices.BinarySearchFunc(m.Nodes, s.Node,
		func(n rollout.Node, name string) int { return strings.Compare(n.Name, name) })
	if !found && s.Act != rollout.DeleteJob {
		return fmt.Errorf("%s node %s: it does not exist", s.Verb, s.Node)
	}
	switch s.Act {
	case rollout.WriteNode:
		m.write(&m.Nodes[at], s, plan.Name)
	case rollout.CreateJob:
		return m.create(s, plan, now)
	case rollout.DeleteJob:
		delete(m.jobs, s.Job.Name)
		m.Jobs = slices.DeleteFunc(m.Jobs, func(j rollout.Job) bool { return j.Name == s.Job.Name })
	case rollout.StartDrain:
		m.Drains[s.Node] = rollout.Drain{Hash: s.Claim.Hash, Attempt: s.Claim.Attempt}
		scenario := m.node(s.Node)
		m.drains[s.Node] = now.Add(firstSet(scenario.Durations.Drain, m.base.Drain, 30*time.Second))
	}
	return nil
}

// Remove simulates the removal of a plan by the agent: it deletes the plan's Jobs and releases its nodes.
func (m *Member) Remove(plan *rollout.Plan, now time.Time) error {
	m.active, m.changed = nil, true
	m.checks.Revision, m.checks.Last = "", &v1.PlanStatus{}
	m.Jobs = slices.DeleteFunc(m.Jobs, func(j rollout.Job) bool {
		if j.Plan == plan.Name {
			delete(m.jobs, j.Name)
		}
		return j.Plan == plan.Name
	})
	for _, step := range rollout.Orphans(m.Nodes, nil) {
		if err := m.Apply(&step, plan, now); err != nil {
			return err
		}
	}
	return nil
}

func (m *Member) write(n *rollout.Node, s *rollout.Step, plan string) {
	maps.Copy(n.Labels, s.Labels)
	if s.Unschedulable != nil {
		n.Unschedulable = *s.Unschedulable
	}
	if s.Claim == nil {
		delete(n.Claims, plan)
		delete(m.Drains, n.Name) // the agent cancels the drains of nodes that have no claim
		delete(m.drains, n.Name)
		return
	}
	n.Claims[plan] = *s.Claim
}

func (m *Member) create(s *rollout.Step, plan *rollout.Plan, now time.Time) error {
	job := s.Job
	prefix, scenario := "apply", m.node(s.Node)
	duration := firstSet(scenario.Durations.Upgrade, m.base.Upgrade, time.Minute)
	if job.Kind == rollout.Prepare {
		prefix, duration = "prepare", firstSet(scenario.Durations.Prepare, m.base.Prepare, 10*time.Second)
	}
	job.Name, job.State = fmt.Sprintf("%s-%s-on-%s-with-%s", prefix, job.Plan, job.Node, job.Hash), rollout.Running
	if slices.ContainsFunc(m.Jobs, func(j rollout.Job) bool { return j.Name == job.Name }) {
		return fmt.Errorf("%s node %s: Job %s exists", s.Verb, s.Node, job.Name)
	}
	deadline := plan.Spec.JobActiveDeadlineSecs
	if scenario.Hangs && job.Kind == rollout.Upgrade && deadline != nil && *deadline > 0 {
		duration = time.Duration(*deadline) * time.Second
	}
	m.Jobs = append(m.Jobs, job)
	m.jobs[job.Name] = now.Add(duration)
	return nil
}

// Advance ends the Jobs and drains that are due.
func (m *Member) Advance(now time.Time) {
	for i := range m.Jobs {
		j := &m.Jobs[i]
		end, runs := m.jobs[j.Name]
		if j.State != rollout.Running || !runs || now.Before(end) {
			continue
		}
		delete(m.jobs, j.Name)
		m.changed = true
		j.State, j.Finished = rollout.Succeeded, end
		if scenario := m.node(j.Node); j.Kind == rollout.Upgrade && scenario.Fails > 0 {
			scenario.Fails--
			j.State, j.Message = rollout.Failed, "the scenario lets it fail"
			if scenario.Hangs {
				j.Reason = v1.ReasonDeadlineExceeded
			}
		}
	}
	for node, end := range m.drains {
		if d := m.Drains[node]; !now.Before(end) {
			d.Done, m.changed = true, true
			m.Drains[node] = d
			delete(m.drains, node)
		}
	}
}

// Due returns the time when the next Job or drain ends. It returns the zero time if no Job and no drain is running.
func (m *Member) Due() time.Time {
	var due time.Time
	for _, all := range []map[string]time.Time{m.jobs, m.drains} {
		for _, end := range all {
			due = rollout.Sooner(due, end)
		}
	}
	return due
}

// Status returns the status that an agent would report for a plan.
func (m *Member) Status(plan *rollout.Plan, wait rollout.Wait, revision string, now time.Time) (*v1.PlanStatus, error) {
	progress, err := rollout.ProgressOf(*m.activeView(), *plan, now)
	if err != nil {
		return nil, err
	}
	gates := m.checks.Last.Gates
	if progress.Begun {
		gates = &v1.GateStatus{Started: plan.Revision}
	} else if gates != nil && gates.Started != plan.Revision {
		gates = nil
	}
	m.checks.Last = &v1.PlanStatus{Gates: gates,
		ObservedGeneration: plan.Generation, Revision: revision, LatestHash: plan.Hash, LatestVersion: plan.Version,
		Nodes:    &progress.Nodes,
		Applying: progress.Applying, Failures: progress.Failures,
		Conditions: []metav1.Condition{{Type: v1.ConditionComplete, Reason: wait.Reason, Message: wait.Message}},
	}
	return m.checks.Last, nil
}

// Unsafe reports whether the member cannot be upgraded safely, and returns the time when this changes, or the zero
// time if it does not change.
func (m *Member) Unsafe(now time.Time) (unsafe bool, until time.Time) {
	for _, p := range m.scenario.Unsafe {
		from, end := m.start.Add(p.From.Duration), m.start.Add(p.Until.Duration)
		switch {
		case now.Before(from):
			until = rollout.Sooner(until, from)
		case now.Before(end):
			unsafe, until = true, rollout.Sooner(until, end)
		}
	}
	return unsafe, until
}

// check checks the member for a plan if it is due, and reports whether it did. It also returns the time of the next
// check, or the zero time if the outcome does not change anymore.
func (m *Member) check(revision string, now time.Time) (checked bool, next time.Time) {
	if now.Before(m.checks.Due(revision)) {
		if _, until := m.Unsafe(now); until.IsZero() {
			return false, time.Time{}
		}
		return false, m.checks.Due(revision)
	}
	m.checks.Revision, m.checks.At, m.checks.Refusal = revision, now, ""
	if unsafe, _ := m.Unsafe(now); unsafe {
		m.checks.Refusal = "the scenario makes it unsafe"
	}
	return true, time.Time{}
}

// node returns the scenario of a node. The node must exist. The node of a step always exists.
func (m *Member) node(name string) *Node {
	at, _ := slices.BinarySearchFunc(m.scenario.Nodes, name,
		func(n Node, name string) int { return strings.Compare(n.Name, name) })
	return &m.scenario.Nodes[at]
}
