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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

// publish says how Plans are that were looked at: in their status, and those of the hub to the hub.
func (t *term) publish(ctx context.Context, plans []resolved, waits map[string]rollout.Wait, next *deadline) {
	now := t.options.Now()
	m := t.gather()
	var veto veto
	for _, v := range t.space.values() {
		veto = v
	}
	hold, until := veto.holds(now)
	next.by(until)
	t.board.hold(hold)

	there, hubs := map[string]bool{}, map[string]bool{}
	for _, r := range plans {
		there[r.plan.UID] = true
		if ofHub(r.object) {
			hubs[r.object.Name] = true
		}
		progress, err := rollout.ProgressOf(m, r.plan, now)
		if err != nil && r.problem == nil || r.object.Namespace != v1.PlansNamespace { // the planner says so too, as a reason to wait; or it has no nodes
			progress = rollout.Progress{}
		}
		if !t.addLogs(ctx, r.object, progress.Failures) {
			continue // they come soon, and then a status with them
		}
		t.publishOne(ctx, r.object, statusOf(r, progress, waits[r.plan.UID]), next)
	}
	t.board.keep(hubs)
	maps.DeleteFunc(t.courses, func(uid string, _ *course) bool { return !there[uid] })
}

// ofHub says whether the hub wants to hear of a Plan. One elsewhere that looks like the hub's has no say about that of its name.
func ofHub(o *v1.Plan) bool {
	return o.Namespace == v1.PlansNamespace && o.Annotations[v1.AnnotationRevision] != ""
}

// publishOne writes a status that has changed, now or when its pace allows.
func (t *term) publishOne(ctx context.Context, o *v1.Plan, status v1.PlanStatus, next *deadline) {
	keepTransitions(&status, o.Status.Conditions, t.options.Now())
	if same(status, o.Status) {
		if ofHub(o) {
			t.board.show(protocol.PlanState{Name: o.Name, Status: status})
		}
		return
	}
	now, c := t.options.Now(), t.course(string(o.UID))
	if due := later(c.pace.due(turned(o.Status.Conditions, status.Conditions)), c.status.until); now.Before(due) {
		next.by(due)
		return
	}
	if ofHub(o) {
		t.board.show(protocol.PlanState{Name: o.Name, Status: status})
	}
	c.pace = c.pace.wrote(now)
	written, err := t.member.applyStatus(ctx, &v1.Plan{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, UID: o.UID}, Status: status})
	switch {
	case err == nil:
		c.status = backoff{}
		err = t.plans.wrote(written)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it is gone, which will be seen
		return
	}
	if err != nil && ctx.Err() == nil {
		t.options.Log.Info("a status is written again", "plan", o.Name, "error", err.Error())
		c.status = c.status.after(now)
		next.by(c.status.until)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// addLogs adds the last lines of the Jobs that failed; false while they are being read. A Job that is gone has left them in the status.
func (t *term) addLogs(ctx context.Context, o *v1.Plan, failures []v1.NodeFailure) bool {
	jobs := map[string]knownJob{}
	all := map[string]bool{}
	for _, j := range t.jobs.values() {
		all[j.uid] = true
		if j.Plan == o.Name && j.UID == string(o.UID) && j.State == rollout.Failed {
			jobs[j.Node] = j
		}
	}
	t.logs.keep(all)
	complete := true
	for i := range failures {
		f := &failures[i]
		for _, before := range o.Status.Failures {
			if before.Node == f.Node && before.Attempt == f.Attempt && before.At.Unix() == f.At.Unix() {
				f.Log = before.Log
			}
		}
		n, _ := t.nodes.get(f.Node)
		j, there := jobs[f.Node]
		if !there || j.Attempt != n.Claims[o.Name].Attempt || f.Log != "" {
			continue
		}
		text, over := t.logs.of(ctx, &t.running, j.uid, j.Name)
		f.Log, complete = text, complete && over
	}
	return complete
}

// statusOf is the status of a Plan, but for when its conditions changed.
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
	stalled := r.problem != nil && r.problem.stalled || wait.Reason == v1.ReasonNodeFailed || wait.Reason == v1.ReasonInvalidPlan
	add := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: o.Generation}
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

// keepTransitions says since when the conditions are as they are.
func keepTransitions(status *v1.PlanStatus, before []metav1.Condition, now time.Time) {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		c.LastTransitionTime = metav1.NewTime(now)
		if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
}

// same says whether two statuses are written the same.
func same(a, b v1.PlanStatus) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
