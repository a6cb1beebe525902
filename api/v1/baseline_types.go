// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Baseline is a list of Kubernetes objects that Drover maintains in members, for example a CNI plugin, a storage class,
// policies, CustomResourceDefinitions, or a GitOps controller. The members' agents apply the objects, repair and prune
// them, and report their health, whether or not the hub is reachable.
//
// The agent applies the objects as the user "drover:baseline:<name>", which has only the rights of a RoleTemplate.
// Creating a Baseline, or changing anything in its spec except approvals, requires the "bind" verb on that role
// template in the Baseline's namespace.
//
// Drover never takes over objects that others have created. In string values, the agent replaces $(CLUSTER_NAME) with
// the name of the Cluster, and $(LABEL:<key>) with the value of one of the Cluster's labels.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover
// +kubebuilder:printcolumn:name="Role",type=string,JSONPath=`.spec.roleTemplateName`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Revision",type=string,JSONPath=`.status.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Objects",type=integer,priority=1,JSONPath=`.status.objects`
// +kubebuilder:printcolumn:name="Failed",type=integer,priority=1,JSONPath=`.status.clusters.failed`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes the value of a label",fieldPath=.metadata
type Baseline struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the objects, the members, the agent's rights and the rollout.
	// +required
	Spec BaselineSpec `json:"spec"`

	// status reports which members have the objects, and whether the objects are healthy.
	//
	// Ready is True with reason Applied, NoClusters or MembersAway. Ready is False with reason Delivering, Applying,
	// Soaking, Paused, AwaitingApproval, TooManyFailures, Unhealthy, Forbidden, Conflict, Drifted, Fighting,
	// DeliveryFailed, RoleMissing, MembersAway, ClusterNotFound, InvalidSelector, InvalidManifests, SourceNotFound,
	// SecretRefused, RevisionNotFound, AgentTooOld, AgentReadOnly, NoLeader or IdentityMismatch. If the role template
	// cannot be used, the reason says why, for example RoleTemplateNotFound.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status BaselineStatus `json:"status,omitzero"`
}

// BaselineList is a list of Baselines.
//
// +kubebuilder:object:root=true
type BaselineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Baseline `json:"items"`
}

// BaselineSpec defines the objects that are maintained in members. Every field can be changed at any time.
//
// +kubebuilder:validation:XValidation:rule="has(self.manifests) || has(self.from)",message="set manifests or from"
type BaselineSpec struct {
	ClusterTarget `json:",inline"`
	BaselinePace  `json:",inline"`

	// roleTemplateName is the name of a RoleTemplate whose context is Cluster. The agent applies the objects with
	// exactly the rights of this template. For each kind of object, the rights must include get, list, watch, create,
	// patch and delete. The name must be 1 to 63 characters long. The RoleTemplate does not have to exist yet.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RoleTemplateName string `json:"roleTemplateName"`

	// manifests are complete Kubernetes objects of any kind. Namespaced objects must specify their namespace.
	// Namespaces whose names begin with "drover-" are rejected. At most 256 items are allowed. Including the objects in
	// from, a Baseline can contain at most 1000 objects of at most 64 kinds, with a total size of at most 4 MiB.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=256
	Manifests []Manifest `json:"manifests,omitempty"`

	// from adds the objects in ConfigMaps and Secrets in the Baseline's namespace. Each key holds a stream of YAML
	// documents. Each ConfigMap or Secret must have the label baselines.cluster.drover.dev/use: "true". A ConfigMap can
	// contain at most 1 MiB of data, and a Secret at most 256 KiB. At most 16 sources are allowed.
	// +optional
	// +listType=map
	// +listMapKey=kind
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	From []BaselineSource `json:"from,omitempty"`

	// revision is the revision to roll back to. It must be listed in status.history with the same roleTemplateName as
	// in the spec. If revision is set, the objects in the manifests and from fields are not used.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{16}$`
	Revision string `json:"revision,omitempty"`

	// drift determines what happens when another client changes or deletes an object in a member. With Repair, the
	// default, the agent applies the object again. With Report, the agent only reports the change.
	// +optional
	// +kubebuilder:default=Repair
	Drift DriftPolicy `json:"drift,omitempty"`

	// conflicts determines what happens when another field manager owns a field that the Baseline begins to set. With
	// Report, the default, the agent reports the conflict and leaves the object unchanged. With Take, the agent takes
	// over the field. Either way, the object must belong to this Baseline.
	// +optional
	// +kubebuilder:default=Report
	Conflicts ConflictPolicy `json:"conflicts,omitempty"`

	// deletionPolicy determines what happens to the objects in a member when the Baseline is deleted, when it no longer
	// selects the member, or when the member leaves the hub. With Delete, the default, the objects are deleted. With
	// Orphan, they are left unchanged. Objects that are removed from a Baseline are always deleted.
	// +optional
	// +kubebuilder:default=Delete
	DeletionPolicy BaselineDeletionPolicy `json:"deletionPolicy,omitempty"`
}

// BaselinePace defines the order in which members receive a change, and when a member counts as failed.
type BaselinePace struct {
	// rollout defines the order in which members receive a new revision, and how many members can apply it at the same
	// time. By default, all members receive the revision at once. A member that joins later receives the last complete
	// revision immediately. A member that is disconnected for five minutes while it is applying a revision counts as
	// failed.
	// +optional
	// +structType=atomic
	Rollout *Rollout `json:"rollout,omitempty"`

	// paused prevents any more members from receiving a new revision. It has no effect if rollout is not set. The
	// default is false.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// approvals lists the approvals of waves that require approval. Adding or changing an entry requires the "approve"
	// verb on the Baseline. "kubectl drover baseline approve" adds entries. Anyone who can update the Baseline can remove
	// them. At most 32 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=wave
	// +kubebuilder:validation:MaxItems=32
	Approvals []Approval `json:"approvals,omitempty"`

	// healthTimeout is the time within which an object must become healthy after it has been applied. If an object takes
	// longer, its member counts as failed. In a rollout, a connected member that reports no result within healthTimeout
	// plus five minutes also counts as failed. The valid range is 1s to 24h. The default is 5m.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('24h')",message="must be a duration from 1s to 24h"
	HealthTimeout *metav1.Duration `json:"healthTimeout,omitempty"`
}

