// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/untrusted"
)

// knownNode contains a node in the form that the planner uses, and the node's resource version.
type knownNode struct {
	rollout.Node
	version string
}

func readNode(o *corev1.Node) (knownNode, bool) {
	n := knownNode{version: o.ResourceVersion, Node: rollout.Node{
		Name: o.Name, Hostname: o.Labels[corev1.LabelHostname], Labels: o.Labels, Unschedulable: o.Spec.Unschedulable,
		Leaving: o.DeletionTimestamp != nil, Taints: o.Spec.Taints,
		OS: cmp.Or(o.Status.NodeInfo.OperatingSystem, o.Labels[corev1.LabelOSStable]),
	}}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Ready = c.Status == corev1.ConditionTrue
		}
	}
	for key, value := range o.Annotations {
		plan, is := claimOf(key)
		if !is {
			continue
		}
		c, ours := readClaim(value)
		if !ours {
			continue // Drover did not write this claim
		}
		if n.Claims == nil {
			n.Claims = map[string]rollout.Claim{}
		}
		n.Claims[plan] = c
	}
	return n, true
}

// readClaim decodes a claim, and reports whether Drover may have written it. The node's own kubelet can write
// claims, too. readClaim therefore rejects values that the schema of the status does not allow, because one such
// value would make the status of the whole Plan invalid.
func readClaim(text string) (c rollout.Claim, ours bool) {
	if err := untrusted.JSON([]byte(text), &c, untrusted.Small()); err != nil || c.UID == "" || !protocol.Dated(c.Since) ||
		c.Done != nil && !protocol.Dated(*c.Done) {
		return c, false
	}
	if f := c.Failure; f != nil {
		if !protocol.Dated(f.At) {
			return c, false
		}
		f.Reason, f.Message = protocol.Cut(f.Reason, maxReason), protocol.Cut(f.Message, maxCause)
	}
	return c, true
}

// maxReason is the maximum size of the reason for a failure, in bytes.
const maxReason = 64

// claimOf returns the name of the plan in the key of a claim annotation, and reports whether the key belongs to a
// claim.
func claimOf(annotation string) (plan string, is bool) {
	return strings.CutPrefix(annotation, v1.LabelPlanPrefix+"/")
}

// knownJob is a Job in the form that the planner uses.
type knownJob struct {
	rollout.Job
	uid     string
	overdue bool // whether the Job has exceeded its deadline
}

func readJob(o *batchv1.Job) (knownJob, bool) {
	j := knownJob{uid: string(o.UID), Job: rollout.Job{
		Name: o.Name, Plan: o.Labels[labelPlan], Node: o.Annotations[annotationNode], State: rollout.Running,
		Deleting: o.DeletionTimestamp != nil,
		Kind:     rollout.JobKind(o.Labels[labelKind]),
	}}
	j.Hash = o.Labels[labelHashPrefix+j.Plan]
	if owner := metav1.GetControllerOf(o); owner != nil {
		j.UID = string(owner.UID)
	}
	attempt, err := strconv.ParseInt(o.Labels[labelAttempt], 10, 32)
	if err == nil {
		j.Attempt = int32(attempt)
	}
	for _, c := range o.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Type {
		case batchv1.JobComplete:
			j.State, j.Finished = rollout.Succeeded, c.LastTransitionTime.Time
		// JobFailureTarget is treated as a failure, because JobFailed follows only after the pods have terminated, and a pod
		// whose kubelet is gone never terminates.
		case batchv1.JobFailed, batchv1.JobFailureTarget:
			j.State, j.Finished = rollout.Failed, c.LastTransitionTime.Time
			j.Reason, j.Message = jobFailure(j.Kind, c)
			j.overdue = j.Reason == v1.ReasonDeadlineExceeded
		}
	}
	return j, true
}

// jobFailure returns the reason why a Job failed. If the reason is empty, the planner chooses one.
func jobFailure(kind rollout.JobKind, c batchv1.JobCondition) (reason, message string) {
	if c.Reason == batchv1.JobReasonDeadlineExceeded {
		return v1.ReasonDeadlineExceeded, "the Job took longer than jobActiveDeadlineSecs"
	}
	return "", fmt.Sprintf("the container %s failed: %s", kind, protocol.Cut(c.Message, 160))
}

// readPlan removes the fields that are not used. It keeps hardly any fields of Plans in other namespaces, because users
// can make these Plans as large as the API server allows.
func readPlan(o *v1.Plan) (*v1.Plan, bool) {
	o.ManagedFields = nil
	if o.Namespace == v1.PlansNamespace {
		return o, true
	}
	o.ObjectMeta = metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation,
		DeletionTimestamp: o.DeletionTimestamp,
	}
	o.Spec = v1.PlanSpec{PlanTarget: v1.PlanTarget{ClusterName: o.Spec.ClusterName,
		ClusterSelector: o.Spec.ClusterSelector}, PlanRelease: v1.PlanRelease{Version: o.Spec.Version}}
	if o.Spec.ClusterSelector != nil {
		o.Spec.ClusterSelector = &metav1.LabelSelector{} // only the presence of a selector matters
	}
	o.Status = v1.PlanStatus{ObservedGeneration: o.Status.ObservedGeneration, Conditions: o.Status.Conditions,
		LatestVersion: protocol.Cut(o.Status.LatestVersion, maxCause)}
	for i := range o.Status.Conditions {
		c := &o.Status.Conditions[i]
		c.Message = protocol.Cut(c.Message, maxCause)
	}
	return o, true
}

