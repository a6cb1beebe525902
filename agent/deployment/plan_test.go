// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// live returns a Deployment with a digest as an API server stores it: rolled out, with two replicas.
func live(digest string, more ...func(*appsv1.Deployment)) *appsv1.Deployment {
	two, deadline := int32(2), int32(120)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Generation: 3,
			Annotations: map[string]string{v1.AnnotationAgentReplicas: v1.AgentReplicasByNodes}},
		Spec: appsv1.DeploymentSpec{
			Replicas: &two, ProgressDeadlineSeconds: &deadline,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1.AnnotationAgentDigest: digest}}},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 3, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2},
	}
	for _, change := range more {
		change(d)
	}
	return d
}

func unready(d *appsv1.Deployment)    { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 1 }
func unobserved(d *appsv1.Deployment) { d.Status.ObservedGeneration = 2 }
func givenUp(d *appsv1.Deployment) {
	d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse,
		Reason: "ProgressDeadlineExceeded"}}
}

func TestNext(t *testing.T) {
	t.Parallel()
	before := snapshot(live("old"))
	change := func(p phase, since time.Duration) record {
		return record{Phase: p, Digest: "new", Wanted: []byte("{}"), From: "old", Previous: before, Started: noon.Add(-since)}
	}
	for name, tc := range map[string]struct {
		record record
		live   *appsv1.Deployment
		nodes  int32
		want   step
		phase  phase // phase of want.record
	}{
		"nothing to do": {live: live("old"), want: step{}},
		"a second node, and one replica": {live: live("old", func(d *appsv1.Deployment) { d.Spec.Replicas = nil }), nodes: 2,
			want: step{act: scale, replicas: 2}},
		"a user scales it to 0": {live: live("old", func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32) }), nodes: 2,
			want: step{}},
		"one of two nodes is removed": {live: live("old"), nodes: 1, want: step{act: scale, replicas: 1}},
		"many nodes":                  {live: live("old"), nodes: 500, want: step{}},
		"the number of nodes is unknown": {live: live("old", func(d *appsv1.Deployment) { d.Spec.Replicas = nil }),
			want: step{}},
		"the spec says how many replicas": {live: live("old", func(d *appsv1.Deployment) { d.Annotations = nil }), nodes: 1,
			want: step{}},
		"the hub has sent another Deployment": {record: record{Phase: pending, Digest: "new"}, live: live("old"),
			want: step{act: write}, phase: applying},
		"the hub has sent the current Deployment": {record: record{Phase: pending, Digest: "old"}, live: live("old"),
			want: step{act: write}, phase: done},
		"a change begins": {record: change(applying, 0), live: live("old"), want: step{act: apply}},
		"a change that was interrupted before the write": {record: change(applying, time.Hour), live: live("old"),
			want: step{act: apply}},
		"a change that no controller has observed": {record: change(applying, time.Second), live: live("new", unobserved),
			want: step{again: 269 * time.Second}},
		"a change in progress": {record: change(applying, time.Minute), live: live("new", unready),
			want: step{again: 210 * time.Second}},
		"replicas wait for the change": {record: change(applying, time.Minute), live: live("new", unready), nodes: 1,
			want: step{again: 210 * time.Second}},
		"a change is rolled out": {record: change(applying, time.Minute), live: live("new"), want: step{act: write},
			phase: done},
		"a change that exceeded its deadline": {record: change(applying, time.Minute), live: live("new", unready, givenUp),
			want: step{act: explain}, phase: failed},
		"the previous change exceeded its deadline": {record: change(applying, 0), live: live("new", unready, givenUp,
			unobserved),
			want: step{again: 270 * time.Second}},
		"a change without any progress": {record: change(applying, 270*time.Second), live: live("new", unready),
			want: step{act: explain}, phase: failed},
		"another client changes it in between": {record: change(applying, time.Minute), live: live("other", unready),
			want: step{act: write}, phase: done},
		"a failed change is live": {record: change(failed, time.Hour), live: live("new", unready), want: step{act: restore}},
		"a failed change was rolled back": {record: change(failed, time.Hour), live: live("old", unready),
			want: step{act: write}, phase: undone},
		"a rejected change replaced another one": {record: record{Phase: failed, Digest: "newer", From: "new",
			Previous: before}, live: live("new", unready), want: step{act: restore}},
		"a reverted change is not ready": {
			record: record{Phase: applying, Digest: "old", From: "new", Previous: before, Started: noon.Add(-time.Minute)},
			live:   live("old", unready, givenUp), want: step{act: write}, phase: done,
		},
		"a reverted change counts as failed": {
			record: record{Phase: failed, Digest: "old", From: "new", Previous: before},
			live:   live("old", unready), want: step{act: write}, phase: done,
		},
		"an undone change": {record: change(undone, time.Hour), live: live("old"), want: step{}},
		"an undone change and fewer nodes": {record: change(undone, time.Hour), live: live("old"), nodes: 1,
			want: step{act: scale, replicas: 1}},
		"an undone change is applied by hand": {record: change(undone, time.Hour), live: live("new", unready),
			want: step{act: write}, phase: done},
		"a rejected change": {record: change(rejected, time.Hour), live: live("old"), want: step{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := next(observed{record: tc.record, live: tc.live, nodes: tc.nodes, now: noon})
			if got.act != tc.want.act || got.again != tc.want.again || got.replicas != tc.want.replicas ||
				got.record.Phase != tc.phase {
				t.Errorf("got %+v, want another step", got)
			}
			if got.act == write && got.record.Digest != tc.record.Digest {
				t.Errorf("got the digest %s in the record, want another one", got.record.Digest)
			}
		})
	}
}

