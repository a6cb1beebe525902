// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import v1 "github.com/drover-dev/drover/api/v1"

// FieldManager is the field manager of the agent for objects of sets. A user's copy of such an object has the labels
// but not the manager.
const FieldManager = "drover"

// PlanManager is the field manager of the agent for what it installs for Plans.
const PlanManager = "drover-agent"

// LabelName is the label whose value AgentName marks what the agent's manifest brings.
const LabelName = "app.kubernetes.io/name"

// AgentLabels returns the labels of what the agent's manifest brings, and of what the agent keeps in its namespace.
func AgentLabels() map[string]string {
	return map[string]string{LabelName: AgentName, v1.LabelManagedBy: v1.ManagedBy}
}

// What the agent installs where Plans are run, beside v1.PlansNamespace.
const (
	// PlanAccount is the ServiceAccount of plans' pods, and the name of its rights.
	PlanAccount = "drover-plan"
	// PlanSchema is the name of the CustomResourceDefinition of Plans.
	PlanSchema = "plans." + v1.Group
)

// ObjectKind is a kind of object.
type ObjectKind struct {
	Name       string
	APIVersion string
	// Resource is its plural in the API.
	Resource   string
	Namespaced bool
}

const (
	core      = "v1"
	rbac      = "rbac.authorization.k8s.io/v1"
	admission = "admissionregistration.k8s.io/v1"
)

// SetKinds are the kinds that sets may hold, all with the label v1.LabelSet but for Namespaces, which Drover joins and
// does not own. Their order is the one in which they are removed: what grants rights first, and the policies that guard
// the rest last.
func SetKinds() []ObjectKind {
	return []ObjectKind{
		{"ClusterRoleBinding", rbac, "clusterrolebindings", false},
		{"RoleBinding", rbac, "rolebindings", true},
		{"ClusterRole", rbac, "clusterroles", false},
		{"Plan", v1.GroupVersion.String(), "plans", true},
		{"Secret", core, "secrets", true},
		{"ResourceQuota", core, "resourcequotas", true},
		{"LimitRange", core, "limitranges", true},
		{"NetworkPolicy", "networking.k8s.io/v1", "networkpolicies", true},
		{"Namespace", core, "namespaces", false},
		{"ValidatingAdmissionPolicyBinding", admission, "validatingadmissionpolicybindings", false},
		{"ValidatingAdmissionPolicy", admission, "validatingadmissionpolicies", false},
	}
}

// ManifestKinds are the kinds that the agent's manifest brings beside its namespace, and what the agent keeps in there,
// all with LabelName. Their order is the one in which they are removed: an agent without rights restores nothing.
func ManifestKinds() []ObjectKind {
	return []ObjectKind{
		{"ClusterRoleBinding", rbac, "clusterrolebindings", false},
		{"Deployment", "apps/v1", "deployments", true},
		{"DaemonSet", "apps/v1", "daemonsets", true},
		{"RoleBinding", rbac, "rolebindings", true},
		{"Role", rbac, "roles", true},
		{"ServiceAccount", core, "serviceaccounts", true},
		{"Secret", core, "secrets", true},
		{"Lease", "coordination.k8s.io/v1", "leases", true},
		{"ClusterRole", rbac, "clusterroles", false},
	}
}