// readSecret keeps the digest of a Secret, but none of its content.
func readSecret(o *corev1.Secret) (knownSecret, bool) {
	digest, err := rollout.SecretDigest(o)
	return knownSecret{name: o.Name, digest: digest}, err == nil
}

type knownSecret struct{ name, digest string }

// adminHold is the hold and the window that the member's administrator has set for all plans.
type adminHold struct {
	hold   string
	window *rollout.Window
	// leaving is true while the namespace is being removed.
	leaving bool
}

// readVeto reads the administrator's settings from the namespace for plans. An invalid window holds all plans, because
// the administrator intended to restrict them.
func readVeto(o *corev1.Namespace) (adminHold, bool) {
	if o.DeletionTimestamp != nil {
		return adminHold{leaving: true,
			hold: fmt.Sprintf("the namespace %s is being removed, and is created again once it is gone", o.Name)}, true
	}
	if hold, set := o.Labels[v1.LabelPlansHold]; set && hold != "false" {
		return adminHold{hold: fmt.Sprintf("the label %s on the namespace %s holds plans off", v1.LabelPlansHold, o.Name)},
			true
	}
	window, err := rollout.ParseWindow(o.Annotations[v1.AnnotationPlansWindow])
	if err != nil {
		return adminHold{hold: fmt.Sprintf("the annotation %s on the namespace %s cannot be used: %s",
			v1.AnnotationPlansWindow, o.Name, protocol.Cut(err.Error(), maxCause))}, true
	}
	return adminHold{window: window}, true
}

// holds returns the reason why the member currently does not run plans, or "" if it does, and the time of the next
// check.
func (v adminHold) holds(now time.Time) (string, time.Time) {
	if v.hold != "" {
		return v.hold, time.Time{}
	}
	open, until := v.window.Open(now)
	switch {
	case open:
		return "", until
	case until.IsZero():
		return "the member's own window is never open", until
	}
	return "the member's own window opens at " + until.UTC().Format(time.RFC3339), until
}

// resolved is a Plan with its version and hash, or with the reason why it cannot run.
type resolved struct {
	object  *v1.Plan
	plan    rollout.Plan
	version string // as in the spec or the channel
	problem *problem
	// checks is the state of the upgrade checks, and findings are their findings that are not overridden.
	checks   rollout.Checks
	findings []v1.UpgradeFinding
	// unread are the findings that do not keep the plan from starting, because the agent's manifest in this member is too
	// old to let it read the facts, and the Plan does not set spec.gates.
	unread []v1.UpgradeFinding
}

// problem is the reason why a Plan cannot run. stalled is true if manual action is required.
type problem struct {
	reason, message string
	stalled         bool
}

// versionOf returns the version of a Plan, or "" if none is known. The found parameter is the last result from the
// Plan's channel. While the channel is unavailable, a new leader uses the version in the Plan's status. That version
// also comes from the channel.
func versionOf(o *v1.Plan, found release.Result) string {
	version := cmp.Or(o.Spec.Version, found.Version)
	was := meta.FindStatusCondition(o.Status.Conditions, v1.ConditionLatestResolved)
	if version == "" && was != nil && was.Reason == v1.ReasonChannel && was.ObservedGeneration == o.Generation {
		return o.Status.LatestVersion
	}
	return version
}

// resolve returns a Plan with its version, hash and revision. The found parameter is the last result from the Plan's
// channel.
func resolve(o *v1.Plan, found release.Result, secrets map[string]string) resolved {
	version := versionOf(o, found)
	r := resolved{object: o, version: version}
	r.plan = rollout.Plan{Name: o.Name, UID: string(o.UID), Generation: o.Generation, Spec: o.Spec,
		Version: rollout.Version(version)}
	switch {
	case o.Namespace != v1.PlansNamespace:
		r.problem = &problem{v1.ReasonWrongNamespace,
			"plans are only run in the namespace " + v1.PlansNamespace + ": create it there", true}
	case o.Spec.ClusterName != "" || o.Spec.ClusterSelector != nil:
		r.problem = &problem{v1.ReasonInvalidPlan, "clusterName and clusterSelector are only for plans on a hub: remove them",
			true}
	case version == "" && found.Err != nil:
		r.problem = &problem{v1.ReasonChannelFailed, "the channel does not lead to a version: " + found.Err.Error(), false}
	case version == "":
		r.problem = &problem{v1.ReasonChannelFailed, "the channel is being asked", false}
	}
	for _, s := range o.Spec.Secrets {
		if _, there := secrets[s.Name]; !there && !s.IgnoreUpdates && r.problem == nil {
			r.problem = &problem{v1.ReasonSecretNotFound,
				fmt.Sprintf("Secret %s is not in the namespace %s: create it, or remove it from the plan", s.Name,
					o.Namespace), true}
		}
	}
	hash, err := rollout.Hash(&o.Spec.NodeWork, r.plan.Version, secrets)
	if err != nil && r.problem == nil {
		r.problem = &problem{v1.ReasonInvalidPlan, err.Error(), true}
	}
	r.plan.Hash = hash
	if r.plan.Revision, err = rollout.Revision(hash, &o.Spec.PlanPace); err != nil && r.problem == nil {
		r.problem = &problem{v1.ReasonInvalidPlan, err.Error(), true}
	}
	return r
}
