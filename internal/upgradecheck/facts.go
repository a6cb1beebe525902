// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgradecheck finds the reasons why a cluster is not ready for an upgrade of Kubernetes.
//
// Gather reads the facts from the cluster's API server, with the rights of the given client and without any writes.
// Check is a pure function of these facts. The agent calls both before a Plan begins, and the plugin calls both through
// the hub.
package upgradecheck

import (
	"time"

	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Target is the upgrade to check.
type Target struct {
	// Version is the Kubernetes version to install.
	Version string
	// Plan is the name of the Plan.
	Plan string
	// Nodes selects the nodes to upgrade.
	Nodes labels.Selector
	// Drain describes the eviction of the nodes' pods. If it is nil, no pods are evicted.
	Drain *v1.Drain
}

// Facts are the facts about a cluster that an upgrade depends on.
type Facts struct {
	// At is the time of the facts.
	At time.Time
	// Version is the version of the API server.
	Version string
	// Nodes lists all nodes.
	Nodes []Node
	// Budgets lists the PodDisruptionBudgets. If the Plan does not evict pods, the list is empty.
	Budgets []Budget
	// Shared is the name of a pod to evict that has several PodDisruptionBudgets, or "" if there is none.
	Shared string
	// Webhooks lists the admission webhooks that reject requests when their Service cannot be reached.
	Webhooks []Webhook
	// Requested lists the deprecated APIs that clients have requested since the API server started.
	Requested []API
	// Applied lists the objects that were last applied with a version of an API that Kubernetes has removed or will
	// remove.
	Applied []AppliedObject
	// CertificateIssued and CertificateExpires limit the validity of the API server's certificate. They are zero if they
	// are not known because the connection is not direct.
	CertificateIssued, CertificateExpires time.Time
	// Unread lists the facts that could not be read.
	Unread []Unread
}

// Node is a node of a cluster.
type Node struct {
	Name string
	// Selected reports whether the Plan upgrades the node.
	Selected bool
	// ControlPlane reports whether the node runs the control plane.
	ControlPlane bool
	// Excluded reports whether a label excludes the node from the Plan.
	Excluded bool
	// OtherOS reports whether the operating system is not Linux. Virtual reports whether the node is a virtual kubelet,
	// which has no machine.
	OtherOS, Virtual bool
	Ready            bool
	// Unschedulable reports whether the node is cordoned.
	Unschedulable bool
	// Taints lists the keys of the taints that keep pods off the node, in order.
	Taints []string
	// Kubelet is the version of the kubelet.
	Kubelet string
	// Allocatable is the capacity for pods, Requested is the part of it that pods have requested, and Leaving is the part
	// that the pods to evict have requested. LargestPod contains the largest request of one of these pods for each
	// resource.
	Allocatable, Requested, Leaving, LargestPod Amounts
}

// Amounts are amounts of a node's resources.
type Amounts struct {
	MilliCPU, Memory, Pods int64
}

// Budget is a PodDisruptionBudget.
type Budget struct {
	// Name is the namespace and the name.
	Name string
	// Allowed is the number of disruptions that are allowed.
	Allowed int64
	// Healthy is the number of healthy pods, and Desired is the required number.
	Healthy, Desired int64
	// AlwaysAllow reports whether unhealthy pods can be evicted at any time.
	AlwaysAllow bool
	// Ready and Unready are the numbers of pods to evict.
	Ready, Unready int64
}

// Webhook is an admission webhook with failurePolicy Fail.
type Webhook struct {
	// Configuration is the kind and name of the configuration, and Name is the name of the webhook in it.
	Configuration, Name string
	// Service is the namespace and the name of the Service.
	Service string
	// Exists reports whether the Service exists.
	Exists bool
	// Endpoints is the number of ready endpoints.
	Endpoints int64
}

// API is a deprecated API.
type API struct {
	Group, Version, Resource, Subresource string
	// Removed is the Kubernetes release that no longer serves the API, such as "1.32".
	Removed string
}

// AppliedObject is an object that was last applied with a deprecated API.
type AppliedObject struct {
	API
	// Name is the name of the object, and Manager is the field manager that applied it.
	Name, Manager string
}

// Unread is a kind of facts that could not be read.
type Unread struct {
	// Check is the name of the check that depends on the facts.
	Check string
	// Object is the resource or the path.
	Object string
	// Cause is the reason.
	Cause string
	// Forbidden reports whether the client has no right to read the facts.
	Forbidden bool
}