func TestChangeThatReplacesAnotherRollsBackToTheStateBeforeBoth(t *testing.T) {
	t.Parallel()
	r := record{Phase: pending, Digest: "newer", Wanted: []byte("{}"), Previous: snapshot(live("old"))}
	got := next(observed{record: r, live: live("new", unready), now: noon})
	if got.act != write || got.record.From != "new" || got.record.previousDigest() != "old" {
		t.Errorf("got %+v", got)
	}
	if refused := got.record.refused("why"); refused.Phase != failed || refused.Message != "why" {
		t.Errorf("refused: %+v", refused)
	}
	takenBack := record{Phase: applying, Digest: "old", From: "new", Previous: snapshot(live("old"))}
	if refused := takenBack.refused("why"); refused.Phase != rejected {
		t.Errorf("got the record %+v, want that it does not restore the rejected Deployment", refused)
	}
	fresh := next(observed{record: record{Phase: pending, Digest: "new"}, live: live("old"), now: noon}).record
	if refused := fresh.refused("why"); refused.Phase != rejected || fresh.previousDigest() != "old" {
		t.Errorf("refused: %+v", refused)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	failure := record{Phase: undone, Digest: "new", Message: "why"}
	if r := report(observed{record: failure, live: live("old")}); r.Digest != "old" || !r.RolledOut || r.Failed != "new" ||
		r.Rejected || r.Message != "why" {
		t.Errorf("got %+v", r)
	}
	if r := report(observed{record: failure, live: live("new", unready)}); r.Digest != "new" || r.RolledOut ||
		r.Failed != "" {
		t.Errorf("got %+v, want no failure of the current Deployment", r)
	}
	failure.Phase = rejected
	if r := report(observed{record: failure, live: live("old", unobserved)}); !r.Rejected || r.RolledOut {
		t.Errorf("got %+v", r)
	}
}

func TestWhyNotReady(t *testing.T) {
	t.Parallel()
	pod := func(digest string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p",
			Annotations: map[string]string{v1.AnnotationAgentDigest: digest}}, Status: status}
	}
	onNode := func(p corev1.Pod) corev1.Pod { p.Spec.NodeName = "n"; return p }
	waiting := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}}
	unscheduled := corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/3 nodes are available"}}}
	for name, tc := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"no pod":                  {nil, "no pod of it was created"},
		"a pod of another digest": {[]corev1.Pod{pod("old", waiting)}, "no pod of it was created"},
		"an image that is not there": {[]corev1.Pod{pod("old", unscheduled), pod("new", waiting)},
			"ImagePullBackOff: no such image"},
		"no node":      {[]corev1.Pod{pod("new", unscheduled)}, "Unschedulable: 0/3 nodes"},
		"no scheduler": {[]corev1.Pod{pod("new", corev1.PodStatus{})}, "pod p was not scheduled on a node"},
		"a pod that does not connect": {[]corev1.Pod{onNode(pod("new",
			corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{}}}))},
			"did not connect to the hub"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := whyNotReady(tc.pods, "new"); !strings.Contains(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
