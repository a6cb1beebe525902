// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	defaultRetries = 2
	defaultBackoff = 30 * time.Second
	maxBackoff     = time.Hour
	maxMessage     = 256 // the maximum size of Failure.Message, in bytes
	// maxSkew is the maximum clock skew that is tolerated. A claim may contain times in the future if the clock of
	// the agent that wrote the claim was ahead.
	maxSkew = time.Minute
)

// work returns the next step on a node where the plan is in progress. It returns nil if the node has to wait, or if the
// plan is not in progress there.
func (v *view) work(n *Node) *Step {
	c, ok := v.claim(n)
	if !ok {
		return nil
	}
	if dated, ahead := v.redate(c); ahead {
		return write(VerbDate, n, c, &dated)
	}
	switch {
	case c.Done != nil:
		return v.settle(n, c)
	case c.Failure != nil:
		return v.again(n, c)
	}
	if job := v.job(n, c, Upgrade); job != nil {
		return v.upgrade(n, c, job)
	}
	return v.approach(n, c)
}

// redate returns a copy of the claim in which times in the future are replaced with the current time, and reports
// whether the claim contained any. Such times occur if the clock of the writer or the reader is wrong, and a node must
// not wait for them.
func (v *view) redate(c Claim) (Claim, bool) {
	wrong := func(t time.Time) bool { return t.After(v.now.Add(maxSkew)) }
	ahead := false
	if wrong(c.Since) {
		c.Since, ahead = v.now, true
	}
	if c.Failure != nil && wrong(c.Failure.At) {
		failure := *c.Failure
		failure.At = v.now
		c.Failure, ahead = &failure, true
	}
	if c.Done != nil && wrong(*c.Done) {
		c.Done, ahead = &v.now, true
	}
	return c, ahead
}

// settle frees the slot of a node that has completed the plan.
func (v *view) settle(n *Node, c Claim) *Step {
	end := c.Done.Add(duration(v.plan.Spec.PostCompleteDelay, 0))
	if v.now.Before(end) {
		v.by(end)
		return nil
	}
	return write(VerbSettle, n, c, nil)
}

// again starts the next attempt of a failed node. If the plan no longer selects the node, it releases the node. If
// the plan has changed, it starts over.
func (v *view) again(n *Node, c Claim) *Step {
	if !v.wanted(n) || v.plan.Spec.Paused && !c.Failure.Final { // the failures of a paused plan remain visible
		return write(VerbRelease, n, c, nil)
	}
	changed := v.changed(c)
	at := v.retryAt(c)
	if !changed && (c.Failure.Final || v.now.Before(at)) {
		if !c.Failure.Final {
			v.by(at)
		}
		return nil
	}
	if !n.Ready || n.Leaving || v.taken(n) != "" || v.gate() != nil || v.taint(n) != "" {
		return nil
	}
	switch {
	case changed && c.Hash != v.plan.Hash && v.refusal() != nil:
		return write(VerbRelease, n, c, nil)
	case changed:
		return write(VerbRestart, n, c, v.fresh(n, c))
	}
	next := c
	next.Attempt, next.Failure, next.Prepared = c.Attempt+1, nil, false
	return write(VerbRetry, n, c, &next)
}

// changed reports whether the plan has changed since the node that holds c started.
func (v *view) changed(c Claim) bool {
	return c.Hash != v.plan.Hash || c.Generation != v.plan.Generation
}

// fresh returns the claim for a node that starts for the first time or again. The claim's attempt is greater than the
// attempt of any of the node's Jobs, so that no earlier Job is mistaken for a current one.
func (v *view) fresh(n *Node, was Claim) *Claim {
	used := was.Attempt
	for _, j := range v.jobs[n.Name] {
		used = max(used, j.Attempt)
	}
	return &Claim{
		UID: v.plan.UID, Hash: v.plan.Hash, Generation: v.plan.Generation, Exclusive: v.plan.Spec.Exclusive,
		Since: v.now, Attempt: used + 1, Cordoned: was.Cordoned,
	}
}

// retryAt returns the time when the next attempt is due after a failure.
func (v *view) retryAt(c Claim) time.Time { return c.Failure.At.Add(v.backoff(c.Spent)) }

// stuck reports whether work on a node is waiting for the kubelet. This is the case if the node is not ready and either
// its next attempt is due, or its last Job is being deleted and one of the Job's pods may still be running.
func (v *view) stuck(n *Node, c Claim) bool {
	switch {
	case n.Ready || c.Done != nil:
		return false
	case c.Failure != nil:
		return !v.now.Before(v.retryAt(c))
	}
	return slices.ContainsFunc(v.jobs[n.Name], func(j Job) bool { return j.Deleting })
}

func (v *view) backoff(spent int32) time.Duration {
	wait := defaultBackoff
	if r := v.plan.Spec.Retries; r != nil {
		wait = duration(r.Backoff, defaultBackoff)
	}
	for ; spent > 1 && wait < maxBackoff; spent-- {
		wait *= 2
	}
	return min(wait, maxBackoff)
}

// upgrade follows the Job of the upgrade container, even if the plan has changed in the meantime.
func (v *view) upgrade(n *Node, c Claim, job *Job) *Step {
	switch {
	case job.Deleting:
		return nil
	case job.State == Succeeded:
		return v.complete(n, c)
	case job.State == Failed:
		return v.fail(n, c, v1.ReasonUpgradeFailed, job)
	case c.Cordoned && !n.Unschedulable:
		next := c
		next.Cordoned = false
		return write(VerbDisown, n, c, &next)
	}
	return nil
}

