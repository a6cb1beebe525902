// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
)

// maxConflicts is how often in a row a step may meet an object that has changed meanwhile.
const maxConflicts = 8

// maxCause is how many bytes a status says of why a step is not taken.
const maxCause = 256

// maxStrays is how many Plans elsewhere are told that they are not run. More would cost each look at the member time.
const maxStrays = 64

// resolve gathers the Plans.
func (t *term) resolve(next *deadline) []resolved {
	secrets := map[string]string{}
	for _, s := range t.secrets.values() {
		secrets[s.name] = s.digest
	}
	var all []resolved
	strays := 0
	for _, o := range t.plans.values() {
		elsewhere := o.Namespace != v1.PlansNamespace
		if elsewhere && (o.Spec.ClusterName != "" || o.Spec.ClusterSelector != nil) {
			continue // a hub's, in a hub that is its own member
		}
		if o.DeletionTimestamp != nil {
			continue
		}
		if elsewhere {
			strays++
		}
		if elsewhere && strays > maxStrays {
			continue
		}
		var found release.Result
		if o.Spec.Version == "" && !elsewhere {
			found = t.channels.Result(o.Spec.Channel)
			next.by(found.Next)
		}
		all = append(all, resolve(o, found, secrets))
	}
	return all
}

// gather is the member as the planner sees it now.
func (t *term) gather() rollout.Member {
	m := rollout.Member{Refused: map[string]string{}}
	nodes := t.nodes.values()
	for i := range nodes {
		m.Nodes = append(m.Nodes, nodes[i].Node)
	}
	for _, j := range t.jobs.values() {
		m.Jobs = append(m.Jobs, j.Job)
	}
	for _, v := range t.space.values() {
		m.Hold, m.Window = v.hold, v.window
	}
	m.Drains = t.drains.follow(m.Nodes)
	for r, why := range t.refused {
		n, _ := t.nodes.get(r.node)
		if c, at := n.Claims[r.plan]; at && c.Hash == r.hash && c.Attempt == r.attempt && c.Failure == nil {
			m.Refused[r.node] = why
		} else {
			delete(t.refused, r)
		}
	}
	return m
}

// release lets nodes go whose Plan is no more.
func (t *term) release(ctx context.Context, next *deadline) {
	there := map[string]string{}
	for _, o := range t.plans.values() {
		if o.Namespace == v1.PlansNamespace && o.DeletionTimestamp == nil && !t.leaving {
			there[o.Name] = string(o.UID)
		}
	}
	if !t.options.Now().Before(t.releases.until) {
		t.releases = t.letGo(ctx, there)
	}
	next.by(t.releases.until)
}

// letGo takes the steps that release nodes. Those that do not succeed are to be taken again after the back-off that is returned.
func (t *term) letGo(ctx context.Context, plans map[string]string) backoff {
	for range maxConflicts {
		conflict, failed := false, false
		for _, step := range rollout.Orphans(t.gather().Nodes, plans) {
			switch err := t.act(ctx, step.Job.Plan, nil, step); {
			case apierrors.IsConflict(err):
				conflict = true
			case err != nil:
				failed = true
				t.regret(ctx, step, err)
			}
		}
		switch {
		case failed:
			return t.releases.after(t.options.Now())
		case !conflict:
			return backoff{}
		}
	}
	return t.releases.after(t.options.Now())
}

// streak is how often the last step was taken in a row.
type streak struct {
	verb  rollout.Verb
	node  string
	times int
}

// vain fails when a step was taken too often in a row: the API server takes it, and it changes nothing.
func (s *streak) vain(step rollout.Step) error {
	if s.verb != step.Verb || s.node != step.Node || s.times < maxConflicts {
		return nil
	}
	s.times-- // so that it is taken once more after the back-off
	return errors.New("it was taken and changed nothing: look for a webhook that undoes it")
}

// took counts a step, and reports whether it is another one than the last.
func (s *streak) took(step rollout.Step) (another bool) {
	if another = s.verb != step.Verb || s.node != step.Node; another {
		*s = streak{verb: step.Verb, node: step.Node}
	}
	s.times++
	return another
}

// advance takes the steps of a Plan until it waits.
func (t *term) advance(ctx context.Context, r resolved, next *deadline) rollout.Wait {
	c := t.course(r.plan.UID)
	if t.options.Now().Before(c.steps.until) {
		next.by(c.steps.until)
		return c.obstacle
	}
	conflicts, cause := 0, ""
	for ctx.Err() == nil {
		d := rollout.Next(t.gather(), r.plan, t.options.Now())
		if d.Step == nil {
			next.by(d.Wait.Until)
			return d.Wait
		}
		err := c.taken.vain(*d.Step)
		if err == nil {
			err = t.act(ctx, r.plan.Name, &r, *d.Step)
		}
		switch {
		case err == nil:
			if conflicts = 0; c.taken.took(*d.Step) { // else it may change nothing
				c.steps = backoff{}
			}
			continue
		case apierrors.IsConflict(err) && conflicts < maxConflicts:
			conflicts++
			continue
		}
		t.regret(ctx, *d.Step, err)
		cause = fmt.Sprintf(": %s node %s: %s", d.Step.Verb, d.Step.Node, protocol.Cut(err.Error(), maxCause))
		break
	}
	c.steps = c.steps.after(t.options.Now())
	next.by(c.steps.until)
	c.obstacle = rollout.Wait{Reason: v1.ReasonApplying, Message: "the member's API server does not take a step, which is tried again" + cause}
	return c.obstacle
}

