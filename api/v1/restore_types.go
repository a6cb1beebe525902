// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// What a hub whose etcd was restored from a backup shows, and what confirms its changes.
const (
	// AnnotationRestored on a Cluster, with the value of status.restore.checkpoint, confirms what the hub would change
	// in the member after its etcd was restored. It takes update on clusters/agent.
	AnnotationRestored = Group + "/restored"

	// ConditionRestoreConfirmed is present, and False, only while the hub changes nothing in the member because its
	// etcd was restored from a backup that is older than what the member has. status.restore says what would change.
	//
	// The reason for False is HubRestored.
	ConditionRestoreConfirmed = "RestoreConfirmed"

	// ReasonHubRestored: the hub's etcd was restored from a backup that is older than what a member has. Nothing is
	// changed there before an administrator has confirmed it with "kubectl drover restored". Also the reason of
	// RestoreConfirmed=False. Stalled.
	ReasonHubRestored = "HubRestored"

	// ReasonMemberAhead: on the hub, members completed a revision of the plan that this hub did not give them: it was
	// restored from an older backup. Nothing begins before a person applies the plan as it should be, or annotates it
	// with AnnotationResume. Stalled.
	ReasonMemberAhead = "MemberAhead"
)

// RestoreStatus is what a hub would change in a member after a restore. Names are those of sets, "crtb/alice" for a ClusterRoleTemplateBinding alice;
// of each list the first 50 are named.
type RestoreStatus struct {
	// checkpoint is what the agent has and the hub does not remember. The annotation cluster.drover.dev/restored with this value confirms the change.
	Checkpoint string `json:"checkpoint"`
	// summary counts: "2 to add, 0 to change, 1 to remove".
	Summary string `json:"summary"`
	// digest is the SHA-256 of all names, also of those that the lists have no place for: it changes whenever another set would be added, changed
	// or removed.
	// +optional
	Digest string `json:"digest,omitempty"`
	// add is what the hub has and the member has not: it was deleted after the backup, or never delivered.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Add []string `json:"add,omitempty"`
	// change is what the member has with another content.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Change []string `json:"change,omitempty"`
	// remove is what the member has and the hub has not: it was created after the backup.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Remove []string `json:"remove,omitempty"`
}
