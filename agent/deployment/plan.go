// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// stuckMargin is added to the sum of the progress deadlines of all replicas. If no Deployment controller reports
// progress within the total, the change fails.
const stuckMargin = 30 * time.Second

// observed is the state that determines the next step.
type observed struct {
	record record
	live   *appsv1.Deployment
	// nodes is the number of nodes in the member, or 0 if it is unknown.
	nodes int32
	now   time.Time
}

// act is an action to take next.
type act int

const (
	stay    act = iota // wait for a change or until step.again has passed
	write              // write step.record
	apply              // apply record.Wanted
	restore            // restore record.Previous
	explain            // find out why the change failed, and write step.record with the reason
	scale              // scale to step.replicas
)

// step is the next action, which may be to wait.
type step struct {
	act      act
	record   record
	replicas int32
	again    time.Duration // time after which the step may change without an event; 0 if only an event can change it
}

// next determines the next step. It has no side effects, and its input is stored in the member. Any replica can
// therefore continue where another replica stopped.
func next(o observed) step {
	r, live := o.record, digestOf(o.live)
	to := func(p phase) step {
		after := record{Phase: p, Digest: r.Digest, Message: r.Message}
		if p == done {
			after.Message = ""
		}
		return step{act: write, record: after}
	}
	switch r.Phase {
	case pending:
		if live == r.Digest && r.Previous == nil {
			return to(done) // a manifest was applied manually in between
		}
		begun := r
		begun.Phase, begun.From, begun.Started = applying, live, o.now
		if begun.Previous == nil {
			begun.Previous = snapshot(o.live)
		}
		return step{act: write, record: begun}
	case applying:
		return nextApplying(o, to)
	case failed:
		before := r.previousDigest()
		switch {
		case live == r.Digest && live == before:
			return to(done) // the change was reverted, and there is no previous Deployment to restore
		case live == r.Digest, live == r.From && live != before:
			return step{act: restore}
		}
		return to(undone)
	case undone, rejected:
		if live == r.Digest {
			return to(done) // a user has applied another Deployment; it is kept
		}
	}
	// A Deployment that a user has scaled to 0 stays at 0, as it would with a HorizontalPodAutoscaler. Otherwise, the
	// leader would undo the scaling just before it stops.
	if want, known := o.replicas(o.live); known && replicasOf(o.live) != want && replicasOf(o.live) != 0 {
		return step{act: scale, replicas: want}
	}
	return step{}
}

func nextApplying(o observed, to func(phase) step) step {
	r, live := o.record, digestOf(o.live)
	switch {
	case live != r.Digest && live == r.From:
		return step{act: apply}
	case live != r.Digest, rolledOut(o.live):
		return to(done)
	}
	left := r.Started.Add(progressDeadline(o.live)).Sub(o.now)
	if deadlineExceeded(o.live) || left <= 0 {
		if r.previousDigest() == r.Digest {
			return to(done) // the report says that the Deployment's pods are not ready
		}
		after := r
		after.Phase, after.Wanted = failed, nil
		return step{act: explain, record: after}
	}
	return step{again: left}
}

// replicas returns the desired number of replicas of a Deployment, and reports whether the agent determines this
// number.
func (o observed) replicas(d *appsv1.Deployment) (want int32, known bool) {
	if d.Annotations[v1.AnnotationAgentReplicas] != v1.AgentReplicasByNodes || o.nodes == 0 {
		return 0, false
	}
	return min(o.nodes, 2), true
}

