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

	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
)

// maxConflicts is the maximum number of consecutive conflicts for one step.
const maxConflicts = 8

// maxCause is the maximum size of a cause in a status, in bytes.
const maxCause = 256

// maxElsewhere is the maximum number of Plans in other namespaces whose status says that the Plan does not run. Writing
// more of these statuses would slow down each pass.
const maxElsewhere = 64

// resolve returns the Plans with their versions and hashes.
func (l *leadership) resolve(next *deadline) []resolved {
	secrets := map[string]string{}
	for _, s := range l.secrets.Values() {
		secrets[s.name] = s.digest
	}
	var all []resolved
	count := 0
	for _, o := range l.plans.Values() {
		elsewhere := o.Namespace != v1.PlansNamespace
		if elsewhere && (o.Spec.ClusterName != "" || o.Spec.ClusterSelector != nil) {
			continue // the hub is its own member, and this Plan belongs to the hub
		}
		if o.DeletionTimestamp != nil {
			continue
		}
		if elsewhere {
			count++
		}
		if elsewhere && count > maxElsewhere {
			continue
		}
		var found release.Result
		if o.Spec.Version == "" && !elsewhere {
			found = l.channels.Result(o.Namespace, o.Spec.Channel)
			next.by(found.Next)
		}
		all = append(all, resolve(o, found, secrets))
	}
	return all
}

// gather returns the member in the form that the planner uses. This is the member's state at the start of the pass or
// after the last step.
func (l *leadership) gather() rollout.Member {
	if l.snapshot == nil {
		m := l.look()
		l.snapshot = &m
	}
	return *l.snapshot
}

func (l *leadership) look() rollout.Member {
	m := rollout.Member{Refused: map[string]string{}}
	nodes := l.nodes.Values()
	for i := range nodes {
		m.Nodes = append(m.Nodes, nodes[i].Node)
	}
	for _, j := range l.jobs.Values() {
		m.Jobs = append(m.Jobs, l.waits.withWaiting(j))
	}
	for _, v := range l.space.Values() {
		m.Hold, m.Window = v.hold, v.window
	}
	m.Drains = l.tasks.drains.follow(m.Nodes)
	for r, why := range l.refused {
		n, _ := l.nodes.Get(watch.Name{Name: r.node})
		if c, at := n.Claims[r.plan]; at && c.Hash == r.hash && c.Attempt == r.attempt && c.Failure == nil {
			m.Refused[r.node] = why
		} else {
			delete(l.refused, r)
		}
	}
	return m
}

// release reads the state of the member again, and releases nodes whose Plan is gone.
func (l *leadership) release(ctx context.Context, next *deadline) {
	l.snapshot = nil
	there := map[string]string{}
	for _, o := range l.plans.Values() {
		if o.Namespace == v1.PlansNamespace && o.DeletionTimestamp == nil && !l.leaving {
			there[o.Name] = string(o.UID)
		}
	}
	if !l.options.Now().Before(l.releases.until) {
		l.releases = l.releaseOrphans(ctx, there)
	}
	next.by(l.releases.until)
}

// releaseOrphans performs the steps that release nodes. It returns the backoff after which failed steps are retried.
func (l *leadership) releaseOrphans(ctx context.Context, plans map[string]string) backoff {
	for range maxConflicts {
		conflict, failed := false, false
		for _, step := range rollout.Orphans(l.gather().Nodes, plans) {
			switch err := l.act(ctx, step.Job.Plan, nil, step); {
			case apierrors.IsConflict(err):
				conflict = true
			case err != nil:
				failed = true
				l.logRetry(ctx, step, err)
			}
		}
		switch {
		case failed:
			return l.releases.after(l.options.Now())
		case !conflict:
			return backoff{}
		}
	}
	return l.releases.after(l.options.Now())
}

// repetition counts how many times in a row the same step has been performed.
type repetition struct {
	verb  rollout.Verb
	node  string
	times int
}

// exhausted returns an error if the step has been performed too many times in a row. This happens if the API server
// accepts the step without making a change.
func (s *repetition) exhausted(step rollout.Step) error {
	if s.verb != step.Verb || s.node != step.Node || s.times < maxConflicts {
		return nil
	}
	s.times-- // allow one more attempt after the backoff
	return errors.New("the step was accepted but changed nothing: look for a webhook that reverts it")
}

// record counts a step, and reports whether it differs from the last one.
func (s *repetition) record(step rollout.Step) (another bool) {
	if another = s.verb != step.Verb || s.node != step.Node; another {
		*s = repetition{verb: step.Verb, node: step.Node}
	}
	s.times++
	return another
}

