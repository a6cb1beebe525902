// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// distributionPlain is the distribution that is reported for a cluster without signs of a specific distribution.
const distributionPlain = "kubernetes"

// versionDistribution returns the distribution according to the API server's version, such as "v1.36.3+k3s1", or "" if
// it is unknown.
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

// nodeDistribution returns the distribution according to a node, or "" if it is unknown.
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
