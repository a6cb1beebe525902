// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

// publish writes the status of the Plans, and publishes the status of the hub's Plans to the hub.
func (l *leadership) publish(ctx context.Context, plans []resolved, waits map[string]rollout.Wait, next *deadline) {
	now := l.options.Now()
	m := l.gather()
	var veto adminHold
	for _, v := range l.space.Values() {
		veto = v
	}
	hold, until := veto.holds(now)
	next.by(until)
	l.publisher.hold(hold)

	jobs := l.jobs.Values()
	l.tasks.logs.keep(jobs)
	there, hubs := map[string]bool{}, map[string]bool{}
	for _, r := range plans {
		there[r.plan.UID] = true
		if ofHub(r.object) {
			hubs[r.object.Name] = true
		}
		progress, err := rollout.ProgressOf(m, r.plan, now)
		// The error is ignored, because the planner reports it as a reason to wait. A Plan in another namespace has
		// no nodes, and therefore no progress.
		if err != nil && r.problem == nil || r.object.Namespace != v1.PlansNamespace {
			progress = rollout.Progress{}
		}
		wait := waits[r.plan.UID]
		if !l.addLogs(ctx, r.object, progress.Failures, jobs) || l.soon(r, wait, next) {
			continue // the status will be written when the logs have been read, and the checks have ended
		}
		status := statusOf(r, progress, wait)
		status.Gates = l.gatesOf(r, wait, progress.Begun)
		l.publishOne(ctx, r.object, status, next)
	}
	l.tasks.checks.keep(there)
	l.publisher.keep(hubs)
	maps.DeleteFunc(l.planStates, func(uid string, _ *planState) bool { return !there[uid] })
}

// ofHub reports whether a Plan comes from the hub. A Plan in another namespace never does, even if it has the same name
// and annotations.
func ofHub(o *v1.Plan) bool {
	return o.Namespace == v1.PlansNamespace && o.Annotations[v1.AnnotationRevision] != ""
}

// publishOne writes the status of a Plan if the status has changed and the limiter allows the write.
func (l *leadership) publishOne(ctx context.Context, o *v1.Plan, status v1.PlanStatus, next *deadline) {
	keepTransitions(&status, o.Status.Conditions, l.options.Now())
	if same(status, o.Status) {
		if ofHub(o) {
			l.publisher.publish(protocol.PlanState{Name: o.Name, Status: status})
		}
		return
	}
	now, c := l.options.Now(), l.planState(string(o.UID))
	due := c.limiter.due(conditionsChanged(o.Status.Conditions, status.Conditions))
	if due.Before(c.status.until) {
		due = c.status.until
	}
	if now.Before(due) {
		next.by(due)
		return
	}
	if ofHub(o) {
		l.publisher.publish(protocol.PlanState{Name: o.Name, Status: status})
	}
	c.limiter = c.limiter.wrote(now)
	written, err := l.member.applyStatus(ctx,
		&v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID}, Status: status})
	switch {
	case err == nil:
		c.status = backoff{}
		l.plans.Wrote(written)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // the Plan is gone, and an event will follow
		return
	}
	if err != nil && ctx.Err() == nil {
		l.options.Log.Info("cannot write the status of a plan; retrying", "plan", o.Name, "error", err.Error())
		c.status = c.status.after(now)
		next.by(c.status.until)
	}
}

// addLogs adds the last log lines of failed Jobs. It returns false while the logs are being read. The status already
// contains the lines of Jobs that no longer exist.
func (l *leadership) addLogs(ctx context.Context, o *v1.Plan, failures []v1.NodeFailure, jobs []knownJob) bool {
	failed := map[string]*knownJob{}
	for i := range jobs {
		if j := &jobs[i]; j.Plan == o.Name && j.UID == string(o.UID) && j.State == rollout.Failed {
			failed[j.Node] = j
		}
	}
	complete := true
	for i := range failures {
		f := &failures[i]
		for _, before := range o.Status.Failures {
			if before.Node == f.Node && before.Attempt == f.Attempt && before.At.Unix() == f.At.Unix() {
				f.Log = before.Log
			}
		}
		n, _ := l.nodes.Get(watch.Name{Name: f.Node})
		j, there := failed[f.Node]
		if !there || j.Attempt != n.Claims[o.Name].Attempt || f.Log != "" {
			continue
		}
		text, over := l.tasks.logs.of(ctx, &l.running, j.uid, j.Name)
		f.Log, complete = text, complete && over
	}
	return complete
}

// statusOf returns a Plan's status without the transition times of the conditions.
func statusOf(r resolved, p rollout.Progress, wait rollout.Wait) v1.PlanStatus {
	o := r.object
	status := v1.PlanStatus{
		ObservedGeneration: o.Generation, LatestVersion: r.plan.Version, LatestHash: r.plan.Hash,
		Revision: o.Annotations[v1.AnnotationRevision], Applying: p.Applying, Failures: p.Failures,
	}
	if r.problem != nil {
		wait = rollout.Wait{Reason: r.problem.reason, Message: r.problem.message}
		status.LatestHash = ""
	}
	if r.problem == nil || p.Nodes.Total > 0 {
		status.Nodes = &p.Nodes
	}
	complete := wait.Reason == v1.ReasonComplete || wait.Reason == v1.ReasonNoNodes
	stalled := r.problem != nil && r.problem.stalled || wait.Reason == v1.ReasonNodeFailed ||
		wait.Reason == v1.ReasonInvalidPlan
	add := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message,
			ObservedGeneration: o.Generation}
		if is {
			c.Status = metav1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, c)
	}
	switch {
	case wait.Reason == v1.ReasonSecretNotFound || wait.Reason == v1.ReasonChannelFailed:
		add(v1.ConditionLatestResolved, false, wait.Reason, wait.Message)
	case o.Spec.Version != "":
		add(v1.ConditionLatestResolved, true, v1.ReasonVersion, "the version is that of the spec")
	default:
		add(v1.ConditionLatestResolved, true, v1.ReasonChannel, "the version was found in the channel")
	}
	add(v1.ConditionComplete, complete, wait.Reason, wait.Message)
	add(v1.ConditionReady, complete, wait.Reason, wait.Message)
	if stalled {
		add(v1.ConditionStalled, true, wait.Reason, wait.Message)
	}
	return status
}

func keepTransitions(status *v1.PlanStatus, before []metav1.Condition, now time.Time) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(now)
		if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

// same reports whether two statuses have the same encoding.
func same(a, b v1.PlanStatus) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
