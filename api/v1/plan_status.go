// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PlanStatus says how far a Plan is. In a member the agent writes it; on the hub the manager, from what the members'
// agents say.
type PlanStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions: LatestResolved, Complete, Ready, and Stalled when a person must act.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// latestVersion is the version that nodes get, from spec.version or the channel, with "+" replaced by "-".
	// +optional
	LatestVersion string `json:"latestVersion,omitempty"`

	// latestHash is what a node is labelled with when it is complete. It covers the version, all that is done on a node,
	// and the Secrets.
	// +optional
	LatestHash string `json:"latestHash,omitempty"`

	// revision is that of the hub's Plan which this status is about: in a member, what the hub put into the annotation
	// "cluster.drover.dev/revision"; on the hub, what it puts there now.
	// +optional
	Revision string `json:"revision,omitempty"`

	// clusters that the plan is for, counted. Absent in a member.
	// +optional
	Clusters *PlanCount `json:"clusters,omitempty"`

	// nodes that the plan is for, counted. On the hub those of members that have begun.
	// +optional
	Nodes *PlanCount `json:"nodes,omitempty"`

	// waves in their order, with those that no wave selects as the last, "rest". Absent in a member.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=17
	Waves []WaveStatus `json:"waves,omitempty"`

	// members that failed, then those that are at work: the first 20 by name. Absent in a member.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Members []PlanMember `json:"members,omitempty"`

	// applying are the nodes that are at work: the first ten, by cluster and name.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=10
	Applying []ApplyingNode `json:"applying,omitempty"`

	// failures of the last attempt of each node: the first ten, by cluster and node.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=10
	Failures []NodeFailure `json:"failures,omitempty"`
}

// PlanCount counts members or nodes.
type PlanCount struct {
	// total is how many the plan is for.
	Total int32 `json:"total"`
	// complete is how many have all of it, as it is now.
	Complete int32 `json:"complete"`
	// applying is how many are at work, those that wait for a further attempt included.
	Applying int32 `json:"applying"`
	// failed is how many have no attempt left; of members, those with such a node.
	Failed int32 `json:"failed"`
	// held is how many do not take part at present: nodes labelled disabled are not counted at all, nodes that are not
	// ready are; members that are away, that hold plans off, or whose own window is closed.
	Held int32 `json:"held"`
	// leftOut is how many nodes are selected and not counted, because the pods of plans cannot run on them: they do not
	// run Linux.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// summary is "complete/total".
	Summary string `json:"summary"`
}

// WaveStatus is how far a wave is.
type WaveStatus struct {
	// name of the wave.
	Name string `json:"name"`
	// clusters of the wave, counted.
	Clusters PlanCount `json:"clusters"`
	// soakUntil is when its soak ends. Absent before it is complete.
	// +optional
	SoakUntil *metav1.Time `json:"soakUntil,omitempty"`
}