// replicasOf returns the number of replicas of a Deployment. The default is 1.
func replicasOf(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// rolledOut reports whether all pods belong to this generation of the Deployment and are ready.
func rolledOut(d *appsv1.Deployment) bool {
	want, s := replicasOf(d), d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.Replicas == want &&
		s.AvailableReplicas == want
}

// deadlineExceeded reports whether this generation has exceeded its progress deadline.
func deadlineExceeded(d *appsv1.Deployment) bool {
	if d.Status.ObservedGeneration < d.Generation {
		return false
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse &&
			c.Reason == "ProgressDeadlineExceeded" {
			return true
		}
	}
	return false
}

// progressDeadline returns the time limit for a change while no controller reports progress.
func progressDeadline(d *appsv1.Deployment) time.Duration {
	deadline := int32(600) // the Kubernetes default
	if d.Spec.ProgressDeadlineSeconds != nil {
		deadline = *d.Spec.ProgressDeadlineSeconds
	}
	return time.Duration(deadline)*time.Duration(replicasOf(d))*time.Second + stuckMargin
}

// snapshot returns the fields of a Deployment that a rollback must restore.
func snapshot(d *appsv1.Deployment) []byte {
	kept := appsv1.Deployment{Spec: appsv1.DeploymentSpec{
		Replicas: d.Spec.Replicas, Strategy: d.Spec.Strategy, Template: d.Spec.Template,
		ProgressDeadlineSeconds: d.Spec.ProgressDeadlineSeconds,
	}}
	kept.Annotations = setAnnotations(nil, d)
	raw, err := json.Marshal(kept)
	if err != nil { // cannot fail, because the Deployment was decoded from JSON or protobuf
		panic(err)
	}
	return raw
}

// setAnnotations returns a copy of the annotations in "all". The hub's annotations in the copy are taken from the
// Deployment "from". If "from" lacks an annotation that only the hub sets, the copy lacks it as well.
func setAnnotations(all map[string]string, from *appsv1.Deployment) map[string]string {
	out := map[string]string{}
	maps.Copy(out, all)
	for _, key := range []string{v1.AnnotationAgentReplicas, v1.AnnotationNodeAgent, v1.AnnotationDirectAccess} {
		delete(out, key)
		if value, ok := from.Annotations[key]; ok {
			out[key] = value
		}
	}
	return out
}

func report(o observed) *protocol.Deployment {
	r := o.record
	out := &protocol.Deployment{Digest: digestOf(o.live), RolledOut: rolledOut(o.live)}
	if (r.Phase == undone || r.Phase == rejected) && r.Digest != out.Digest {
		out.Failed, out.Rejected, out.Message = r.Digest, r.Phase == rejected, r.Message
	}
	return out
}

// whyNotReady returns the reason why the pods with the given digest are not ready, if their status contains one.
func whyNotReady(pods []corev1.Pod, digest string) string {
	const unconnected = "its pods did not become ready: the agent in them did not connect to the hub in time"
	none := true
	for i := range pods {
		p := &pods[i]
		if p.Annotations[v1.AnnotationAgentDigest] != digest {
			continue
		}
		none = false
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil && w.Reason != "ContainerCreating" {
				return "pod " + p.Name + ": " + w.Reason + ": " + w.Message
			}
			if t := c.State.Terminated; t != nil {
				return "pod " + p.Name + ": " + t.Reason + ": " + t.Message
			}
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
				return "pod " + p.Name + ": " + c.Reason + ": " + c.Message
			}
		}
		if p.Spec.NodeName == "" {
			return "pod " + p.Name + " was not scheduled on a node"
		}
	}
	if none {
		return "no pod of it was created"
	}
	return unconnected
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// patch returns a patch that changes the live Deployment to the target. The patch replaces whole fields instead of
// merging them. A field that a user has removed from spec.agent is therefore removed, regardless of its field manager.
// The patch fails if the Deployment has changed since it was read.
func (o observed) patch(target *appsv1.Deployment) ([]byte, error) {
	replicas := replicasOf(target)
	if want, known := o.replicas(target); known {
		replicas = want
	} else if target.Spec.Replicas == nil {
		replicas = replicasOf(o.live)
	}
	template := target.Spec.Template.DeepCopy()
	template.CreationTimestamp = metav1.Time{}
	return json.Marshal([]operation{
		{Op: "add", Path: "/metadata/resourceVersion", Value: o.live.ResourceVersion},
		{Op: "add", Path: "/metadata/annotations", Value: setAnnotations(o.live.Annotations, target)},
		{Op: "add", Path: "/spec/replicas", Value: replicas},
		{Op: "add", Path: "/spec/strategy", Value: target.Spec.Strategy},
		{Op: "add", Path: "/spec/progressDeadlineSeconds", Value: target.Spec.ProgressDeadlineSeconds},
		{Op: "add", Path: "/spec/template", Value: template},
	})
}

func (o observed) scalePatch(replicas int32) ([]byte, error) {
	return json.Marshal([]operation{
		{Op: "add", Path: "/metadata/resourceVersion", Value: o.live.ResourceVersion},
		{Op: "add", Path: "/spec/replicas", Value: replicas},
	})
}
