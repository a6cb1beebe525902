// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PlanStatus describes the progress of a Plan. In a member, the agent writes it. On the hub, the manager derives it
// from the reports of the members' agents.
type PlanStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains LatestResolved, Complete and Ready. It also contains Stalled while manual action is required.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// latestVersion is the version to install. It comes from spec.version or from the channel. Each "+" in the version is
	// replaced with "-".
	// +optional
	LatestVersion string `json:"latestVersion,omitempty"`

	// latestHash is the value of the plan's label on nodes that have completed the plan. It is a hash of the version,
	// the fields that define the work on a node, and the content of the Secrets that the plan mounts.
	// +optional
	LatestHash string `json:"latestHash,omitempty"`

	// revision is the revision of the Plan on the hub that this status describes. In a member, it is the value of the
	// "cluster.drover.dev/revision" annotation, which the hub sets. On the hub, it is the Plan's current revision.
	// +optional
	Revision string `json:"revision,omitempty"`

	// clusters counts the members that the plan applies to. The field is absent in a member.
	// +optional
	Clusters *PlanCount `json:"clusters,omitempty"`

	// nodes counts the nodes that the plan applies to. On the hub, only the nodes of members that have started the plan
	// are counted.
	// +optional
	Nodes *PlanCount `json:"nodes,omitempty"`

	// waves lists the waves in order. The last wave, "rest", contains the members that no other wave selects. The field
	// is absent in a member.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=17
	Waves []WaveStatus `json:"waves,omitempty"`

	// members lists up to 20 members. Failed members come first, then members whose upgrade checks have findings, then
	// members in which the plan is in progress. Each group is sorted by name. The field is absent in a member.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=20
	Members []PlanMember `json:"members,omitempty"`

	// applying lists up to 10 nodes on which the plan is in progress, sorted by cluster and node.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=10
	Applying []ApplyingNode `json:"applying,omitempty"`

	// failures lists up to 10 nodes whose last attempt failed, sorted by cluster and node.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=10
	Failures []NodeFailure `json:"failures,omitempty"`

	// gates describes the findings and overrides of the plan's gates. The field is absent if there are no findings and no
	// overrides.
	// +optional
	// +structType=atomic
	Gates *GateStatus `json:"gates,omitempty"`
}

// PlanCount counts members or nodes.
type PlanCount struct {
	// total is the number of members or nodes that the plan applies to.
	Total int32 `json:"total"`
	// complete is the number of members or nodes that have completed the current revision of the plan.
	Complete int32 `json:"complete"`
	// applying is the number of members or nodes that the plan is being applied to, including nodes that are waiting for a
	// retry.
	Applying int32 `json:"applying"`
	// failed is the number of nodes that have failed and have no attempts left, or the number of members with such nodes.
	Failed int32 `json:"failed"`
	// held is the number of members or nodes that are currently skipped. A node is held while it is not ready. Nodes on
	// which the plan's label has the value "disabled" are not counted. A member is held while it is disconnected, its
	// plans are on hold, its own window is closed, or its upgrade checks have findings.
	Held int32 `json:"held"`
	// leftOut is the number of selected nodes that are not counted because they do not run Linux. Plans run only on Linux
	// nodes.
	// +optional
	LeftOut int32 `json:"leftOut,omitempty"`
	// summary is "<complete>/<total>".
	Summary string `json:"summary"`
}

// WaveStatus describes the progress of a wave.
type WaveStatus struct {
	// name is the name of the wave.
	Name string `json:"name"`
	// clusters counts the members in the wave.
	Clusters PlanCount `json:"clusters"`
	// completionTime is the time when the last member of the wave completed the plan. The field is absent until then. It
	// is never set for a wave without a soak time.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
	// soakUntil is the time when the wave's soak time ends. The field is absent until the wave is complete.
	// +optional
	SoakUntil *metav1.Time `json:"soakUntil,omitempty"`
	// approval is the approval of the wave. The field is absent if the wave does not require approval.
	// +optional
	Approval *WaveApproval `json:"approval,omitempty"`
}

// PlanMember describes the progress of the plan in a member.
type PlanMember struct {
	// name is the name of the Cluster.
	Name string `json:"name"`
	// wave is the wave that the member belongs to.
	Wave string `json:"wave"`
	// since is the time when the member started the plan.
	Since metav1.Time `json:"since"`
	// nodes is the number of nodes that have completed the plan and the total number of nodes, in the format
	// "<complete>/<total>".
	// +optional
	Nodes string `json:"nodes,omitempty"`
	// reason is the reason of the Complete condition that the member reports for the plan, or Delivering, AgentTooOld,
	// AgentReadOnly, NoLeader, IdentityMismatch, MembersAway or DeliveryFailed.
	Reason string `json:"reason"`
	// message gives details and says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message,omitempty"`
}

