// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

// The names of the checks.
const (
	// CheckKubernetesVersion finds skipped minor versions and downgrades.
	CheckKubernetesVersion = "KubernetesVersion"
	// CheckKubeletVersion finds kubelets whose version is not supported together with the new version.
	CheckKubeletVersion = "KubeletVersion"
	// CheckNodesReady finds nodes that are not ready.
	CheckNodesReady = "NodesReady"
	// CheckDisruptionBudgets finds PodDisruptionBudgets that allow no eviction.
	CheckDisruptionBudgets = "DisruptionBudgets"
	// CheckAdmissionWebhooks finds webhooks that reject requests and have no ready endpoints.
	CheckAdmissionWebhooks = "AdmissionWebhooks"
	// CheckRemovedAPIs finds uses of APIs that the new version does not serve.
	CheckRemovedAPIs = "RemovedAPIs"
	// CheckNodeCapacity finds nodes whose pods do not fit on the other nodes.
	CheckNodeCapacity = "NodeCapacity"
	// CheckCertificates finds certificates that expire soon.
	CheckCertificates = "Certificates"
	// CheckEtcdSnapshots finds clusters whose etcd has no recent snapshot. Only the plugin runs it.
	CheckEtcdSnapshots = "EtcdSnapshots"
)

// Checks returns the names of the checks in the order of their findings.
func Checks() []string {
	return []string{CheckKubernetesVersion, CheckKubeletVersion, CheckNodesReady, CheckDisruptionBudgets,
		CheckAdmissionWebhooks, CheckRemovedAPIs, CheckNodeCapacity, CheckCertificates, CheckEtcdSnapshots}
}

const (
	// MaxFindings is the maximum number of findings of a check. The last of them counts the others.
	MaxFindings = 10
	// MaxText is the maximum size of each text of a finding, in bytes.
	MaxText = 512
)

// Finding is a reason why an upgrade is not safe.
type Finding struct {
	// Check is the name of the check.
	Check string `json:"check"`
	// Object is the object, such as "node/worker-1".
	Object string `json:"object"`
	// Cause says what is wrong.
	Cause string `json:"cause"`
	// Remedy says how to fix it.
	Remedy string `json:"remedy"`
	// Unchecked reports whether the check could not read the facts, so the upgrade may or may not be safe.
	Unchecked bool `json:"unchecked,omitempty"`
}
