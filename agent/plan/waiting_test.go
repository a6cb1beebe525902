// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/rollout"
)

func TestTheReasonWhyAPodWaits(t *testing.T) {
	container := func(reason, message string) corev1.PodStatus {
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: state}}}
	}
	unscheduled := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: "0/3 nodes are available: 1 Insufficient cpu",
	}}}
	warning := func(kind, about, reason, message string, second int) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: about + reason, Namespace: "drover-plans"}, Type: corev1.EventTypeWarning,
			Reason: reason, Message: message,
			InvolvedObject: corev1.ObjectReference{Kind: kind, UID: types.UID("uid-" + about)},
			LastTimestamp:  metav1.Unix(int64(second), 0),
		}
	}
	for name, tt := range map[string]struct {
		pod    *corev1.PodStatus // nil is none
		node   string
		events []*corev1.Event
		want   string
	}{
		"it is not scheduled": {pod: &unscheduled,
			want: "its pod has not started: it cannot be scheduled: 0/3 nodes are available: 1 Insufficient cpu"},
		"its image is not there": {pod: new(container("ErrImagePull", "not found")), node: "a",
			want: "its pod has not started: ErrImagePull: not found"},
		"its image's architecture": {pod: new(container("ErrImagePull", "no match for platform in manifest")), node: "a",
			want: "its pod has not started: ErrImagePull: no match for platform in manifest"},
		"its variables are of a Secret that is not there": {pod: new(container("CreateContainerConfigError", "")), node: "a",
			want: "its pod has not started: CreateContainerConfigError"},
		"it is being created": {pod: new(container("ContainerCreating", "")), node: "a", want: ""},
		"its volume cannot be mounted": {pod: new(container("ContainerCreating", "")), node: "a", events: []*corev1.Event{
			warning("Pod", "pod", "FailedScheduling", "was before", 9),
			warning("Pod", "pod", "FailedMount", `secret "s" not found`, 5),
			warning("Job", "job", "FailedCreate", "earlier", 1),
		}, want: `its pod has not started: secret "s" not found`},
		"a quota refuses it": {events: []*corev1.Event{
			warning("Job", "job", "FailedCreate", "exceeded quota: q", 2), warning("Job", "job", "Earlier", "else", 1),
			warning("Job", "other", "FailedCreate", "of another Job", 3),
		}, want: "its pod is not made: exceeded quota: q"},
		"it runs":          {pod: &corev1.PodStatus{Phase: corev1.PodRunning}, node: "a", want: ""},
		"there is no word": {want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &waits{pods: newStore(readPod, func() {}), events: newStore(readEvent, func() {})}
			if tt.pod != nil {
				w.pods.Wrote(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
					Name: "p", Namespace: "drover-plans", UID: "uid-pod", ResourceVersion: "1",
					OwnerReferences: []metav1.OwnerReference{{Kind: "Job", UID: "uid-job", Controller: new(true)}},
				}, Spec: corev1.PodSpec{NodeName: tt.node}, Status: *tt.pod})
			}
			for _, e := range tt.events {
				e.ResourceVersion = "1"
				w.events.Wrote(e)
			}
			job := knownJob{uid: "uid-job", Job: rollout.Job{State: rollout.Running}}
			w.explain([]knownJob{job})
			if got := w.withWaiting(job).Waiting; got != tt.want {
				t.Errorf("the Job waits because %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTheReasonIsKeptWhenThePodGoesAtTheDeadline(t *testing.T) {
	w := &waits{pods: newStore(readPod, func() {}), events: newStore(readEvent, func() {})}
	w.why = map[string]string{"j": notStarted + "no such image", "gone": "x"}
	running := knownJob{uid: "j", Job: rollout.Job{State: rollout.Running}}
	w.explain([]knownJob{running})
	failed := knownJob{uid: "j", overdue: true, Job: rollout.Job{State: rollout.Failed, Message: "the Job took longer"}}
	w.explain([]knownJob{failed})
	if got := w.withWaiting(failed).Message; !strings.HasPrefix(got, "the Job took longer; ") ||
		!strings.Contains(got, "no such image") {
		t.Errorf("the message is %q, want that the Job took longer, and why", got)
	}
	if len(w.why) != 1 {
		t.Errorf("%v is remembered, want nothing of Jobs that are gone", w.why)
	}
}

func TestTheOperatingSystemIsWhatTheKubeletSaysAndElseTheLabel(t *testing.T) {
	for name, tt := range map[string]struct{ kubelet, label, want string }{
		"the kubelet":          {"windows", "", "windows"},
		"the label":            {"", "windows", "windows"},
		"the kubelet and more": {"windows", "linux", "windows"},
		"neither":              {"", "", ""},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{OperatingSystem: tt.kubelet}}}
		n.Labels = map[string]string{corev1.LabelOSStable: tt.label}
		if got, _ := readNode(n); got.OS != tt.want {
			t.Errorf("%s: the node runs %q, want %q", name, got.OS, tt.want)
		}
	}
}