// advance performs the steps of a Plan until the Plan has to wait.
func (l *leadership) advance(ctx context.Context, r resolved, next *deadline) rollout.Wait {
	c := l.planState(r.plan.UID)
	if l.options.Now().Before(c.steps.until) {
		next.by(c.steps.until)
		return c.obstacle
	}
	conflicts, cause := 0, ""
	for ctx.Err() == nil {
		d := rollout.Next(l.gather(), r.plan, l.options.Now())
		if d.Step == nil {
			next.by(d.Wait.Until)
			return d.Wait
		}
		err := c.taken.exhausted(*d.Step)
		if err == nil {
			err = l.act(ctx, r.plan.Name, &r, *d.Step)
		}
		switch {
		case err == nil:
			if conflicts = 0; c.taken.record(*d.Step) {
				// The backoff is reset only for a different step. If the step is the same again, the previous one may have had no
				// effect.
				c.steps = backoff{}
			}
			continue
		case apierrors.IsConflict(err) && conflicts < maxConflicts:
			conflicts++
			continue
		}
		l.logRetry(ctx, *d.Step, err)
		cause = fmt.Sprintf(": %s node %s: %s", d.Step.Verb, d.Step.Node, protocol.Cut(err.Error(), maxCause))
		break
	}
	c.steps = c.steps.after(l.options.Now())
	next.by(c.steps.until)
	c.obstacle = rollout.Wait{Reason: v1.ReasonApplying,
		Message: "the member's API server rejects a step, which is retried" + cause}
	return c.obstacle
}

func (l *leadership) logRetry(ctx context.Context, step rollout.Step, err error) {
	if ctx.Err() == nil {
		l.options.Log.Error(err, "a step failed; retrying", "step", step.Verb, "node", step.Node)
	}
}

// act performs a step and stores the result. After a conflict, it reads the object again.
func (l *leadership) act(ctx context.Context, plan string, r *resolved, step rollout.Step) error {
	l.options.Log.V(1).Info("step", "plan", plan, "step", step.Verb, "node", step.Node)
	l.snapshot = nil
	switch step.Act {
	case rollout.WriteNode:
		return l.writeNode(ctx, plan, step)
	case rollout.CreateJob:
		return l.createJob(ctx, r, step)
	case rollout.DeleteJob:
		return l.deleteJob(ctx, step.Job.Name)
	case rollout.StartDrain:
		l.tasks.drains.start(ctx, &l.running,
			drain{node: step.Node, plan: plan, hash: step.Claim.Hash, attempt: step.Claim.Attempt, spec: *r.object.Spec.Drain})
		return nil
	}
	return fmt.Errorf("take step %s of node %s: this agent does not know it", step.Act, step.Node)
}

func (l *leadership) writeNode(ctx context.Context, plan string, step rollout.Step) error {
	n, there := l.nodes.Get(watch.Name{Name: step.Node})
	if !there {
		return nil // the Node is gone
	}
	patch, err := nodePatch(plan, n.version, step)
	if err != nil {
		return err
	}
	node, err := l.member.patchNode(ctx, step.Node, patch)
	if apierrors.IsConflict(err) { // the Node has changed, and its event has not arrived yet
		now, missing := l.member.node(ctx, step.Node)
		return errors.Join(err, l.sawNode(n, now, missing))
	}
	return l.sawNode(n, node, err)
}

// sawNode stores the API server's response to a request for a Node. If the Node no longer exists, sawNode removes it
// from the store and returns no error.
func (l *leadership) sawNode(n knownNode, node *corev1.Node, err error) error {
	if apierrors.IsNotFound(err) {
		l.nodes.Drop(watch.Name{Name: n.Name}, func(now knownNode) bool { return now.version == n.version })
		return nil
	}
	if err == nil {
		l.nodes.Wrote(node)
	}
	return err
}

// nodePatch returns a merge patch for a Node that applies only to the given version of the Node.
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

func (l *leadership) createJob(ctx context.Context, r *resolved, step rollout.Step) error {
	n, there := l.nodes.Get(watch.Name{Name: step.Node})
	if !there {
		return nil
	}
	if r.object.Spec.ServiceAccountName == accountName || r.object.Spec.ServiceAccountName == "" {
		if err := l.keepAccount(ctx); err != nil {
			return err
		}
	}
	w := work{plan: r.object, version: r.plan.Version, images: l.options.Registry(), host: n.Hostname, job: step.Job}
	job, err := l.member.createJob(ctx, newJob(w))
	if apierrors.IsAlreadyExists(err) {
		if job, err = l.member.job(ctx, w.jobName()); err == nil && !ofPlan(job, step.Job) {
			err = foreignJob(w.jobName())
		}
	}
	if why, refused := refusedFor(err); refused {
		l.refused[refusedJob{r.plan.Name, step.Node, step.Job.Hash, step.Job.Attempt}] = why
		return nil
	}
	if err != nil {
		return err
	}
	l.jobs.Wrote(job)
	return nil
}

// ofPlan reports whether the Job belongs to the given plan and node, regardless of the attempt.
func ofPlan(job *batchv1.Job, wanted rollout.Job) bool {
	known, _ := readJob(job)
	return known.Plan == wanted.Plan && known.Node == wanted.Node
}

func foreignJob(name string) error {
	message := fmt.Sprintf("Job %s exists but does not belong to the plan: delete it", name)
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
		Code: http.StatusUnprocessableEntity, Message: message}}
}

// refusedFor returns the reason if the API server would reject the same request again. For all other errors, which are
// temporary, it returns false.
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

func (l *leadership) deleteJob(ctx context.Context, name string) error {
	key := watch.Name{Namespace: v1.PlansNamespace, Name: name}
	j, there := l.jobs.Get(key)
	if !there {
		return nil
	}
	err := l.member.deleteJob(ctx, name, types.UID(j.uid))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // the Job is gone or has been replaced
		l.jobs.Drop(key, func(now knownJob) bool { return now.uid == j.uid })
		return nil
	}
	if err == nil {
		l.jobs.Alter(key, func(j *knownJob) { j.Deleting = true })
	}
	return err
}
