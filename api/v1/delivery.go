// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterTarget selects the members that an object applies to. Exactly one of clusterName and clusterSelector must be
// set. Both match only Clusters in the object's own namespace, because objects cannot refer to other workspaces.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterName) != has(self.clusterSelector)",message="set exactly one of clusterName and clusterSelector"
type ClusterTarget struct {
	// clusterName is the name of a Cluster in the same namespace. It must be 1 to 63 characters long. The Cluster does
	// not have to exist yet.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName,omitempty"`

	// clusterSelector selects Clusters in the same namespace by their labels, including Clusters that are created later.
	// Anyone who can change a Cluster's labels can make a selector match it. The empty selector {} selects all Clusters in
	// the namespace.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn require values; Exists and DoesNotExist must not have values"
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
}

// Subject is the principal that receives the rights of a binding. The user or group does not have to exist yet.
type Subject struct {
	// kind is the kind of the principal: User or Group.
	// +required
	Kind SubjectKind `json:"kind"`

	// name is the name of the principal in the member, for example "github:alice",
	// "hub:system:serviceaccount:ci:deployer", or "hub:carol" for a user who authenticates to the hub's own API server.
	// It must be 1 to 1024 characters long and must not contain line breaks or other control characters. Names that
	// begin with "system:" are rejected, because they are reserved for the member and are never used in requests
	// through the hub. Names that begin with "drover:" are rejected, because a ReadOnly agent sends all users' requests
	// as "drover:viewer".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system:')",message="names that begin with system: are reserved for the member; users and ServiceAccounts of the hub have names such as hub:<name>"
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover:')",message="names that begin with drover: are reserved for Drover"
	// +kubebuilder:validation:XValidation:rule="self.trim() == self",message="the name must not begin or end with white space"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith(':')",message="the name of the principal is missing after the colon"
	Name string `json:"name"`
}

// SubjectKind is the kind of a Subject.
// +kubebuilder:validation:Enum=User;Group
type SubjectKind string

const (
	// SubjectUser is a single person or workload.
	SubjectUser SubjectKind = "User"
	// SubjectGroup is a group. It includes every user that an identity provider assigns to the group.
	SubjectGroup SubjectKind = "Group"
)

// DeliveryStatus describes the progress of an object's delivery to members.
type DeliveryStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains Ready and Complete. It also contains Stalled while manual action is required. A Project also
	// has QuotaFits.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters counts the members that this object applies to.
	// +optional
	Clusters *ClusterCount `json:"clusters,omitempty"`

	// failures lists the first ten failures, ordered by cluster and object. A disconnected member does not count as a
	// failure.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=object
	// +kubebuilder:validation:MaxItems=10
	Failures []Failure `json:"failures,omitempty"`
}

// ClusterCount counts members by their progress.
type ClusterCount struct {
	// desired is the number of members that this object applies to.
	Desired int32 `json:"desired"`
	// applied is the number of members in which the current state is fully applied.
	Applied int32 `json:"applied"`
	// failed is the number of members that rejected at least part of the object. Members that have neither applied nor
	// rejected the object are disconnected, or are still applying it.
	Failed int32 `json:"failed"`
	// summary is "<applied>/<desired>".
	Summary string `json:"summary"`
}

