// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// nodeNumbers holds the values that a nodeTally needs from a node.
type nodeNumbers struct {
	ready        bool
	distribution string // one of a few constants, or empty
	capacity     amounts
	allocatable  amounts
}

// nodeTally counts nodes and sums their resources.
type nodeTally struct {
	tally[*corev1.Node, nodeNumbers]
	total, ready          int32 // guarded by tally.mu, as are the fields below
	capacity, allocatable amounts
	distributions         map[string]int64
}

func newNodeTally(seen func()) *nodeTally {
	t := &nodeTally{distributions: make(map[string]int64)}
	t.count = t.add
	t.begin(readNode, seen)
	return t
}

func (t *nodeTally) add(n nodeNumbers, sign int64) {
	t.total += int32(sign)
	if n.ready {
		t.ready += int32(sign)
	}
	t.capacity.add(n.capacity, sign)
	t.allocatable.add(n.allocatable, sign)
	t.distributions[n.distribution] += sign
}

// nodes returns the report's section about nodes, and the most common distribution of the nodes.
func (t *nodeTally) nodes() (protocol.Nodes, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	distribution, most := "", int64(0)
	for name, n := range t.distributions {
		if n > most || n == most && name > distribution {
			distribution, most = name, n
		}
	}
	return protocol.Nodes{
		Total: t.total, Ready: t.ready,
		Capacity: t.capacity.strings(), Allocatable: t.allocatable.strings(),
	}, distribution
}

func readNode(node *corev1.Node) nodeNumbers {
	return nodeNumbers{
		ready:        nodeReady(node.Status.Conditions),
		distribution: nodeDistribution(node),
		capacity:     amountsOf(node.Status.Capacity, maxOfNode),
		allocatable:  amountsOf(node.Status.Allocatable, maxOfNode),
	}
}

func nodeReady(conditions []corev1.NodeCondition) bool {
	for i := range conditions {
		if conditions[i].Type == corev1.NodeReady {
			return conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}

// distributionPlain is reported for a cluster that shows no signs of a specific distribution.
const distributionPlain = "kubernetes"

// versionDistribution returns the distribution that the API server's version indicates, or "" if it is unknown. An
// example of such a version is "v1.36.3+k3s1".
func versionDistribution(version string) string {
	for _, sign := range []struct{ text, distribution string }{
		{"+k3s", "k3s"},
		{"+rke2", "rke2"},
		{"+k0s", "k0s"},
		{"-eks-", "eks"},
		{"-gke.", "gke"},
		{"-aliyun", "ack"},
		{"+vmware", "tkg"},
		{"-mirantis", "mke"},
		{"+IKS", "iks"},
	} {
		if strings.Contains(version, sign.text) {
			return sign.distribution
		}
	}
	return ""
}

// nodeDistribution returns the distribution that a node's fields indicate, or "" if it is unknown.
func nodeDistribution(node *corev1.Node) string {
	for _, sign := range []struct{ label, distribution string }{
		{"kubernetes.azure.com/cluster", "aks"},
		{"eks.amazonaws.com/nodegroup", "eks"},
		{"cloud.google.com/gke-nodepool", "gke"},
		{"doks.digitalocean.com/node-id", "doks"},
		{"lke.linode.com/pool-id", "lke"},
		{"node.openshift.io/os_id", "openshift"},
		{"microk8s.io/cluster", "microk8s"},
		{"minikube.k8s.io/name", "minikube"},
		{"harvesterhci.io/managed", "harvester"},
	} {
		if _, ok := node.Labels[sign.label]; ok {
			return sign.distribution
		}
	}
	switch {
	case strings.HasPrefix(node.Spec.ProviderID, "kind://"):
		return "kind"
	case strings.HasPrefix(node.Status.NodeInfo.OSImage, "Talos"):
		return "talos"
	case node.Name == "docker-desktop":
		return "docker-desktop"
	}
	return ""
}
