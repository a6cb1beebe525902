// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
)

// keepJobs is how long finished Jobs are kept for users to inspect them.
const keepJobs = 15 * time.Minute

// Next returns the next step of a plan in a member, or the reason to wait.
func Next(m Member, p Plan, now time.Time) Decision {
	var next *Step
	wait, _ := Settle(&m, p, now, func(s *Step) error {
		next = s
		return errOneStep
	})
	return Decision{Step: next, Wait: wait}
}

// errOneStep stops Settle after the first step.
var errOneStep = errors.New("one step is enough")

// Settle performs the steps of a plan in a member one by one, in the order of Next, until no step is left. It returns
// the reason to wait. It examines the member only once rather than before each step. For this reason, take must also
// apply the step to m, and must not reorder m.Nodes.
func Settle(m *Member, p Plan, now time.Time, take func(*Step) error) (Wait, error) {
	v, err := look(m, p, now)
	if err != nil {
		return Wait{Reason: v1.ReasonInvalidPlan, Message: err.Error() + ": change the plan"}, nil
	}
	v.take = take
	for i := range m.Nodes {
		if err := v.finish(&m.Nodes[i]); err != nil {
			return Wait{}, err
		}
	}
	for _, step := range v.clean() {
		if err := v.do(step); err != nil {
			return Wait{}, err
		}
	}
	for {
		n, wait := v.begin()
		if n == nil {
			return wait, nil
		}
		if err := v.do(write(VerbBegin, n, Claim{}, v.fresh(n, Claim{}))); err != nil {
			return Wait{}, err
		}
		if err := v.finish(n); err != nil {
			return Wait{}, err
		}
	}
}

// finish performs the steps of a node until the node has to wait.
func (v *view) finish(n *Node) error {
	for step := v.work(n); step != nil; step = v.work(n) {
		if err := v.do(step); err != nil {
			return err
		}
	}
	return nil
}

// do performs a step and updates the view accordingly.
func (v *view) do(s *Step) error {
	if err := v.take(s); err != nil {
		return err
	}
	switch s.Act {
	case DeleteJob:
		v.jobs[s.Node] = slices.DeleteFunc(v.jobs[s.Node], func(j Job) bool { return j.Name == s.Job.Name })
	case CreateJob:
		v.jobs[s.Node] = nil
		v.index(func(j *Job) bool { return j.Node == s.Node })
	case WriteNode, StartDrain:
	}
	return nil
}

// index adds Jobs of the plan to the view: all Jobs for which the given function returns true.
func (v *view) index(those func(*Job) bool) {
	for i := range v.Jobs {
		if j := &v.Jobs[i]; j.Plan == v.plan.Name && those(j) {
			v.jobs[j.Node] = append(v.jobs[j.Node], *j)
		}
	}
}

// Orphans returns the steps that release the nodes of plans that no longer exist. The plans argument maps the names of
// existing plans to their UIDs.
func Orphans(nodes []Node, plans map[string]string) []Step {
	var steps []Step
	for i := range nodes {
		for plan, c := range nodes[i].Claims {
			if uid, there := plans[plan]; !there || uid != c.UID {
				s := write(VerbRelease, &nodes[i], c, nil)
				s.Job.Plan = plan
				steps = append(steps, *s)
			}
		}
	}
	return steps
}

// view is the state from which steps are computed.
type view struct {
	*Member
	take        func(*Step) error
	plan        Plan
	label       string // the label value on nodes that have completed the plan
	now         time.Time
	wants       labels.Selector
	window      *Window
	tolerations []corev1.Toleration // tolerations of the plan's pods
	jobs        map[string][]Job    // Jobs of this plan, by node
	until       time.Time           // deadline for the next decision
	begun       bool                // whether any node was in progress with the current hash
}

func look(m *Member, p Plan, now time.Time) (*view, error) {
	wants := labels.Everything()
	if p.Spec.NodeSelector != nil {
		var err error
		if wants, err = metav1.LabelSelectorAsSelector(p.Spec.NodeSelector); err != nil {
			return nil, fmt.Errorf("read nodeSelector: %w", err)
		}
	}
	window, err := NewWindow(p.Spec.Window)
	if err != nil {
		return nil, err
	}
	v := &view{
		Member: m, plan: p, label: v1.PlanLabel(p.Name), now: now, wants: wants, window: window,
		tolerations: Tolerations(&p.Spec.NodeWork), jobs: map[string][]Job{},
	}
	v.index(func(*Job) bool { return true })
	v.begun = v.claimed()
	return v, nil
}

