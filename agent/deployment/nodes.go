// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// nodeAgentsOn is the value of v1.AnnotationNodeAgent where there are node agents.
const nodeAgentsOn = "true"

// nodesEvery is how often a DaemonSet is applied again, which repairs it.
const nodesEvery = time.Minute

// nodesReadyWithin is how long its pods may take after a change until one of them runs.
const nodesReadyWithin = 5 * time.Minute

// daemonSet returns the DaemonSet of node agents beside a Deployment of the agent. What the hub decides on is as in the
// Deployment; what it cannot decide on is as the agent has it, but for the network, which is the node's. Node agents
// run on every node that the Deployment may use, whatever its taints: a nodeSelector, or what an affinity requires of
// nodes, may keep the agent's rights from nodes of others.
func daemonSet(d *appsv1.Deployment) *appsv1.DaemonSet {
	from, pod := d.Spec.Template.Spec, ownPod()
	pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSDefault
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.PriorityClassName, pod.ImagePullSecrets = from.PriorityClassName, from.ImagePullSecrets
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"} // the image is of no other system
	maps.Copy(pod.NodeSelector, from.NodeSelector)
	pod.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds
	if a := from.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	main := &pod.Containers[0]
	main.Command = append(main.Command, "node")
	main.Ports, main.LivenessProbe, main.ReadinessProbe = nil, nil, nil // a port would be one of the node
	for i := range from.Containers {
		if c := &from.Containers[i]; c.Name == main.Name {
			main.Image, main.Env, main.Resources = c.Image, c.Env, c.Resources
		}
	}
	return beside(d, protocol.NodeAgentName, pod)
}

// beside returns a DaemonSet of pods that go with a Deployment of the agent, and do not belong to it.
func beside(d *appsv1.Deployment, name string, pod corev1.PodSpec) *appsv1.DaemonSet {
	few := intstr.FromString("10%")
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: d.Namespace, Labels: protocol.AgentLabels()},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{protocol.LabelName: name}},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				Type:          appsv1.RollingUpdateDaemonSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &few},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels:      map[string]string{protocol.LabelName: name, v1.LabelManagedBy: v1.ManagedBy},
					Annotations: map[string]string{v1.AnnotationAgentDigest: digestOf(d)},
				},
				Spec: pod,
			},
		},
	}
}

// nodesEnd is how long pods have to end after their DaemonSet was deleted. Node agents are told at once, and take part
// in no election from then on.
const nodesEnd = time.Minute

// daemonSetKeeper keeps one DaemonSet beside the agent's Deployment, while this replica leads.
type daemonSetKeeper struct {
	// wanted returns the DaemonSet beside a Deployment, nil for none.
	wanted func(*appsv1.Deployment) *appsv1.DaemonSet
	client *kube.DaemonSet
	lease  *kube.Lease // by which its pods elect one, nil for none
	// nowhere is the problem where it is for none of the nodes, empty if that is none.
	nowhere string

	kept
}

// kept is what the leader knows of a DaemonSet.
type kept struct {
	removed bool      // there is none, nor the Lease of the pods
	ending  time.Time // until when pods of one that was deleted may run
	applied []byte    // the last that was applied, as JSON
	taken   bool      // whether the API server took it
	at      time.Time // when that was
	since   time.Time // when it was applied for the first time
	problem string    // why there are no pods although there should be
}

// nodeAgents returns the DaemonSet of node agents, if a Deployment says that there are some.
func nodeAgents(live *appsv1.Deployment) *appsv1.DaemonSet {
	if live.Annotations[v1.AnnotationNodeAgent] != nodeAgentsOn {
		return nil
	}
	return daemonSet(live)
}

// keep makes the DaemonSet follow the agent's Deployment, once that is rolled out: its pods never run what has not
// shown that it connects. It returns when to look again, 0 for the next change.
func (n *daemonSetKeeper) keep(ctx context.Context, live *appsv1.Deployment, now time.Time) (time.Duration, error) {
	set := n.wanted(live)
	if set == nil {
		return n.remove(ctx, now)
	}
	if !rolledOut(live) {
		return 0, nil
	}
	want, err := json.Marshal(set)
	if err != nil {
		return 0, fmt.Errorf("encode DaemonSet: %w", err)
	}
	again := bytes.Equal(want, n.applied)
	if left := n.at.Add(nodesEvery).Sub(now); again && left > 0 {
		return left, nil
	}
	stored, err := n.client.Apply(ctx, want)
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		n.problem = protocol.Cut(err.Error(), maxMessage)
	case apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err):
		return 0, err // it is tried again at once
	case err != nil:
		if !errors.Is(err, context.Canceled) { // this replica leads no longer
			n.problem = protocol.Cut(err.Error(), maxMessage)
		}
		return 0, err
	case again && n.taken:
		if n.problem = withoutPods(stored.Status, now.Sub(n.since)); stored.Status.ObservedGeneration > 0 &&
			stored.Status.DesiredNumberScheduled == 0 {
			n.problem = n.nowhere
		}
	default: // a new one has no pods for a moment
		n.problem = ""
	}
	n.removed, n.ending, n.applied, n.taken, n.at = false, time.Time{}, want, err == nil, now
	if !again {
		n.since = now
	}
	return nodesEvery, nil
}

// withoutPods returns a message if a DaemonSet that has nodes has no pods, or if none of them has been ready since it
// was applied some minutes ago.
func withoutPods(s appsv1.DaemonSetStatus, applied time.Duration) string {
	switch {
	case s.DesiredNumberScheduled == 0 || s.NumberReady > 0:
		return ""
	case s.CurrentNumberScheduled == 0:
		return fmt.Sprintf("of %d pods none exists: the namespace does not let them onto the nodes' network",
			s.DesiredNumberScheduled)
	case applied < nodesReadyWithin:
		return ""
	}
	return fmt.Sprintf("of %d pods none is ready: see in the member: kubectl -n "+protocol.AgentNamespace+" get pods",
		s.DesiredNumberScheduled)
}

// remove removes the DaemonSet, once for each time that this replica leads, and then the Lease by which its pods elect
// one: while they run, they would make it again. It returns when to look again, 0 for the next change. An older
// manifest gives no right to the DaemonSet, and then there is neither.
func (n *daemonSetKeeper) remove(ctx context.Context, now time.Time) (time.Duration, error) {
	if n.problem = ""; n.removed {
		return 0, nil
	}
	if left := n.ending.Sub(now); left > 0 {
		return left, nil
	}
	err := n.client.Delete(ctx)
	if err == nil {
		n.kept = kept{ending: now.Add(nodesEnd)}
		return nodesEnd, nil
	}
	if apierrors.IsNotFound(err) && n.lease != nil {
		err = n.lease.Delete(ctx)
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return 0, err
	}
	n.kept = kept{removed: true}
	return 0, nil
}
