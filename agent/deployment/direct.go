// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"net"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

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
