// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RoleTemplate names rules that can be granted in members: in a whole cluster by a ClusterRoleTemplateBinding, in the
// namespaces of a project by a ProjectRoleTemplateBinding. In each member where it is used it is one ClusterRole
// "drover:<name>", whose rules are exactly those written here and in the templates that it inherits.
//
// Creating one, or changing what it grants, takes the verb "escalate" on roletemplates; binding it takes "bind".
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
// +kubebuilder:validation:XValidation:rule="!has(self.spec.inherits) || self.spec.inherits.all(name, name != self.metadata.name)",message="a role template cannot inherit itself",fieldPath=.spec.inherits
type RoleTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is the user's choice, at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is granted.
	// +required
	Spec RoleTemplateSpec `json:"spec"`

	// status reports whether the template can be used, and how far it has got where it is bound.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status RoleTemplateStatus `json:"status,omitempty"`
}

// RoleTemplateList is a list of RoleTemplates.
//
// +kubebuilder:object:root=true
type RoleTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []RoleTemplate `json:"items"`
}

// RoleTemplateSpec says what a RoleTemplate grants. Every field can be changed at any time; the members follow.
//
// +kubebuilder:validation:XValidation:rule="!has(self.external) || (size(self.?rules.orValue([])) == 0 && size(self.?inherits.orValue([])) == 0)",message="an external template has the rules of the member's ClusterRole: leave rules and inherits out"
// +kubebuilder:validation:XValidation:rule="has(self.external) || size(self.?rules.orValue([])) > 0 || size(self.?inherits.orValue([])) > 0",message="set rules, inherits or external: a template must grant something"
// +kubebuilder:validation:XValidation:rule="self.context == 'Cluster' || !has(self.rules) || self.rules.all(r, size(r.?nonResourceURLs.orValue([])) == 0)",message="nonResourceURLs can be granted only with context Cluster"
type RoleTemplateSpec struct {
	// context says where the template can be bound: Cluster (ClusterRoleTemplateBinding) or Project
	// (ProjectRoleTemplateBinding). A template of context Cluster may inherit those of both, one of context Project only
	// its own kind.
	// +required
	Context RoleContext `json:"context"`

	// rules are Kubernetes' own RBAC rules. They come into the member word for word: nothing is added, widened or
	// translated. At most 256.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:XValidation:rule="self.all(r, size(r.verbs) > 0)",message="each rule needs verbs"
	// +kubebuilder:validation:XValidation:rule="self.all(r, (size(r.?resources.orValue([])) > 0) != (size(r.?nonResourceURLs.orValue([])) > 0))",message="each rule needs either resources or nonResourceURLs"
	// +kubebuilder:validation:XValidation:rule="self.all(r, (size(r.?resources.orValue([])) > 0) == (size(r.?apiGroups.orValue([])) > 0))",message="resources need apiGroups (\"\" is the core group), and nonResourceURLs take none"
	// +kubebuilder:validation:XValidation:rule="self.all(r, size(r.?resourceNames.orValue([])) == 0 || size(r.?nonResourceURLs.orValue([])) == 0)",message="nonResourceURLs take no resourceNames"
	Rules []rbacv1.PolicyRule `json:"rules,omitempty"`

	// inherits names other RoleTemplates whose rules this one has as well, and theirs in turn. A template that names
	// itself is refused. A cycle of several is accepted, because each is written separately: all that lead into it are
	// then Stalled with reason InheritanceCycle and grant nothing until one of them is changed. At most 32.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Inherits []string `json:"inherits,omitempty"`

	// external names a ClusterRole that exists in the members and is bound as it is there, such as "cluster-admin" or
	// "edit". Drover does not make it, and cannot know its rules: no other template can inherit an external one. In a
	// member that has no such ClusterRole, the binding grants nothing until it is made.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +kubebuilder:validation:XValidation:rule="!self.contains('/') && !self.contains('%') && self != '.' && self != '..'",message="external must be the name of a ClusterRole"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover:')",message="ClusterRoles that begin with drover: are made by Drover: name the RoleTemplate instead"
	External string `json:"external,omitempty"`

	// locked templates get no new bindings, except from users who may unlock them (verb "escalate"). Existing bindings
	// stay as they are. Default false.
	// +optional
	Locked bool `json:"locked,omitempty"`
}

// RoleContext says where a RoleTemplate can be bound.
// +kubebuilder:validation:Enum=Cluster;Project
type RoleContext string

const (
	// ContextCluster is for whole members.
	ContextCluster RoleContext = "Cluster"
	// ContextProject is for the namespaces of a Project.
	ContextProject RoleContext = "Project"
)

// RoleTemplateStatus is what Drover knows of a RoleTemplate. It names no member: every user who may bind may read it,
// and the members belong to workspaces. The binding's status says what failed in a member.
type RoleTemplateStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, and Stalled when a person must act.
	//
	// Ready is True with the reasons Available, Applied and MembersAway; False with MembersAway while no member has had
	// it, Delivering, DeliveryFailed, Conflict, Fighting, RoleTemplateNotFound, InheritanceCycle, ContextMismatch,
	// InheritsExternal, InvalidRules.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters where the template is bound, counted over all workspaces.
	// +optional
	Clusters *ClusterCount `json:"clusters,omitempty"`
}