// regret says of a step that it is tried again.
func (t *term) regret(ctx context.Context, step rollout.Step, err error) {
	if ctx.Err() == nil {
		t.options.Log.Error(err, "a step is tried again", "step", step.Verb, "node", step.Node)
	}
}

// act takes a step and notes what came of it. After a conflict what is known is as it is now.
func (t *term) act(ctx context.Context, plan string, r *resolved, step rollout.Step) error {
	t.options.Log.V(1).Info("step", "plan", plan, "step", step.Verb, "node", step.Node)
	switch step.Act {
	case rollout.WriteNode:
		return t.writeNode(ctx, plan, step)
	case rollout.CreateJob:
		return t.createJob(ctx, r, step)
	case rollout.DeleteJob:
		return t.deleteJob(ctx, step.Job.Name)
	case rollout.StartDrain:
		t.drains.start(ctx, &t.running, drain{node: step.Node, plan: plan, hash: step.Claim.Hash, attempt: step.Claim.Attempt, spec: *r.object.Spec.Drain})
		return nil
	}
	return fmt.Errorf("take step %s of node %s: this agent does not know it", step.Act, step.Node)
}

func (t *term) writeNode(ctx context.Context, plan string, step rollout.Step) error {
	n, there := t.nodes.get(step.Node)
	if !there {
		return nil // which has been seen since
	}
	patch, err := nodePatch(plan, n.version, step)
	if err != nil {
		return err
	}
	node, err := t.member.patchNode(ctx, step.Node, patch)
	if apierrors.IsConflict(err) {
		return errors.Join(err, t.seeNode(ctx, n))
	}
	if apierrors.IsNotFound(err) {
		t.forget(n)
		return nil
	}
	if err != nil {
		return err
	}
	return t.nodes.wrote(node)
}

// forget drops a Node that is no more.
func (t *term) forget(n knownNode) {
	t.nodes.drop(n.Name, func(now knownNode) bool { return now.version == n.version })
}

// nodePatch is a merge patch of a Node that only that version of it takes.
func nodePatch(plan, version string, step rollout.Step) ([]byte, error) {
	var claim any
	if step.Claim != nil {
		raw, err := json.Marshal(step.Claim)
		if err != nil {
			return nil, fmt.Errorf("encode claim on node %s: %w", step.Node, err)
		}
		claim = string(raw)
	}
	metadata := map[string]any{"resourceVersion": version, "annotations": map[string]any{v1.PlanLabel(plan): claim}}
	if len(step.Labels) > 0 {
		metadata["labels"] = step.Labels
	}
	patch := map[string]any{"metadata": metadata}
	if step.Unschedulable != nil {
		patch["spec"] = map[string]any{"unschedulable": *step.Unschedulable}
	}
	return json.Marshal(patch)
}

// seeNode reads a Node that has changed before the watch showed it.
func (t *term) seeNode(ctx context.Context, n knownNode) error {
	node, err := t.member.node(ctx, n.Name)
	if apierrors.IsNotFound(err) {
		t.forget(n)
		return nil
	}
	if err != nil {
		return err
	}
	return t.nodes.wrote(node)
}

func (t *term) createJob(ctx context.Context, r *resolved, step rollout.Step) error {
	n, there := t.nodes.get(step.Node)
	if !there {
		return nil
	}
	if r.object.Spec.ServiceAccountName == accountName || r.object.Spec.ServiceAccountName == "" {
		if err := t.keepAccount(ctx); err != nil {
			return err
		}
	}
	w := work{plan: r.object, version: r.plan.Version, host: n.Hostname, job: step.Job}
	job, err := t.member.createJob(ctx, newJob(w))
	if apierrors.IsAlreadyExists(err) {
		if job, err = t.member.job(ctx, w.jobName()); err == nil && !ofPlan(job, step.Job) {
			err = foreignJob(w.jobName())
		}
	}
	if why, refused := refusedFor(err); refused {
		t.refused[refusal{r.plan.Name, step.Node, step.Job.Hash, step.Job.Attempt}] = why
		return nil
	}
	if err != nil {
		return err
	}
	return t.jobs.wrote(job)
}

// ofPlan says whether the planner sees the Job as one of a plan on a node, perhaps of an earlier attempt.
func ofPlan(job *batchv1.Job, wanted rollout.Job) bool {
	known, err := readJob(job)
	return err == nil && known.Plan == wanted.Plan && known.Node == wanted.Node
}

func foreignJob(name string) error {
	message := fmt.Sprintf("Job %s is there and is not the plan's: delete it", name)
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Message: message}}
}

// refusedFor is why the API server would refuse the same again. Others than these pass.
func refusedFor(err error) (string, bool) {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return "", false
	}
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return "", false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return "", false
	default:
		return err.Error(), code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

func (t *term) deleteJob(ctx context.Context, name string) error {
	key := v1.PlansNamespace + "/" + name
	j, there := t.jobs.get(key)
	if !there {
		return nil
	}
	err := t.member.deleteJob(ctx, name, types.UID(j.uid))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // it went, and perhaps another came
		t.jobs.drop(key, func(now knownJob) bool { return now.uid == j.uid })
		return nil
	}
	if err == nil {
		t.jobs.alter(key, func(j *knownJob) { j.Deleting = true })
	}
	return err
}