// ApplyingNode is a node on which a Plan is in progress.
type ApplyingNode struct {
	// cluster is the name of the Cluster. The field is empty if the Plan is in a member.
	// +optional
	// +kubebuilder:default=""
	Cluster string `json:"cluster"`
	// node is the name of the node.
	Node string `json:"node"`
	// stage is the stage that the work on the node has reached.
	Stage NodeStage `json:"stage"`
	// since is the time when the first attempt on the node started.
	Since metav1.Time `json:"since"`
	// attempt is the number of the current attempt, starting at 1.
	Attempt int32 `json:"attempt"`
}

// NodeStage is the stage that the work on a node has reached.
// +kubebuilder:validation:Enum=Preparing;Cordoning;Draining;Upgrading;Settling;Waiting
type NodeStage string

const (
	// StagePreparing means that the prepare container is running.
	StagePreparing NodeStage = "Preparing"
	// StageCordoning means that the node is about to be cordoned.
	StageCordoning NodeStage = "Cordoning"
	// StageDraining means that pods are being evicted.
	StageDraining NodeStage = "Draining"
	// StageUpgrading means that the upgrade container is running or about to start.
	StageUpgrading NodeStage = "Upgrading"
	// StageSettling means that the node has completed the plan, but counts toward concurrency until postCompleteDelay has
	// passed.
	StageSettling NodeStage = "Settling"
	// StageWaiting means that an attempt failed and the node is waiting for the next one.
	StageWaiting NodeStage = "Waiting"
)

// NodeFailure describes the failure of the last attempt on a node.
type NodeFailure struct {
	// cluster is the name of the Cluster. The field is empty if the Plan is in a member.
	// +optional
	// +kubebuilder:default=""
	Cluster string `json:"cluster"`
	// node is the name of the node.
	Node string `json:"node"`
	// attempt is the number of the failed attempt, starting at 1.
	Attempt int32 `json:"attempt"`
	// final is true if no attempts are left.
	Final bool `json:"final"`
	// at is the time of the failure.
	At metav1.Time `json:"at"`
	// reason is PrepareFailed, DrainFailed, UpgradeFailed, DeadlineExceeded or JobRefused.
	Reason string `json:"reason"`
	// message says why the attempt failed, and what to do.
	// +kubebuilder:validation:MaxLength=512
	Message string `json:"message"`
	// log contains the last lines of the Job's log, up to 10 lines and 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Log string `json:"log,omitempty"`
}

// Limits for the status of a Plan.
const (
	// MaxPlanNodes is the maximum number of entries in status.applying, and in status.failures.
	MaxPlanNodes = 10
	// MaxPlanMembers is the maximum number of entries in status.members.
	MaxPlanMembers = 20
)

// Conditions of a Plan in addition to Ready and Stalled.
const (
	// ConditionLatestResolved is True when the version to install is known.
	//
	// The reasons for True are Version and Channel. The reasons for False are ChannelFailed and SecretNotFound.
	ConditionLatestResolved = "LatestResolved"

	// ConditionComplete is True when all nodes that the plan applies to have completed its current revision, or when there
	// are no such nodes. Ready has the same status and reason, with one exception: Ready is True with reason MembersAway
	// if some members are disconnected, at least one member is complete, and no member has failed. In that case, every
	// reachable member is up to date.
	//
	// The reasons for True are Complete, NoNodes and NoClusters. The reasons for False are Applying, AwaitingRetry,
	// AwaitingApproval, AwaitingWindow, AwaitingSlot, AwaitingNodes, UpgradeUnsafe, Soaking, Settling, Held, Paused,
	// MembersAway, MemberLost, MemberAhead, NodeFailed, TooManyFailures, ClusterNotFound, InvalidSelector, InvalidPlan,
	// WrongNamespace, AgentTooOld, AgentReadOnly, NoLeader, IdentityMismatch and DeliveryFailed. If LatestResolved is
	// False, Complete has the same reason.
	ConditionComplete = "Complete"
)

