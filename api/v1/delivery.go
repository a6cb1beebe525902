// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterTarget says which members something is for: exactly one of clusterName and clusterSelector. Both look only
// into the namespace of the object that has them; no reference leaves a workspace.
//
// +kubebuilder:validation:XValidation:rule="has(self.clusterName) != has(self.clusterSelector)",message="set exactly one of clusterName and clusterSelector"
type ClusterTarget struct {
	// clusterName names one Cluster in the same namespace. It need not exist yet. 1 to 63 characters.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName,omitempty"`

	// clusterSelector selects the Clusters of the same namespace by their labels, those that come later included.
	// The empty selector {} selects all of them. Whoever may label a Cluster decides what it is selected for.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values; Exists and DoesNotExist take none"
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`
}

// Subject is the principal that a binding is for. It need not exist yet.
type Subject struct {
	// kind of the principal: User or Group.
	// +required
	Kind SubjectKind `json:"kind"`

	// name of the principal as the member sees it, for example "github:alice", "hub:system:serviceaccount:ci:deployer" or
	// "hub:carol" for a user of the hub's own API server. 1 to 1024 characters, none of them a line break or another
	// control character. Names that begin with "system:" are refused: in a member they are the member's own, and a request
	// through the hub never carries them. So are those that begin with "drover:": a ReadOnly agent sends the requests of
	// all users as "drover:viewer".
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('system:')",message="a name that begins with system: belongs to the member itself; users and ServiceAccounts of the hub are called hub:<name>"
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover:')",message="a name that begins with drover: is Drover's own"
	// +kubebuilder:validation:XValidation:rule="self.trim() == self",message="the name must not begin or end with white space"
	// +kubebuilder:validation:XValidation:rule="!self.endsWith(':')",message="the name of the principal is missing after the colon"
	Name string `json:"name"`
}

// SubjectKind is what a Subject is.
// +kubebuilder:validation:Enum=User;Group
type SubjectKind string

const (
	// SubjectUser is one person or program.
	SubjectUser SubjectKind = "User"
	// SubjectGroup is all who have the group, as their identity provider says.
	SubjectGroup SubjectKind = "Group"
)

// DeliveryStatus says how far something has got into the members that it is for.
type DeliveryStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: Ready, and Stalled when a person must act; a Project has QuotaFits as well.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// clusters that this is for, counted.
	// +optional
	Clusters *ClusterCount `json:"clusters,omitempty"`

	// failures are the first ten, ordered by cluster and object. A member that is not connected is not a failure.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=object
	// +kubebuilder:validation:MaxItems=10
	Failures []Failure `json:"failures,omitempty"`
}

// ClusterCount counts members by how far something has got.
type ClusterCount struct {
	// desired is the number of members that this is for.
	Desired int32 `json:"desired"`
	// applied is the number of members that have all of it, as it is now.
	Applied int32 `json:"applied"`
	// failed is the number of members that refused some of it. The others, beside applied, are not connected or are still
	// getting it.
	Failed int32 `json:"failed"`
	// summary is "applied/desired".
	Summary string `json:"summary"`
}

// Failure is one object that a member does not have as it should.
type Failure struct {
	// cluster is the name of the Cluster.
	Cluster string `json:"cluster"`
	// object is kind, namespace and name, for example "ResourceQuota web/drover-project", or "set" for all of them.
	Object string `json:"object"`
	// message says what is wrong and what to do.
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// MaxFailures is how many failures a status names.
const MaxFailures = 10

// ConditionQuotaFits is on a Project with a resourceQuota: True when every namespace has the whole of the default for a
// namespace, in every member.
//
// The reason for True is QuotaFits; for False, QuotaOversubscribed and QuotaSpent.
const ConditionQuotaFits = "QuotaFits"

// Conditions of what is delivered to members. Ready is True when every member has it that can be reached. Complete is
// True when every member has it, those that are away included; it has the reason of Ready, or MembersAway. A binding
// that has expired is Ready with the reason Expired, and Complete when no member has it any more.

// Reasons of conditions of what is delivered to members: RoleTemplates, bindings, Projects. Those that a person must
// fix, and are also those of Stalled, say so.
const (
	// ReasonApplied: every member that this is for, and that is connected, has it. Reason of Ready=True; of Complete=True
	// when none is away.
	ReasonApplied = "Applied"
	// ReasonNoClusters: no Cluster matches clusterSelector at present. Reason of Ready=True: nothing is missing.
	ReasonNoClusters = "NoClusters"
	// ReasonDelivering: connected members are still getting it.
	ReasonDelivering = "Delivering"
	// ReasonMembersAway: all connected members have it; the others get it when they connect. Reason of Complete=False. It
	// is also the reason of Ready when no member is connected: True if a member has had it, False if none ever has.
	ReasonMembersAway = "MembersAway"
	// ReasonDeliveryFailed: a member refused an object; status.failures says which and why. It is tried again.
	ReasonDeliveryFailed = "DeliveryFailed"
	// ReasonConflict: in a member an object of that name exists that is not Drover's, or another field manager has a field
	// of it. Rename or remove one of the two. Stalled.
	ReasonConflict = "Conflict"
	// ReasonFighting: something in a member changes an object back each time Drover repairs it; the message names its
	// field manager. Stalled.
	ReasonFighting = "Fighting"
	// ReasonRoleMissing: a member has no ClusterRole of the name that an external role template gives, so the binding
	// grants nothing there. Make it, or name another. Stalled.
	ReasonRoleMissing = "RoleMissing"
	// ReasonClusterNotFound: there is no Cluster of the name in clusterName in this namespace.
	ReasonClusterNotFound = "ClusterNotFound"
	// ReasonInvalidSelector: clusterSelector cannot be used; the message says why. Stalled.
	ReasonInvalidSelector = "InvalidSelector"
	// ReasonAgentTooOld: a member's agent does not know this kind of object. Upgrade it.
	ReasonAgentTooOld = "AgentTooOld"
	// ReasonAgentReadOnly: the Cluster's spec.agent.profile is ReadOnly, or its agent was installed so: nothing is
	// delivered there, and what was delivered before is taken back.
	ReasonAgentReadOnly = "AgentReadOnly"
	// ReasonHubRestored: the hub's etcd was restored from a backup that is older than what a member has. Nothing is
	// changed there before an administrator has confirmed it with "kubectl drover restored". Also the reason of
	// RestoreConfirmed=False. Stalled.
	ReasonHubRestored = "HubRestored"
)

// Reasons of conditions of RoleTemplates and bindings.
const (
	// ReasonAvailable: the RoleTemplate can be bound and is used nowhere yet. Reason of Ready=True.
	ReasonAvailable = "Available"
	// ReasonRoleTemplateNotFound: the role template that is bound or inherited does not exist. Rights that came from it
	// are gone from the members.
	ReasonRoleTemplateNotFound = "RoleTemplateNotFound"
	// ReasonInheritanceCycle: a role template inherits itself; the message names the whole path. Stalled.
	ReasonInheritanceCycle = "InheritanceCycle"
	// ReasonContextMismatch: a template of context Project in a ClusterRoleTemplateBinding, one of context Cluster in a
	// ProjectRoleTemplateBinding, or one of context Cluster inherited by one of context Project. Stalled.
	ReasonContextMismatch = "ContextMismatch"
	// ReasonInheritsExternal: a role template inherits an external one, whose rules only the member knows. Stalled.
	ReasonInheritsExternal = "InheritsExternal"
	// ReasonInvalidRules: a rule cannot be granted in this context. Stalled.
	ReasonInvalidRules = "InvalidRules"
	// ReasonProjectNotFound: there is no Project of that name in this namespace.
	ReasonProjectNotFound = "ProjectNotFound"
	// ReasonExpired: expiresAt has passed and the members have taken the rights away.
	ReasonExpired = "Expired"
)

// Reasons of conditions of Projects.
const (
	// ReasonNamespaceTaken: a namespace belongs to another Project in the same member; the message says to which. The
	// older Project keeps it. Stalled.
	ReasonNamespaceTaken = "NamespaceTaken"
	// ReasonSecretRefused: a Secret that is labelled for the Project is of a type that is never copied, or larger than 256
	// KiB. Stalled.
	ReasonSecretRefused = "SecretRefused"
	// ReasonQuotaFits: every namespace has the whole default for a namespace. Reason of QuotaFits=True.
	ReasonQuotaFits = "QuotaFits"
	// ReasonQuotaSpent: the Project has more namespaces than its quota is good for, and nothing of some resource is left
	// for those that came last: no pod can start there. The message names them.
	ReasonQuotaSpent = "QuotaSpent"
	// ReasonQuotaOversubscribed: the Project has more namespaces than its quota is good for; those that came last have
	// less than the default. The message names them.
	ReasonQuotaOversubscribed = "QuotaOversubscribed"
)