// PlanMember is how far a member is.
type PlanMember struct {
	// name of the Cluster.
	Name string `json:"name"`
	// wave that it belongs to.
	Wave string `json:"wave"`
	// since when it is at work.
	Since metav1.Time `json:"since"`
	// nodes, "complete/total".
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// reason of the member's own condition Ready, or AgentTooOld, AgentReadOnly, NoLeader, IdentityMismatch, MembersAway,
	// DeliveryFailed.
	Reason string `json:"reason"`
	// message says more, and what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// ApplyingNode is a node that is at work.
type ApplyingNode struct {
	// cluster is the name of the Cluster. Empty in a member.
	// +optional
	// +kubebuilder:default=""
	Cluster string `json:"cluster"`
	// node is its name.
	Node string `json:"node"`
	// stage that it is in.
	Stage NodeStage `json:"stage"`
	// since when it is at work, all attempts included.
	Since metav1.Time `json:"since"`
	// attempt, from 1.
	Attempt int32 `json:"attempt"`
}

// NodeStage is how far a node at work is.
// +kubebuilder:validation:Enum=Preparing;Cordoning;Draining;Upgrading;Settling;Waiting
type NodeStage string

const (
	// StagePreparing means that the container prepare runs.
	StagePreparing NodeStage = "Preparing"
	// StageCordoning means that the node is about to be cordoned.
	StageCordoning NodeStage = "Cordoning"
	// StageDraining means that pods are being evicted.
	StageDraining NodeStage = "Draining"
	// StageUpgrading means that the container upgrade runs, or is about to.
	StageUpgrading NodeStage = "Upgrading"
	// StageSettling means that the node is complete and its place stays taken for postCompleteDelay.
	StageSettling NodeStage = "Settling"
	// StageWaiting means that an attempt failed and the next one is waited for.
	StageWaiting NodeStage = "Waiting"
)

// NodeFailure is the last failure of a node.
type NodeFailure struct {
	// cluster is the name of the Cluster. Empty in a member.
	// +optional
	// +kubebuilder:default=""
	Cluster string `json:"cluster"`
	// node is its name.
	Node string `json:"node"`
	// attempt that failed, from 1.
	Attempt int32 `json:"attempt"`
	// final says that there is no attempt left.
	Final bool `json:"final"`
	// at is when it failed.
	At metav1.Time `json:"at"`
	// reason is PrepareFailed, DrainFailed, UpgradeFailed, DeadlineExceeded or JobRefused.
	Reason string `json:"reason"`
	// message says why, and what to do.
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
	// log has the last lines of the Job's log, at most ten and 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Log string `json:"log,omitempty"`
}

// Bounds of a plan's status.
const (
	// MaxPlanNodes is how many nodes at work, and how many failures, a status names.
	MaxPlanNodes = 10
	// MaxPlanMembers is how many members a status names.
	MaxPlanMembers = 20
)

// Conditions of a Plan beside Ready and Stalled.
const (
	// ConditionLatestResolved is True when the version is known.
	//
	// The reasons for True are Version and Channel, those for False are ChannelFailed and SecretNotFound.
	ConditionLatestResolved = "LatestResolved"

	// ConditionComplete is True when all nodes that the plan is for have it as it is now. It is True also when there is
	// none. Ready has the same status and reason. It is True with MembersAway as well, if a member is complete and none
	// failed: what can be reached has the plan.
	//
	// The reasons for True are Complete, NoNodes and NoClusters; those for False are Applying, AwaitingRetry,
	// AwaitingWindow, AwaitingSlot, AwaitingNodes, Soaking, Settling, Held, Paused, MembersAway, MemberLost, MemberAhead,
	// NodeFailed, TooManyFailures, those of LatestResolved, and ClusterNotFound, InvalidSelector, InvalidPlan,
	// WrongNamespace, AgentTooOld, AgentReadOnly, NoLeader, IdentityMismatch, DeliveryFailed.
	ConditionComplete = "Complete"
)

// Reasons of a Plan's conditions. Those that are also reasons of Stalled say so.
const (
	// ReasonVersion: the version is that of the spec.
	ReasonVersion = "Version"
	// ReasonChannel: the version was found in the channel.
	ReasonChannel = "Channel"
	// ReasonChannelFailed: the channel did not answer with a version, and none was found before. It is asked again.
	ReasonChannelFailed = "ChannelFailed"
	// ReasonSecretNotFound: a Secret that the plan names does not exist, or on the hub is not labelled for plans. Stalled.
	ReasonSecretNotFound = "SecretNotFound"

	// ReasonComplete: all nodes that the plan is for have it.
	ReasonComplete = "Complete"
	// ReasonNoNodes: no node is selected at present.
	ReasonNoNodes = "NoNodes"

	// ReasonApplying: nodes are at work.
	ReasonApplying = "Applying"
	// ReasonAwaitingRetry: an attempt failed and the next one is waited for.
	ReasonAwaitingRetry = "AwaitingRetry"
	// ReasonAwaitingWindow: the window is closed; the message says until when.
	ReasonAwaitingWindow = "AwaitingWindow"
	// ReasonAwaitingSlot: another plan has the nodes, or is exclusive; the message names it.
	ReasonAwaitingSlot = "AwaitingSlot"
	// ReasonAwaitingNodes: nodes that are left are not ready, or one that is complete has not become ready again.
	ReasonAwaitingNodes = "AwaitingNodes"
	// ReasonSoaking: a wave is complete and its soak is not over.
	ReasonSoaking = "Soaking"
	// ReasonSettling: a node is complete and its place stays taken for postCompleteDelay.
	ReasonSettling = "Settling"
	// ReasonHeld: the member holds plans off, or its own window is closed; on the hub, all members that are left do.
	ReasonHeld = "Held"
	// ReasonPaused: spec.paused is true.
	ReasonPaused = "Paused"

	// ReasonNodeFailed: a node has no attempt left; status.failures says why. Change the plan to try again. Stalled.
	ReasonNodeFailed = "NodeFailed"
	// ReasonTooManyFailures: more members failed than maxFailedClusters. Stalled.
	ReasonTooManyFailures = "TooManyFailures"
	// ReasonMemberAhead: on the hub, members completed a revision of the plan that this hub did not give them: it was
	// restored from an older backup. Nothing begins before a person applies the plan as it should be, or annotates it with
	// AnnotationResume. Stalled.
	ReasonMemberAhead = "MemberAhead"
	// ReasonMemberLost: on the hub, a member went away at work more than 5 minutes ago, and keeps its place, for its nodes
	// may be in the middle of an upgrade. The message names it and what to do. Other members go on as far as there are
	// places.
	ReasonMemberLost = "MemberLost"
	// ReasonInvalidPlan: the spec passes the schema and cannot be used; the message says why. Stalled.
	ReasonInvalidPlan = "InvalidPlan"
	// ReasonWrongNamespace: in a member, only Plans in the namespace drover-plans are run. Stalled.
	ReasonWrongNamespace = "WrongNamespace"
)

// Reasons of a node's failure.
const (
	// ReasonPrepareFailed: the container prepare ended with an error.
	ReasonPrepareFailed = "PrepareFailed"
	// ReasonDrainFailed: the node could not be drained in time.
	ReasonDrainFailed = "DrainFailed"
	// ReasonUpgradeFailed: the container upgrade ended with an error, or its Job was ended by Kubernetes.
	ReasonUpgradeFailed = "UpgradeFailed"
	// ReasonDeadlineExceeded: the Job took longer than jobActiveDeadlineSecs; an image that cannot be pulled ends so.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonJobRefused: the member's API server refused the Job.
	ReasonJobRefused = "JobRefused"
)

// What a plan reads and writes on other objects.
const (
	// PlansNamespace is the only namespace of a member in which Plans are run; their Jobs and Secrets are there too.
	PlansNamespace = "drover-plans"

	// LabelPlanPrefix + "/<plan>" on a Node, and on a Cluster of the hub, is the hash of what it has of that plan, or
	// PlanDisabled. Drover sets the hash; a person may set PlanDisabled, or remove the label to have the node done again.
	// As an annotation it is the claim: since when the plan is at work there and how far it is. Only Drover sets that.
	LabelPlanPrefix = "plan." + Group

	// PlanDisabled as the value of a plan's label leaves a Node, or a Cluster, out.
	PlanDisabled = "disabled"

	// LabelPlansHold on a Cluster of the hub, or on the Namespace drover-plans of a member, holds all plans off: no node
	// begins. Any value but "false".
	LabelPlansHold = "plans." + Group + "/hold"

	// AnnotationPlansWindow on the Namespace drover-plans of a member is the member's own window for all plans: days,
	// times and time zone, each of which can be left out, such as "Sat,Sun 02:00-06:00 Europe/Berlin".
	AnnotationPlansWindow = "plans." + Group + "/window"

	// LabelPlansUse with the value "true" on a Secret of a workspace lets Plans of the workspace copy it to their members.
	LabelPlansUse = "plans." + Group + "/use"

	// AnnotationRevision on a Plan in a member is the revision of the hub's Plan that it was made of. Drover sets it.
	AnnotationRevision = Group + "/revision"
	// AnnotationResume on a Plan of the hub lets the revision that is its value go on although members completed another:
	// see ReasonMemberAhead.
	AnnotationResume = Group + "/resume"
)

// PlanLabel is the key of a plan on Nodes and Clusters, of the label as of the annotation.
func PlanLabel(plan string) string { return LabelPlanPrefix + "/" + plan }
