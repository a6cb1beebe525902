// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import v1 "github.com/drover-dev/drover/api/v1"

// FieldManager is the agent's field manager for objects in sets. If a user copies an object, the copy has the
// object's labels but not this field manager.
const FieldManager = "drover"

// PlanManager is the agent's field manager for objects that it installs for Plans.
const PlanManager = "drover-agent"

// LabelName is the label that all objects from the agent's manifest have. Its value is AgentName.
const LabelName = "app.kubernetes.io/name"

// AgentLabels returns the labels on objects from the agent's manifest, and on objects that the agent maintains in its
// namespace.
func AgentLabels() map[string]string {
	return map[string]string{LabelName: AgentName, v1.LabelManagedBy: v1.ManagedBy}
}

// Names of objects that the agent installs in members that run Plans. The agent also installs v1.PlansNamespace.
const (
	// PlanAccount is the name of the ServiceAccount that the pods of Plans use, and of its roles and bindings.
	PlanAccount = "drover-plan"
	// PlanSchema is the name of the CustomResourceDefinition of Plans.
	PlanSchema = "plans." + v1.Group
)

// ObjectKind is a kind of object.
type ObjectKind struct {
	Name       string
	APIVersion string
	// Resource is the plural name in the API.
	Resource   string
	Namespaced bool
}

const (
	core      = "v1"
	rbac      = "rbac.authorization.k8s.io/v1"
	admission = "admissionregistration.k8s.io/v1"
)

// SetKinds returns the kinds of objects that sets can contain. All of these objects have the label v1.LabelSet,
// except Namespaces, because Drover does not own a Namespace that it adds objects to. Objects are removed in the
// order of the returned kinds: objects that grant rights are removed first, and policies that guard other objects are
// removed last.
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

// ManifestKinds returns the kinds of objects that the agent's manifest creates in addition to the agent's namespace,
// and the kinds of objects that the agent maintains in that namespace. All of these objects have the label LabelName.
// Objects are removed in the order of the returned kinds. The order matters, because an agent that has lost its
// rights cannot restore anything.
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
