// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterRoleTemplateBinding grants the rights of a RoleTemplate to a user or group in one or more member clusters,
// optionally until a given time. Drover creates a ClusterRoleBinding in each of these members. The user or group can
// also reach these members through the hub, and see their Clusters on the hub.
//
// Creating a binding, or changing its spec, requires the "bind" verb on the role template in the binding's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=crtb
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.roleTemplateName`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.subject.kind`
// +kubebuilder:printcolumn:name="Subject",type=string,JSONPath=`.spec.subject.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expiresAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters",fieldPath=.metadata
type ClusterRoleTemplateBinding struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the grant: the role template, the principal, the members and the expiry.
	// +required
	Spec ClusterRoleTemplateBindingSpec `json:"spec"`

	// status describes the progress of the binding's delivery to members.
	//
	// Ready is True with reason Applied, NoClusters, MembersAway or Expired. If no member has ever received the
	// binding, Ready is False with reason MembersAway. Ready is also False with reason Delivering, DeliveryFailed,
	// Conflict, Fighting, RoleMissing, ClusterNotFound, InvalidSelector, AgentTooOld, AgentReadOnly, NoLeader or
	// IdentityMismatch. If the role template cannot be used, the reason says why, for example RoleTemplateNotFound.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status DeliveryStatus `json:"status,omitzero"`
}

// ClusterRoleTemplateBindingList is a list of ClusterRoleTemplateBindings.
//
// +kubebuilder:object:root=true
type ClusterRoleTemplateBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterRoleTemplateBinding `json:"items"`
}

// ClusterRoleTemplateBindingSpec defines a grant in one or more members. Every field can be changed at any time.
type ClusterRoleTemplateBindingSpec struct {
	ClusterTarget `json:",inline"`

	// roleTemplateName is the name of a RoleTemplate whose context is Cluster. It must be 1 to 63 characters long. The
	// RoleTemplate does not have to exist yet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RoleTemplateName string `json:"roleTemplateName"`

	// subject is the user or group that receives the rights.
	// +required
	Subject Subject `json:"subject"`

	// expiresAt is the time when the binding expires, in RFC 3339 format. The member's agent withdraws the rights at that
	// time, according to its own clock, even if it is not connected to the hub. If the time is in the past, the binding
	// expires immediately. Changing expiresAt to a time in the future restores the rights. By default, the binding never
	// expires.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}

// ProjectRoleTemplateBinding grants the rights of a RoleTemplate to a user or group in all current and future
// namespaces of a Project, optionally until a given time. Drover creates a RoleBinding in each of these namespaces. The
// user or group can also reach the Project's members through the hub, and see their Clusters on the hub.
//
// Creating a binding, or changing its spec, requires the "bind" verb on the role template in the binding's namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=prtb
// +kubebuilder:printcolumn:name="Project",type=string,JSONPath=`.spec.projectName`
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.roleTemplateName`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.subject.kind`
// +kubebuilder:printcolumn:name="Subject",type=string,JSONPath=`.spec.subject.name`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expiresAt`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters",fieldPath=.metadata
type ProjectRoleTemplateBinding struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the grant: the role template, the principal, the project and the expiry.
	// +required
	Spec ProjectRoleTemplateBindingSpec `json:"spec"`

	// status describes the progress of the binding's delivery to the Project's members.
	//
	// The reasons for Ready are the same as for a ClusterRoleTemplateBinding. In addition, Ready is False with reason
	// ProjectNotFound if the Project does not exist.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status DeliveryStatus `json:"status,omitzero"`
}

// ProjectRoleTemplateBindingList is a list of ProjectRoleTemplateBindings.
//
// +kubebuilder:object:root=true
type ProjectRoleTemplateBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProjectRoleTemplateBinding `json:"items"`
}

// ProjectRoleTemplateBindingSpec defines a grant in a Project. Every field can be changed at any time.
type ProjectRoleTemplateBindingSpec struct {
	// projectName is the name of a Project in the same namespace. It must be 1 to 63 characters long. The Project does
	// not have to exist yet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ProjectName string `json:"projectName"`

	// roleTemplateName is the name of a RoleTemplate whose context is Project. It must be 1 to 63 characters long. The
	// RoleTemplate does not have to exist yet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RoleTemplateName string `json:"roleTemplateName"`

	// subject is the user or group that receives the rights.
	// +required
	Subject Subject `json:"subject"`

	// expiresAt is the time when the binding expires, in RFC 3339 format. The member's agent withdraws the rights at that
	// time, according to its own clock, even if it is not connected to the hub. If the time is in the past, the binding
	// expires immediately. Changing expiresAt to a time in the future restores the rights. By default, the binding never
	// expires.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:Pattern=`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`
	ExpiresAt *metav1.Time `json:"expiresAt,omitempty"`
}