// Reasons of a Plan's conditions. When a Plan becomes Stalled, manual action is required, and the Stalled condition has
// the same reason.
const (
	// ReasonVersion means that the version comes from spec.version.
	ReasonVersion = "Version"
	// ReasonChannel means that the version comes from the channel.
	ReasonChannel = "Channel"
	// ReasonChannelFailed means that the channel did not return a version, and no earlier version is known. Drover
	// queries the channel again later.
	ReasonChannelFailed = "ChannelFailed"
	// ReasonSecretNotFound means that a Secret that the plan refers to does not exist. On the hub, it can also mean
	// that the Secret lacks the label plans.cluster.drover.dev/use. The Plan becomes Stalled.
	ReasonSecretNotFound = "SecretNotFound"

	// ReasonComplete means that all nodes that the plan applies to have completed it.
	ReasonComplete = "Complete"
	// ReasonNoNodes means that the plan currently selects no nodes.
	ReasonNoNodes = "NoNodes"

	// ReasonApplying means that the plan is in progress on nodes.
	ReasonApplying = "Applying"
	// ReasonAwaitingRetry means that an attempt failed, and the next attempt has not started yet.
	ReasonAwaitingRetry = "AwaitingRetry"
	// ReasonAwaitingWindow means that the window is closed. The message says when it opens.
	ReasonAwaitingWindow = "AwaitingWindow"
	// ReasonAwaitingSlot means that another plan is using the nodes, or that another exclusive plan is in progress. The
	// message names the other plan.
	ReasonAwaitingSlot = "AwaitingSlot"
	// ReasonAwaitingNodes means that the remaining nodes are not ready, or have taints that the plan does not tolerate.
	// It is also used while a node that has completed the plan has not become ready again.
	ReasonAwaitingNodes = "AwaitingNodes"
	// ReasonAwaitingApproval means that a wave requires approval. The message names the wave and the revision to approve.
	ReasonAwaitingApproval = "AwaitingApproval"
	// ReasonSoaking means that a wave is complete, but its soak time has not passed yet.
	ReasonSoaking = "Soaking"
	// ReasonSettling means that a node has completed the plan, but counts toward concurrency until postCompleteDelay has
	// passed.
	ReasonSettling = "Settling"
	// ReasonHeld means that plans in the member are on hold, or that the member's own window is closed. On the hub, this
	// applies to all of the remaining members.
	ReasonHeld = "Held"
	// ReasonPaused means that spec.paused is true.
	ReasonPaused = "Paused"

	// ReasonNodeFailed means that a node has failed and has no attempts left. status.failures says why. To try again,
	// change the Plan, or pause and resume it. The Plan becomes Stalled.
	ReasonNodeFailed = "NodeFailed"
	// ReasonTooManyFailures means that more members have failed than maxFailedClusters allows. The Plan becomes Stalled.
	ReasonTooManyFailures = "TooManyFailures"
	// ReasonMemberLost means that a member in which the plan is in progress has been disconnected for more than 5 minutes.
	// Only the hub uses this reason. The member still counts toward maxConcurrentClusters, because its nodes might be in
	// the middle of an upgrade. The message names the member and says what to do. Other members continue within the limit.
	ReasonMemberLost = "MemberLost"
	// ReasonInvalidPlan means that the spec passes the schema but cannot be used. The message says why. The Plan
	// becomes Stalled.
	ReasonInvalidPlan = "InvalidPlan"
	// ReasonWrongNamespace means that a Plan in a member is in a namespace other than drover-plans, so it does not run.
	// The Plan becomes Stalled.
	ReasonWrongNamespace = "WrongNamespace"
)

// Reasons of a node's failure.
const (
	// ReasonPrepareFailed means that the prepare container exited with an error.
	ReasonPrepareFailed = "PrepareFailed"
	// ReasonDrainFailed means that the node could not be drained in time.
	ReasonDrainFailed = "DrainFailed"
	// ReasonUpgradeFailed means that the upgrade container exited with an error, or that Kubernetes terminated its Job.
	ReasonUpgradeFailed = "UpgradeFailed"
	// ReasonDeadlineExceeded means that the Job took longer than jobActiveDeadlineSecs. This also happens if the image
	// cannot be pulled.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonJobRefused means that the member's API server rejected the Job.
	ReasonJobRefused = "JobRefused"
)

// Names, labels and annotations that plans use on other objects.
const (
	// PlansNamespace is the only namespace in a member in which Plans run. It also contains their Jobs and Secrets.
	PlansNamespace = "drover-plans"

	// LabelPlanPrefix, followed by "/<plan>", is the key of a label on Nodes in members, and on Clusters on the hub. The
	// value is the hash of the plan that was completed there, or PlanDisabled. Drover sets the hash. Users can set
	// PlanDisabled, or remove the label to run the plan on the node again. While the plan is in progress, Drover records
	// the start time and the progress in an annotation with the same key. Users must not set this annotation.
	LabelPlanPrefix = "plan." + Group

	// PlanDisabled as the value of a plan's label excludes a Node or a Cluster from that plan.
	PlanDisabled = "disabled"

	// LabelPlansHold on a Cluster on the hub, or on the drover-plans Namespace in a member, puts all plans in that member
	// on hold. Plans on hold do not start work on any more nodes. Any value except "false" has this effect.
	LabelPlansHold = "plans." + Group + "/hold"

	// AnnotationPlansWindow on the drover-plans Namespace in a member is the member's own window for all plans. It
	// consists of days, times and a time zone, for example "Sat,Sun 02:00-06:00 Europe/Berlin". Each of these parts is
	// optional.
	AnnotationPlansWindow = "plans." + Group + "/window"

	// LabelPlansUse with the value "true" on a Secret in a workspace allows Plans in the workspace to copy the Secret
	// to their members.
	LabelPlansUse = "plans." + Group + "/use"

	// AnnotationRevision on a Plan in a member is the revision of the hub's Plan from which it was created. Drover sets
	// it.
	AnnotationRevision = Group + "/revision"
	// AnnotationResume on a Plan on the hub resumes the plan at the revision in the annotation's value, even if members
	// have completed a different revision. See ReasonMemberAhead.
	AnnotationResume = Group + "/resume"
)

// PlanLabel returns the key of a plan's label and annotation on Nodes and Clusters.
func PlanLabel(plan string) string { return LabelPlanPrefix + "/" + plan }