// Failure describes an object whose desired state could not be applied in a member.
type Failure struct {
	// cluster is the name of the Cluster.
	Cluster string `json:"cluster"`
	// object is the kind, namespace and name of the object, for example "ResourceQuota web/drover-project". The value
	// "set" means that the failure affects all of the objects being delivered.
	Object string `json:"object"`
	// message describes the problem and says how to solve it.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// MaxFailures is the maximum number of failures in a status.
const MaxFailures = 10

// ConditionQuotaFits is present on a Project with a resourceQuota. It is True when every namespace in every member has
// its full share of the quota, as defined in namespaceDefaultResourceQuota.
//
// The reason for True is QuotaFits. The reasons for False are QuotaOversubscribed and QuotaSpent.
const ConditionQuotaFits = "QuotaFits"

// Conditions of objects that are delivered to members. Ready is True when the object is applied in every connected
// member. Complete is True when it is applied in every member, including disconnected members. The reason for Complete
// is either MembersAway or the same as for Ready. An expired binding is Ready with the reason Expired, and becomes
// Complete once it has been removed from every member.

// Reasons of conditions of objects that are delivered to members: RoleTemplates, bindings and Projects. When an object
// becomes Stalled, manual action is required, and the Stalled condition has the same reason.
const (
	// ReasonApplied means that the object has been applied in every connected member that it applies to. It is the
	// reason for Ready=True and, when no member is disconnected, for Complete=True.
	ReasonApplied = "Applied"
	// ReasonNoClusters means that clusterSelector currently matches no Clusters. Ready is True with this reason, because
	// there is nothing to deliver.
	ReasonNoClusters = "NoClusters"
	// ReasonDelivering means that delivery to connected members is in progress.
	ReasonDelivering = "Delivering"
	// ReasonMembersAway means that the object has been applied in all connected members, and that the other members will
	// receive it when they connect. Complete is False with this reason. If no member is connected, Ready also has this
	// reason. In that case, Ready is True if any member has ever received the object, and False otherwise.
	ReasonMembersAway = "MembersAway"
	// ReasonDeliveryFailed means that a member rejected an object. status.failures says which object and why. Drover
	// tries again.
	ReasonDeliveryFailed = "DeliveryFailed"
	// ReasonConflict means that a member already has an object with the same name that Drover did not create, or that
	// another field manager owns one of the object's fields. Rename or remove one of the conflicting objects. The object
	// on the hub becomes Stalled.
	ReasonConflict = "Conflict"
	// ReasonFighting means that each time Drover repairs an object in a member, another client changes it back. The
	// message names that client's field manager. The object becomes Stalled.
	ReasonFighting = "Fighting"
	// ReasonRoleMissing means that a member lacks the ClusterRole that an external role template names, so the binding
	// grants nothing there. Create the ClusterRole, or use another role template. The object becomes Stalled.
	ReasonRoleMissing = "RoleMissing"
	// ReasonClusterNotFound means that the object's namespace does not contain a Cluster with the name in clusterName.
	ReasonClusterNotFound = "ClusterNotFound"
	// ReasonInvalidSelector means that clusterSelector is invalid. The message says why. The object becomes Stalled.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonAgentTooOld means that a member's agent does not support this kind of object. Upgrade the agent.
	ReasonAgentTooOld = "AgentTooOld"
	// ReasonAgentReadOnly means that a Cluster's spec.agent.profile is ReadOnly, or that its agent was installed with
	// that profile. Nothing is delivered to the member, and earlier deliveries are withdrawn.
	ReasonAgentReadOnly = "AgentReadOnly"
)

// Reasons of conditions of RoleTemplates and bindings.
const (
	// ReasonAvailable means that the RoleTemplate can be bound, but no binding uses it yet. Ready is True with this
	// reason.
	ReasonAvailable = "Available"
	// ReasonRoleTemplateNotFound means that a role template that is bound or inherited does not exist. The rights that
	// it granted have been removed from the members.
	ReasonRoleTemplateNotFound = "RoleTemplateNotFound"
	// ReasonInheritanceCycle means that a role template inherits from itself, directly or through other templates. The
	// message shows the whole cycle. The object becomes Stalled.
	ReasonInheritanceCycle = "InheritanceCycle"
	// ReasonContextMismatch means that a role template is used in the wrong context. A template for Projects cannot be
	// used in a ClusterRoleTemplateBinding. A template for Clusters cannot be used in a ProjectRoleTemplateBinding, and a
	// template for Projects cannot inherit from it. The object becomes Stalled.
	ReasonContextMismatch = "ContextMismatch"
	// ReasonInheritsExternal means that a role template inherits from an external template, whose rules are defined only
	// in the members. The object becomes Stalled.
	ReasonInheritsExternal = "InheritsExternal"
	// ReasonInvalidRules means that a rule cannot be granted in the context of its role template. The object becomes
	// Stalled.
	ReasonInvalidRules = "InvalidRules"
	// ReasonProjectNotFound means that the binding's namespace does not contain a Project with the name in projectName.
	ReasonProjectNotFound = "ProjectNotFound"
	// ReasonExpired means that the time in expiresAt has passed and the members have withdrawn the rights.
	ReasonExpired = "Expired"
)

// Reasons of conditions of Projects.
const (
	// ReasonNamespaceTaken means that a namespace in a member already belongs to another Project. The message names
	// that Project. The older Project keeps the namespace, and the newer one becomes Stalled.
	ReasonNamespaceTaken = "NamespaceTaken"
	// ReasonSecretRefused means that a Secret with the Project's label is larger than 256 KiB, or has a type that is
	// never copied. The object becomes Stalled.
	ReasonSecretRefused = "SecretRefused"
	// ReasonQuotaFits means that every namespace has its full share of the quota. QuotaFits is True with this reason.
	ReasonQuotaFits = "QuotaFits"
	// ReasonQuotaSpent means that the Project has more namespaces than its quota can cover. The newest namespaces get no
	// share of at least one resource, so their pods cannot start. The message names these namespaces.
	ReasonQuotaSpent = "QuotaSpent"
	// ReasonQuotaOversubscribed means that the Project has more namespaces than its quota can cover. The newest namespaces
	// get less than their full share. The message names these namespaces.
	ReasonQuotaOversubscribed = "QuotaOversubscribed"
)
