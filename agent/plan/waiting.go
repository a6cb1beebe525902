// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/watch"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

// knownPod holds the fields of a Job's pod that explain why the Job is waiting.
type knownPod struct {
	uid, job  string // uid is the UID of the pod, and job is the UID of the pod's Job
	pending   bool   // whether none of the pod's containers has run
	scheduled bool
	why       string // why the pod is pending; empty if the pod's status contains no reason
}

// readPod returns false for pods that must not be stored: pods that belong to no Job, and pods that have terminated or
// are being deleted.
func readPod(o *corev1.Pod) (knownPod, bool) {
	owner := metav1.GetControllerOf(o)
	ended := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	if owner == nil || owner.Kind != "Job" || o.DeletionTimestamp != nil || ended {
		return knownPod{}, false
	}
	p := knownPod{
		uid: string(o.UID), job: string(owner.UID),
		pending: o.Status.Phase != corev1.PodRunning, scheduled: o.Spec.NodeName != "",
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			p.why = "it cannot be scheduled: " + c.Message
		}
	}
	for i := range o.Status.ContainerStatuses {
		w := o.Status.ContainerStatuses[i].State.Waiting
		if w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" { // these two reasons explain nothing
			p.why = strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
		}
	}
	p.why = protocol.Cut(p.why, maxCause)
	return p, true
}

// knownEvent is a warning about a Job or a pod.
type knownEvent struct {
	about, reason, message string // about is the UID of the object
	at                     time.Time
}

func readEvent(o *corev1.Event) (knownEvent, bool) {
	kind := o.InvolvedObject.Kind
	e := knownEvent{
		about: string(o.InvolvedObject.UID), reason: o.Reason, at: o.LastTimestamp.Time,
		message: protocol.Cut(strings.TrimPrefix(o.Message, "Error creating: "), maxCause),
	}
	if e.at.IsZero() { // an event that was written through events.k8s.io contains only EventTime
		e.at = o.EventTime.Time
	}
	if o.Series != nil {
		e.at = o.Series.LastObservedTime.Time
	}
	return e, o.Type == corev1.EventTypeWarning && (kind == "Pod" || kind == "Job")
}

// notStarted and notMade are prefixes of the reasons why Jobs are waiting.
const notStarted, notMade = "its pod has not started: ", "its pod was not created: "

// waits records why the pods of Jobs have not started.
type waits struct {
	pods   *watch.Store[*corev1.Pod, knownPod]
	events *watch.Store[*corev1.Event, knownEvent]
	why    map[string]string // reasons, by the UID of the Job
}

// explain records why the pods of Jobs have not started. If a pod is gone, the last reason is kept, because when a Job
// exceeds its deadline, Kubernetes deletes the Job's pod before it marks the Job as failed.
func (w *waits) explain(jobs []knownJob) {
	pods := map[string]knownPod{}
	for _, p := range w.pods.Values() {
		pods[p.job] = p
	}
	before := w.why
	w.why = map[string]string{}
	for i := range jobs {
		uid, why := jobs[i].uid, before[jobs[i].uid]
		p, there := pods[uid]
		switch {
		case jobs[i].State != rollout.Running:
		case there && !p.pending:
			why = ""
		case there:
			why = w.whyPending(p)
		case !strings.HasPrefix(why, notStarted):
			why = w.warning(notMade, uid, nil)
		}
		if why != "" {
			w.why[uid] = why
		}
	}
}

// whyPending returns the reason why a pod has not started. The reason comes from the pod's status or, if the status
// contains none, from the last warning about the pod.
func (w *waits) whyPending(p knownPod) string {
	if p.why != "" {
		return notStarted + p.why
	}
	return w.warning(notStarted, p.uid, func(e knownEvent) bool {
		return p.scheduled && e.reason == "FailedScheduling"
	})
}

// warning returns the last warning that still applies to an object, or "" if there is none.
func (w *waits) warning(what, uid string, over func(knownEvent) bool) string {
	var last knownEvent
	for _, e := range w.events.Values() {
		if e.about == uid && !e.at.Before(last.at) && (over == nil || !over(e)) {
			last = e
		}
	}
	if last.message == "" {
		return ""
	}
	return protocol.Cut(what+last.message, maxCause)
}

// withWaiting returns a Job with the reason why its pod has not started, or had not started when the Job failed.
func (w *waits) withWaiting(j knownJob) rollout.Job {
	why := w.why[j.uid]
	if j.State == rollout.Running {
		j.Waiting = why
	} else if j.overdue && why != "" {
		j.Message += "; " + why
	}
	return j.Job
}