// Manifest is a complete Kubernetes object. An admission policy rejects Lists and Secrets. A Secret's data would be
// visible to everyone who can read the Baseline.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Manifest struct {
	runtime.RawExtension `json:",inline"`
}

// BaselineSource names a ConfigMap or Secret that contains manifests.
type BaselineSource struct {
	// kind is ConfigMap or Secret.
	// +required
	// +kubebuilder:validation:Enum=ConfigMap;Secret
	Kind string `json:"kind"`

	// name is the name of the ConfigMap or Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`
}

// DriftPolicy determines what happens when another client changes an object.
// +kubebuilder:validation:Enum=Repair;Report
type DriftPolicy string

// ConflictPolicy determines what happens when another field manager owns a field.
// +kubebuilder:validation:Enum=Report;Take
type ConflictPolicy string

// BaselineDeletionPolicy determines what happens to the objects when a Baseline is removed from a member.
// +kubebuilder:validation:Enum=Delete;Orphan
type BaselineDeletionPolicy string

// Values of a Baseline's policies.
const (
	DriftRepair DriftPolicy = "Repair"
	DriftReport DriftPolicy = "Report"

	ConflictsReport ConflictPolicy = "Report"
	ConflictsTake   ConflictPolicy = "Take"

	DeletionDelete BaselineDeletionPolicy = "Delete"
	DeletionOrphan BaselineDeletionPolicy = "Orphan"
)

// BaselineStatus describes the progress of a Baseline in its members.
type BaselineStatus struct {
	DeliveryStatus `json:",inline"`

	// revision identifies the objects and the role template that members should have.
	// +optional
	Revision string `json:"revision,omitempty"`

	// completeRevision is the last revision that was applied and became healthy in every member that took part in its
	// rollout, apart from failed members that rollout.maxFailedClusters tolerates. Members that join during a later
	// rollout receive this revision.
	// +optional
	CompleteRevision string `json:"completeRevision,omitempty"`

	// objects is the number of objects in the revision.
	// +optional
	Objects int32 `json:"objects,omitempty"`

	// waves lists the waves in order. The last wave, "rest", contains the members that no other wave selects. The field
	// is absent if spec.rollout is not set.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=17
	Waves []WaveStatus `json:"waves,omitempty"`

	// history lists the revisions whose objects the hub keeps, newest first. At most 6 are kept.
	// +optional
	// +listType=map
	// +listMapKey=revision
	// +kubebuilder:validation:MaxItems=6
	History []BaselineRevision `json:"history,omitempty"`
}

// BaselineRevision is a revision whose objects the hub keeps.
type BaselineRevision struct {
	// revision identifies the objects and the role template.
	// +required
	Revision string `json:"revision"`
	// roleTemplateName is the role template of the revision. To roll back to the revision, spec.roleTemplateName must have
	// the same value.
	// +optional
	RoleTemplateName string `json:"roleTemplateName,omitempty"`
	// since is the time when the revision became current.
	// +required
	Since metav1.Time `json:"since"`
	// objects is the number of objects.
	// +required
	Objects int32 `json:"objects"`
}

// Names and limits of Baselines.
const (
	// LabelBaseline marks every object in a member that belongs to a Baseline. Its value is the name of the Baseline.
	LabelBaseline = Group + "/baseline"

	// LabelBaselinesUse with the value "true" on a ConfigMap or Secret in a workspace allows Baselines in the workspace
	// to use it in spec.from.
	LabelBaselinesUse = "baselines." + Group + "/use"

	// SecretKindBaseline marks the Secrets "<baseline>-revision-<number>", which contain the objects of a revision of a
	// Baseline.
	SecretKindBaseline = "baseline"

	// MaxBaselineRevisions is the maximum number of revisions that the hub keeps for a Baseline.
	MaxBaselineRevisions = 6
)

// Reasons of a Baseline's conditions, in addition to the reasons that apply to all objects delivered to members.
const (
	// ReasonUnhealthy means that an object in a member has failed, or has not become healthy within healthTimeout.
	ReasonUnhealthy = "Unhealthy"
	// ReasonForbidden means that the role template does not grant a right that is required to apply an object. The
	// object becomes Stalled.
	ReasonForbidden = "Forbidden"
	// ReasonDrifted means that another client has changed an object, and that spec.drift is Report.
	ReasonDrifted = "Drifted"
	// ReasonInvalidManifests means that the objects cannot be read, exceed a limit, or contain the same object twice.
	// Members keep the previous revision. The object becomes Stalled.
	ReasonInvalidManifests = "InvalidManifests"
	// ReasonSourceNotFound means that a ConfigMap or Secret in spec.from does not exist or does not have the label
	// baselines.cluster.drover.dev/use. Members keep the previous revision.
	ReasonSourceNotFound = "SourceNotFound"
	// ReasonRevisionNotFound means that the hub does not keep the revision in spec.revision, or that the revision has a
	// different role template. Members keep the previous revision. The object becomes Stalled.
	ReasonRevisionNotFound = "RevisionNotFound"
)