// wanted reports whether the plan selects a node and the node can run the plan's pods.
func (v *view) wanted(n *Node) bool { return n.runsPods() && v.selected(n) }

func (v *view) selected(n *Node) bool {
	return n.Hostname != "" && n.Labels[v.label] != v1.PlanDisabled && v.wants.Matches(labels.Set(n.Labels))
}

func (v *view) claim(n *Node) (Claim, bool) {
	c, ok := n.Claims[v.plan.Name]
	return c, ok && c.UID == v.plan.UID
}

// of reports whether a Job belongs to the current attempt of a claim.
func (j *Job) of(c Claim) bool { return j.UID == c.UID && j.Hash == c.Hash && j.Attempt == c.Attempt }

func (v *view) job(n *Node, c Claim, kind JobKind) *Job {
	for i := range v.jobs[n.Name] {
		if j := &v.jobs[n.Name][i]; j.Kind == kind && j.of(c) {
			return j
		}
	}
	return nil
}

// by sets the deadline for the next decision to t, unless an earlier deadline is already set.
func (v *view) by(t time.Time) { v.until = Sooner(v.until, t) }

// gate returns the reason why no node and no attempt may start. It returns nil if they may start.
func (v *view) gate() *Wait {
	if v.plan.Spec.Paused && (!v.plan.probed || v.refusal() == nil) {
		return &Wait{Reason: v1.ReasonPaused, Message: "the plan is paused: set spec.paused to false to continue"}
	}
	if _, err := PostCompleteLabels(&v.plan.Spec.NodeWork, v.plan.Version, v.plan.Hash); err != nil {
		return &Wait{Reason: v1.ReasonInvalidPlan, Message: err.Error() + ": change the plan"}
	}
	if v.Hold != "" {
		return &Wait{Reason: v1.ReasonHeld, Message: v.Hold}
	}
	if open, until := v.window.Open(v.now); !open {
		v.by(until)
		return &Wait{Reason: v1.ReasonAwaitingWindow, Message: opens("the window", until)}
	}
	if open, until := v.Window.Open(v.now); !open {
		v.by(until)
		return &Wait{Reason: v1.ReasonHeld, Message: opens("the member's own window", until)}
	}
	return nil
}

func opens(what string, at time.Time) string {
	if at.IsZero() {
		return what + " is never open"
	}
	return fmt.Sprintf("%s opens at %s", what, at.UTC().Format(time.RFC3339))
}

// clean deletes Jobs that no node needs. It deletes unfinished Jobs immediately, and finished Jobs after keepJobs.
func (v *view) clean() []*Step {
	if len(v.Jobs) == 0 {
		return nil
	}
	needed := map[string]Claim{}
	for i := range v.Nodes {
		if c, ok := v.claim(&v.Nodes[i]); ok {
			needed[v.Nodes[i].Name] = c
		}
	}
	var steps []*Step
	for _, j := range v.Jobs {
		if c, ok := needed[j.Node]; j.Plan != v.plan.Name || ok && j.of(c) {
			continue
		}
		if step := v.discard(j); step != nil {
			steps = append(steps, step)
		}
	}
	return steps
}

func (v *view) discard(j Job) *Step {
	switch end := j.Finished.Add(keepJobs); {
	case j.Deleting:
		return nil
	case j.State == Running || j.UID != v.plan.UID || !v.now.Before(end):
		return &Step{Act: DeleteJob, Verb: VerbClean, Node: j.Node, Job: j}
	default:
		v.by(end)
		return nil
	}
}

// write returns the step that sets or removes a node's claim. If the claim ends or the attempt has failed, the step
// also uncordons the node, provided that this plan cordoned it.
func write(verb Verb, n *Node, was Claim, is *Claim) *Step {
	s := &Step{Act: WriteNode, Verb: verb, Node: n.Name, Claim: is}
	over := is == nil || is.Failure != nil || is.Done != nil
	if over && was.Cordoned && n.Unschedulable {
		s.Unschedulable = new(false)
	}
	if over && is != nil {
		is.Cordoned = false
	}
	return s
}