func (v *view) complete(n *Node, c Claim) *Step {
	var next *Claim
	current := c.Hash == v.plan.Hash
	if current && duration(v.plan.Spec.PostCompleteDelay, 0) > 0 {
		done := c
		done.Done = &v.now
		next = &done
	}
	s := write(VerbComplete, n, c, next)
	s.Labels = map[string]string{}
	if key := v1.PlanLabel(v.plan.Name); n.Labels[key] != v1.PlanDisabled {
		s.Labels[key] = c.Hash
	}
	if labels, err := PostCompleteLabels(&v.plan.Spec.NodeWork, v.plan.Version, v.plan.Hash); current && err == nil {
		maps.Copy(s.Labels, labels)
	}
	return s
}

// PostCompleteLabels returns the labels that a plan sets on nodes that have completed the plan, with the version and
// the hash filled in. It returns an error if one of the labels is invalid. In that case, no node may start, because the
// API server would reject the write that completes a node and uncordons it.
func PostCompleteLabels(work *v1.NodeWork, version, hash string) (map[string]string, error) {
	filled := strings.NewReplacer("$(LATEST_VERSION)", version, "$(LATEST_HASH)", hash)
	labels := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(work.PostCompleteLabels)) {
		value := filled.Replace(string(work.PostCompleteLabels[key]))
		if faults := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(faults) > 0 {
			return nil, fmt.Errorf("read postCompleteLabels: %s=%s is not a valid label: %s", key, value, faults[0])
		}
		labels[key] = value
	}
	return labels, nil
}

// fail ends an attempt. If a prepare container exceeds its deadline, this does not use up an attempt, because the
// container was waiting for something and the node is unchanged.
func (v *view) fail(n *Node, c Claim, reason string, job *Job) *Step {
	if job.Reason != "" {
		reason = job.Reason
	}
	next := c
	if job.Kind != Prepare || reason != v1.ReasonDeadlineExceeded {
		next.Spent++
	}
	limit := int32(defaultRetries)
	if r := v.plan.Spec.Retries; r != nil && r.Limit != nil {
		limit = *r.Limit
	}
	message := job.Message
	if !n.Ready {
		message = "node " + n.Name + " is not ready; " + message
	}
	next.Failure = &Failure{At: v.now, Reason: reason, Message: strings.Clone(message[:min(len(message), maxMessage)]),
		Final: next.Spent > limit}
	return write(VerbFail, n, c, &next)
}

// approach returns the next step of a node whose upgrade has not started.
func (v *view) approach(n *Node, c Claim) *Step {
	switch {
	case !v.wanted(n), v.plan.Spec.Paused, c.Hash != v.plan.Hash && v.refusal() != nil:
		return write(VerbRelease, n, c, nil)
	case c.Hash != v.plan.Hash:
		return write(VerbRestart, n, c, v.fresh(n, c))
	}
	for _, j := range v.jobs[n.Name] {
		if j.of(c) {
			continue
		}
		if j.Deleting {
			return nil // the Job's name is still taken; the Job's pods may still be running
		}
		return &Step{Act: DeleteJob, Verb: VerbClean, Node: n.Name, Job: j}
	}
	if v.plan.Spec.Prepare != nil && !c.Prepared {
		job := v.job(n, c, Prepare)
		switch {
		case job == nil && v.taint(n) != "":
			return write(VerbRelease, n, c, nil) // the Job's pod would not be scheduled on the node
		case job == nil:
			return v.create(n, c, Prepare, VerbPrepare)
		case job.Deleting || job.State == Running:
			return nil
		case job.State == Failed:
			return v.fail(n, c, v1.ReasonPrepareFailed, job)
		}
	}
	return v.enter(n, c)
}

// enter cordons and drains a prepared node, and then starts its upgrade.
func (v *view) enter(n *Node, c Claim) *Step {
	if !c.Prepared && v.taint(n) != "" {
		// the Job's pod would not be scheduled, so the node must not be cordoned or drained
		return write(VerbRelease, n, c, nil)
	}
	drains := v.plan.Spec.Drain != nil
	drain := v.Drains[n.Name]
	drained := drain.Done && drain.Failed == "" && drain.Hash == c.Hash && drain.Attempt == c.Attempt
	if (drains || v.plan.Spec.Cordon) && (!c.Prepared || drains && !drained && !n.Unschedulable) {
		next := c
		next.Prepared = true
		next.Cordoned = c.Cordoned || !n.Unschedulable
		s := write(VerbCordon, n, c, &next)
		if !n.Unschedulable {
			s.Unschedulable = new(true)
		}
		return s
	}
	switch {
	case !drains || drained:
		return v.create(n, c, Upgrade, VerbUpgrade)
	case drain.Hash != c.Hash || drain.Attempt != c.Attempt:
		return &Step{Act: StartDrain, Verb: VerbDrain, Node: n.Name, Claim: &c}
	case drain.Failed != "":
		return v.fail(n, c, v1.ReasonDrainFailed, &Job{Message: drain.Failed})
	}
	return nil // the drain is in progress
}

func (v *view) create(n *Node, c Claim, kind JobKind, verb Verb) *Step {
	if why, refused := v.Refused[n.Name]; refused {
		return v.fail(n, c, v1.ReasonJobRefused, &Job{Message: why})
	}
	return &Step{Act: CreateJob, Verb: verb, Node: n.Name, Claim: &c, Job: Job{
		Kind: kind, Plan: v.plan.Name, UID: c.UID, Node: n.Name, Hash: c.Hash, Attempt: c.Attempt,
	}}
}
