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
	"net"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// nodeAgentsOn is the value of v1.AnnotationNodeAgent if there are node agents.
const nodeAgentsOn = "true"

// nodesEvery is the interval at which a DaemonSet is applied again to repair it.
const nodesEvery = time.Minute

// nodesReadyWithin is the time within which at least one of the DaemonSet's pods must become ready after a change.
const nodesReadyWithin = 5 * time.Minute

// daemonSet returns the DaemonSet of node agents that accompanies the agent's Deployment. Fields that the hub
// controls are copied from the Deployment. The other fields are the same as for the agent, except that the pods use
// the node's network. Node agents run on every node that the Deployment may use, regardless of the node's taints. To
// keep the agent's rights away from nodes of other users, give the Deployment a nodeSelector or a required node
// affinity.
func daemonSet(d *appsv1.Deployment) *appsv1.DaemonSet {
	from, pod := d.Spec.Template.Spec, podBeside(d, "node")
	maps.Copy(pod.NodeSelector, from.NodeSelector)
	pod.Affinity = nil
	if a := from.Affinity; a != nil && a.NodeAffinity != nil &&
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution,
		}}
	}
	return beside(d, protocol.NodeAgentName, pod)
}

// podBeside returns the spec of a pod that runs a subcommand of the agent in its node's network, on any Linux node.
// Except for the node selector, the fields that the hub controls are copied from the Deployment.
func podBeside(d *appsv1.Deployment, command string) corev1.PodSpec {
	pod := ownPod()
	copyHubFields(&pod, &d.Spec.Template.Spec)
	pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSDefault
	pod.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.NodeSelector = map[string]string{corev1.LabelOSStable: "linux"} // the image exists only for Linux
	main := &pod.Containers[0]
	main.Command = append(main.Command, command)
	main.Ports, main.LivenessProbe, main.ReadinessProbe = nil, nil, nil // any port would be open on the node itself
	return pod
}

// beside returns a DaemonSet of pods that accompany the agent's Deployment but do not belong to it.
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

// nodesEnd is how long pods may take to stop after their DaemonSet has been deleted. Node agents are notified of the
// deletion immediately, and from then on take no part in elections.
const nodesEnd = time.Minute

// daemonSetKeeper maintains one DaemonSet that accompanies the agent's Deployment while this replica is the leader.
type daemonSetKeeper struct {
	// wanted returns the DaemonSet that should accompany a Deployment, or nil if there should be none.
	wanted func(*appsv1.Deployment) *appsv1.DaemonSet
	client *kube.DaemonSet
	lease  *kube.Lease // Lease that the DaemonSet's pods use to elect a leader; nil if they elect none
	// nowhere is the message to report if the DaemonSet matches no nodes, or "" if that is not a problem.
	nowhere string

	kept
}

// kept is the state of a DaemonSet that the leader keeps in memory.
type kept struct {
	removed bool      // neither the DaemonSet nor the Lease of its pods exists
	ending  time.Time // when pods of a deleted DaemonSet will have stopped
	applied []byte    // the JSON of the DaemonSet that was last applied
	taken   bool      // whether the API server has accepted the applied DaemonSet
	at      time.Time // when the DaemonSet was last applied
	since   time.Time // when the DaemonSet was first applied in this form
	problem string    // why there are no pods even though there should be some
}

// nodeAgents returns the DaemonSet of node agents, or nil if the Deployment requests none.
func nodeAgents(live *appsv1.Deployment) *appsv1.DaemonSet {
	if live.Annotations[v1.AnnotationNodeAgent] != nodeAgentsOn {
		return nil
	}
	return daemonSet(live)
}

// keep updates the DaemonSet to match the agent's Deployment once the Deployment has been rolled out, so that the
// DaemonSet's pods run only versions that have already connected to the hub. keep returns the time until the next
// check, or 0 to wait for the next change.
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
		return 0, err // retried immediately
	case err != nil:
		if !errors.Is(err, context.Canceled) { // otherwise this replica has only stopped being the leader
			n.problem = protocol.Cut(err.Error(), maxMessage)
		}
		return 0, err
	case again && n.taken:
		if n.problem = withoutPods(stored.Status, now.Sub(n.since)); stored.Status.ObservedGeneration > 0 &&
			stored.Status.DesiredNumberScheduled == 0 {
			n.problem = n.nowhere
		}
	default: // a new DaemonSet briefly has no pods
		n.problem = ""
	}
	n.removed, n.ending, n.applied, n.taken, n.at = false, time.Time{}, want, err == nil, now
	if !again {
		n.since = now
	}
	return nodesEvery, nil
}

// withoutPods returns a message if a DaemonSet matches nodes but has no pods, or if none of its pods has become
// ready within nodesReadyWithin.
func withoutPods(s appsv1.DaemonSetStatus, applied time.Duration) string {
	switch {
	case s.DesiredNumberScheduled == 0 || s.NumberReady > 0:
		return ""
	case s.CurrentNumberScheduled == 0:
		return fmt.Sprintf("none of %d pods exists: the namespace does not allow pods on the nodes' network",
			s.DesiredNumberScheduled)
	case applied < nodesReadyWithin:
		return ""
	}
	return fmt.Sprintf("none of %d pods is ready: run in the member: kubectl -n "+protocol.AgentNamespace+" get pods",
		s.DesiredNumberScheduled)
}

// remove removes the DaemonSet, and then the Lease that its pods use to elect a leader, because pods that are still
// running would create the Lease again. Each new leader removes both once. remove returns the time until the next
// check, or 0 to wait for the next change. An older manifest grants no rights to the DaemonSet. In that case, neither
// the DaemonSet nor the Lease exists.
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

// controlPlane is the label of nodes that run an API server.
const controlPlane = "node-role.kubernetes.io/control-plane"

// directSet returns the DaemonSet whose pods review users' tokens for API servers, or nil if the Deployment does not
// request this DaemonSet. The pods run on control plane nodes, regardless of the Deployment's other node settings. They
// use their own account, which can read the hub's data for direct access, but none of the agent's data.
func directSet(live *appsv1.Deployment) *appsv1.DaemonSet {
	if live.Annotations[v1.AnnotationDirectAccess] != string(v1.AuthorizedEndpointAPIServer) {
		return nil
	}
	pod := podBeside(live, "direct")
	pod.ServiceAccountName = protocol.DirectName
	pod.TerminationGracePeriodSeconds = nil // use the Kubernetes default
	pod.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: controlPlane, Operator: corev1.NodeSelectorOpExists}},
		}}}}}
	main := &pod.Containers[0]
	host, port, err := net.SplitHostPort(protocol.DirectAddress)
	if err != nil { // cannot fail, because the selector is constant
		panic(err)
	}
	main.ReadinessProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: host, Port: intstr.Parse(port),
			Scheme: corev1.URISchemeHTTPS, Path: "/readyz"}},
		PeriodSeconds: 10,
	}
	main.Env = []corev1.EnvVar{{Name: protocol.EnvNamespace, Value: live.Namespace}}
	main.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"),
			corev1.ResourceMemory: resource.MustParse("32Mi")},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("128Mi")},
	}
	return beside(live, protocol.DirectName, pod)
}
