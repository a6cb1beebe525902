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

// keepJobs is for how long finished Jobs stay, for who looks at them.
const keepJobs = 15 * time.Minute

// Next is the next step of a plan in a member, or the reason to wait.
func Next(m Member, p Plan, now time.Time) Decision {
	v, err := look(m, p, now)
	if err != nil {
		return Decision{Wait: Wait{Reason: v1.ReasonInvalidPlan, Message: err.Error() + ": change the plan"}}
	}
	for i := range m.Nodes {
		if step := v.work(&m.Nodes[i]); step != nil {
			return Decision{Step: step}
		}
	}
	if step := v.clean(); step != nil {
		return Decision{Step: step}
	}
	return v.begin()
}

// Orphans releases the nodes of plans that are no more. plans has the UIDs of those that are there, by name.
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

// view is what steps are decided from.
type view struct {
	Member
	plan   Plan
	now    time.Time
	wants  labels.Selector
	window *Window
	jobs   map[string][]Job // of this plan, by node
	until  time.Time        // when to look again at the latest
}

func look(m Member, p Plan, now time.Time) (*view, error) {
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
	v := &view{Member: m, plan: p, now: now, wants: wants, window: window, jobs: map[string][]Job{}}
	for _, j := range m.Jobs {
		if j.Plan == p.Name {
			v.jobs[j.Node] = append(v.jobs[j.Node], j)
		}
	}
	return v, nil
}

// wanted says whether the plan is for a node.
func (v *view) wanted(n *Node) bool {
	return n.Hostname != "" && n.Labels[v1.PlanLabel(v.plan.Name)] != v1.PlanDisabled && v.wants.Matches(labels.Set(n.Labels))
}

// claim of this plan on a node.
func (v *view) claim(n *Node) (Claim, bool) {
	c, ok := n.Claims[v.plan.Name]
	return c, ok && c.UID == v.plan.UID
}

// of says whether a Job is of the attempt that a claim is at.
func (j *Job) of(c Claim) bool { return j.UID == c.UID && j.Hash == c.Hash && j.Attempt == c.Attempt }

func (v *view) job(n *Node, c Claim, kind JobKind) *Job {
	for i := range v.jobs[n.Name] {
		if j := &v.jobs[n.Name][i]; j.Kind == kind && j.of(c) {
			return j
		}
	}
	return nil
}

// by notes when to look again.
func (v *view) by(t time.Time) { v.until = sooner(v.until, t) }

// gate says why nothing may begin, no node and no attempt. Nil when it may.
func (v *view) gate() *Wait {
	if v.plan.Spec.Paused {
		return &Wait{Reason: v1.ReasonPaused, Message: "the plan is paused: set spec.paused to false to go on"}
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

// clean deletes a Job that no node needs: at once one that is not finished, the others after a while.
func (v *view) clean() *Step {
	needed := map[string]Claim{}
	for i := range v.Nodes {
		if c, ok := v.claim(&v.Nodes[i]); ok {
			needed[v.Nodes[i].Name] = c
		}
	}
	for _, j := range v.Jobs {
		if c, ok := needed[j.Node]; j.Plan != v.plan.Name || ok && j.of(c) {
			continue
		}
		if step := v.discard(j); step != nil {
			return step
		}
	}
	return nil
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

// write is the step that gives a node a claim, or takes it away; then, and after a failure, it is uncordoned if it was this plan that
// cordoned it.
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
