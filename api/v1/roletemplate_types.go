// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RoleTemplate is a named list of RBAC rules that can be granted in member clusters. A ClusterRoleTemplateBinding
// grants the rules in a whole cluster, and a ProjectRoleTemplateBinding grants them in the namespaces of a project. In
// each member in which the template is bound, Drover creates a ClusterRole named "drover:cluster:<name>" or
// "drover:project:<name>", depending on the context. The ClusterRole contains only the template's own rules and the
// rules that it inherits.
//
// Creating a RoleTemplate, or changing the rights that it grants, requires the "escalate" verb on roletemplates.
// Binding a RoleTemplate requires the "bind" verb.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=drover,shortName=rt
// +kubebuilder:printcolumn:name="Context",type=string,JSONPath=`.spec.context`
// +kubebuilder:printcolumn:name="Inherits",type=string,priority=1,JSONPath=`.spec.inherits`
// +kubebuilder:printcolumn:name="External",type=string,JSONPath=`.spec.external`
// +kubebuilder:printcolumn:name="Locked",type=boolean,JSONPath=`.spec.locked`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters",fieldPath=.metadata
// +kubebuilder:validation:XValidation:rule="!has(self.spec.inherits) || self.spec.inherits.all(name, name != self.metadata.name)",message="a role template cannot inherit from itself",fieldPath=.spec.inherits
type RoleTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the rights that the template grants.
	// +required
	Spec RoleTemplateSpec `json:"spec"`

	// status reports whether the template can be used, and the progress of its delivery to members.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RoleTemplateStatus `json:"status,omitzero"`
}

// RoleTemplateList is a list of RoleTemplates.
//
// +kubebuilder:object:root=true
type RoleTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RoleTemplate `json:"items"`
}

// RoleTemplateSpec defines the rights that a RoleTemplate grants. Every field can be changed at any time, and changes
// are delivered to the members.
//
// +kubebuilder:validation:XValidation:rule="!has(self.external) || (size(self.?rules.orValue([])) == 0 && size(self.?inherits.orValue([])) == 0)",message="an external template uses the rules of the member's ClusterRole: remove rules and inherits"
// +kubebuilder:validation:XValidation:rule="has(self.external) || size(self.?rules.orValue([])) > 0 || size(self.?inherits.orValue([])) > 0",message="set rules, inherits or external: a template must grant rights"
// +kubebuilder:validation:XValidation:rule="self.context == 'Cluster' || !has(self.rules) || self.rules.all(r, size(r.?nonResourceURLs.orValue([])) == 0)",message="nonResourceURLs can be granted only with context Cluster"
type RoleTemplateSpec struct {
	// context defines where the template can be bound: Cluster for ClusterRoleTemplateBindings, or Project for
	// ProjectRoleTemplateBindings. A template whose context is Cluster can inherit from templates with either context. A
	// template whose context is Project can inherit only from templates with the same context.
	// +required
	Context RoleContext `json:"context"`

	// rules are RBAC rules in the same format as in a ClusterRole. They are copied to the members unchanged. At most
	// 256 are allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(r, size(r.verbs) > 0)",message="each rule needs verbs"
	// +kubebuilder:validation:XValidation:rule="self.all(r, (size(r.?resources.orValue([])) > 0) != (size(r.?nonResourceURLs.orValue([])) > 0))",message="each rule needs either resources or nonResourceURLs"
	// +kubebuilder:validation:XValidation:rule="self.all(r, (size(r.?resources.orValue([])) > 0) == (size(r.?apiGroups.orValue([])) > 0))",message="resources need apiGroups (\"\" is the core group), and nonResourceURLs must not have apiGroups"
	// +kubebuilder:validation:XValidation:rule="self.all(r, size(r.?resourceNames.orValue([])) == 0 || size(r.?nonResourceURLs.orValue([])) == 0)",message="nonResourceURLs cannot be combined with resourceNames"
	Rules []rbacv1.PolicyRule `json:"rules,omitempty"`

	// inherits lists other RoleTemplates whose rules this template includes, along with the rules that they inherit. At
	// most 32 are allowed. A template cannot list itself. A cycle of several templates is accepted, because each template
	// is validated on its own. However, the templates in the cycle, and all templates that inherit from them, become
	// Stalled with reason InheritanceCycle and grant no rights until the cycle is broken.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Inherits []string `json:"inherits,omitempty"`

	// external is the name of an existing ClusterRole in the members, such as "cluster-admin" or "edit". Bindings to the
	// template then refer to this ClusterRole. Drover neither creates the ClusterRole nor reads its rules, so other
	// templates cannot inherit from an external template. In a member without this ClusterRole, bindings have no effect
	// until the ClusterRole is created.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +kubebuilder:validation:XValidation:rule="!self.contains('/') && !self.contains('%') && self != '.' && self != '..'",message="external must be the name of a ClusterRole"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover:')",message="names that begin with drover: are reserved for ClusterRoles that Drover creates; refer to the RoleTemplate instead"
	External string `json:"external,omitempty"`

	// locked prevents users from creating new bindings to the template, unless they have the "escalate" verb. This verb
	// also lets them unlock the template. Existing bindings are not affected. locked defaults to false.
	// +optional
	Locked bool `json:"locked,omitempty"`
}

// RoleContext is the context in which a RoleTemplate can be bound.
// +kubebuilder:validation:Enum=Cluster;Project
type RoleContext string

const (
	// ContextCluster is the context of templates that are bound in whole clusters.
	ContextCluster RoleContext = "Cluster"
	// ContextProject is the context of templates that are bound in the namespaces of a Project.
	ContextProject RoleContext = "Project"
)

// RoleTemplateStatus is the observed state of a RoleTemplate. It does not name members, because users without access to
// the members' workspaces can read it. Failures in a member are reported in the status of the binding.
type RoleTemplateStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains Ready and Complete. It also contains Stalled while manual action is required.
	//
	// Ready is True with reason Available, Applied or MembersAway. If no member has ever received the template, Ready is
	// False with reason MembersAway. Ready is also False with reason Delivering, DeliveryFailed, Conflict, Fighting,
	// RoleTemplateNotFound, InheritanceCycle, ContextMismatch, InheritsExternal or InvalidRules.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters counts the members in which the template is bound, in all workspaces.
	// +optional
	Clusters *ClusterCount `json:"clusters,omitempty"`
}
