// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Annotations, conditions and reasons on a hub whose etcd was restored from a backup.
const (
	// AnnotationRestored on a Cluster confirms the changes that a restored hub is holding back. The value must be equal to
	// status.restore.checkpoint. Setting it requires the "update" verb on clusters/agent.
	AnnotationRestored = Group + "/restored"

	// ConditionRestoreConfirmed is False with reason HubRestored while the hub is holding back changes to the member. This
	// happens after the hub's etcd was restored from a backup that is older than the member's state. status.restore lists
	// the changes. At all other times, the condition is absent.
	ConditionRestoreConfirmed = "RestoreConfirmed"

	// ReasonHubRestored means that the hub's etcd was restored from a backup that is older than a member's state. The hub
	// makes no changes in the member until an administrator has confirmed them with "kubectl drover restored".
	// RestoreConfirmed is False with this reason. The object becomes Stalled.
	ReasonHubRestored = "HubRestored"

	// ReasonMemberAhead means that members have completed a revision of the Plan that the hub has no record of, because
	// the hub was restored from an older backup. This reason is used only on the hub. No work starts until an
	// administrator applies the intended Plan, or sets AnnotationResume on the Plan. The Plan becomes Stalled.
	ReasonMemberAhead = "MemberAhead"
)

// RestoreStatus lists the changes to a member or a Host that the hub is holding back because its etcd was restored from
// a backup. Each entry is the name of a set. A set contains all objects that result from one object on the hub. For
// example, "crtb/alice" is the set of the ClusterRoleTemplateBinding "alice". Each list contains only the first 50
// names.
type RestoreStatus struct {
	// checkpoint identifies the agent's state, which is newer than the hub's backup. To confirm the changes, set the
	// annotation cluster.drover.dev/restored to this value.
	Checkpoint string `json:"checkpoint"`
	// summary counts the changes, for example "2 to add, 0 to change, 1 to remove".
	Summary string `json:"summary"`
	// digest is the SHA-256 digest of all names, including names that are omitted from the lists. It changes whenever a
	// name is added to a list or removed from it.
	// +optional
	Digest string `json:"digest,omitempty"`
	// add lists the sets that exist on the hub but not in the member. They were deleted after the backup was taken, or
	// were never delivered.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Add []string `json:"add,omitempty"`
	// change lists the sets whose content in the member differs from their content on the hub.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Change []string `json:"change,omitempty"`
	// remove lists the sets that exist in the member but not on the hub. They were created after the backup was taken.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Remove []string `json:"remove,omitempty"`
}
