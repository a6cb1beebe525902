// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Conditions of a Cluster. All have positive polarity: True is good.
const (
	// ConditionRegistered is True when an agent has joined with the Cluster's token and its key is known.
	//
	// Possible reasons for False are AwaitingAgent, TokenExpired, TokenUsed, TokenInvalid, SecretConflict,
	// RegistrationFailed. The reason for True is AgentJoined; IdentityMismatch is reported there as well, as a message,
	// while the rightful agent stays connected.
	ConditionRegistered = "Registered"

	// ConditionConnected is True while at least one tunnel of the Cluster's agent is open.
	//
	// Possible reasons for False are AwaitingAgent, TunnelLost, IdentityMismatch.
	ConditionConnected = "Connected"

	// ConditionReady is True when the Cluster can be worked with through the hub: an agent has joined,
	// its tunnel is open and the API server behind it is healthy. It is what kstatus, Flux and Argo CD look at.
	//
	// Possible reasons for False are those of Registered and Connected, and ApiServerUnhealthy,
	// VersionSkew, AwaitingReport, Removing. The reason for True is Connected.
	ConditionReady = "Ready"

	// ConditionStalled is present, and True, only when a person must act before the object can become Ready.
	// It has the reason of Ready.
	ConditionStalled = "Stalled"

	// ConditionAgentUpToDate is True when the agent in the member runs as spec.agent says. Ready does not depend on it. It
	// is absent before the first report and stays as it was while the member is away.
	//
	// The reason for True is AgentUpdated, those for False are AgentUpdating, AgentWaiting, AgentRolledBack,
	// AgentRejected, AgentProfileDiffers, AgentNotReady, that for Unknown is AgentUnmanaged.
	ConditionAgentUpToDate = "AgentUpToDate"

	// ConditionWithdrawn is present, and False, only while a member has what was delivered before its agent became
	// ReadOnly: such an agent may not take it back, so it is still in force. The message names it and says what to do.
	//
	// The reason for False is StillInForce; or UnclaimedObjects, where objects with a set's label belong to nothing on the
	// hub.
	ConditionWithdrawn = "Withdrawn"

	// ConditionRestoreConfirmed is present, and False, only while the hub changes nothing in the member because its etcd
	// was restored from a backup that is older than what the member has. status.restore says what would change.
	//
	// The reason for False is HubRestored.
	ConditionRestoreConfirmed = "RestoreConfirmed"

	// ConditionMaintained is present, and False, only while replicas of the agent are connected and none has led for
	// a minute: users are served, and nothing is delivered, repaired or taken away at its time. Ready does not depend
	// on it.
	//
	// The reason for False is NoLeader.
	ConditionMaintained = "Maintained"

	// ConditionContinuous is present, and False, only for a day after the agent noticed that its cluster's etcd had
	// gone back to an earlier state. Ready does not depend on it.
	//
	// The reason for False is MemberRestored.
	ConditionContinuous = "Continuous"

	// ConditionGuardsApplied is True when the admission policies are in force in the member that keep its users from
	// changing what Projects put there. Ready does not depend on it. It is absent before this is known, and where the
	// agent takes nothing; it stays as it was while the member is away.
	//
	// The reason for True is GuardsApplied, those for False are Conflict, Fighting, DeliveryFailed, AgentTooOld, NoLeader,
	// IdentityMismatch.
	ConditionGuardsApplied = "GuardsApplied"

	// ConditionDirectAccess is True when the agent has what it serves users by who come without the hub. It is absent
	// without spec.authorizedEndpoint, and before it is known; it stays as it was while the member is away. Ready does not
	// depend on it.
	//
	// The reason for True is Delivered, those for False are SignInOff, CertificateMissing, DaemonSetMissing,
	// AgentReadOnly, AgentTooOld, Conflict, Fighting, DeliveryFailed, NoLeader, IdentityMismatch.
	ConditionDirectAccess = "DirectAccess"
)

// Reasons of a Cluster's conditions.
const (
	// ReasonGuardsApplied: the policies that guard projects are in force in the member.
	ReasonGuardsApplied = "GuardsApplied"
	// ReasonDirectAccess: the agent has what it serves users by who come without the hub.
	ReasonDirectAccess = "Delivered"
	// ReasonSignInOff: users do not sign in at the hub, so that there are no tokens for direct access.
	ReasonSignInOff = "SignInOff"
	// ReasonCertificateMissing: the agent has reported no certificate for direct access.
	ReasonCertificateMissing = "CertificateMissing"
	// ReasonDaemonSetMissing: what the member's API servers ask about users' tokens does not run on the nodes of the
	// control plane.
	ReasonDaemonSetMissing = "DaemonSetMissing"
	// ReasonAwaitingAgent: no agent has joined yet. Run the command in the Secret "<cluster>-registration" in the member.
	ReasonAwaitingAgent = "AwaitingAgent"
	// ReasonTokenExpired: no agent joined before the token expired. Delete the Secret "<cluster>-registration" for a new
	// one.
	ReasonTokenExpired = "TokenExpired"
	// ReasonTokenUsed: the token that spec.registration.tokenSecretRef names has been used and the agent that used it was
	// revoked. Put a new token into that Secret.
	ReasonTokenUsed = "TokenUsed"
	// ReasonTokenInvalid: the Secret or key that spec.registration.tokenSecretRef names is missing, or what it
	// holds is shorter than 32 characters.
	ReasonTokenInvalid = "TokenInvalid"
	// ReasonPending: the manager has not looked at the Cluster yet. The schema sets it, with status Unknown.
	ReasonPending = "Pending"
	// ReasonProfileTaken: a ClusterProfile of the Cluster's name is of another cluster manager; the event's message says
	// of which.
	ReasonProfileTaken = "ProfileTaken"
	// ReasonRegistrationFailed: the registration Secret could not be written; the message says why. It is tried again.
	ReasonRegistrationFailed = "RegistrationFailed"
	// ReasonSecretConflict: a Secret of the name that Drover needs exists and is not Drover's. Rename or delete it, or
	// rename the Cluster.
	ReasonSecretConflict = "SecretConflict"
	// ReasonTooManyClusters: the workspace has as many older Clusters as the hub's configuration lets it have. Stalled.
	ReasonTooManyClusters = "TooManyClusters"
	// ReasonAgentJoined: an agent has joined and its key is known.
	ReasonAgentJoined = "AgentJoined"
	// ReasonAgentTooFast: the agent sends more reports or changes than the hub lets it; its tunnels were ended.
	ReasonAgentTooFast = "AgentTooFast"
	// ReasonTooManyTunnels: the workspace has as many tunnels as the hub's configuration lets it have.
	ReasonTooManyTunnels = "TooManyTunnels"
	// ReasonAlreadyImported: the member's agent is another Cluster of this hub already, and can be one only.
	ReasonAlreadyImported = "AlreadyImported"
	// ReasonIdentityMismatch: another cluster, or another key, showed this Cluster's token or name and was refused;
	// or two clusters have its agent's key, as after etcd was copied, and the hub serves neither.
	ReasonIdentityMismatch = "IdentityMismatch"
	// ReasonConnected: the agent's tunnel is open.
	ReasonConnected = "Connected"
	// ReasonConnectedByNodeAgent: a node agent's tunnel is open, and none of the agent's Deployment.
	ReasonConnectedByNodeAgent = "ConnectedByNodeAgent"
	// ReasonTunnelLost: the agent was connected and no longer is. status.lastSeen says since when.
	ReasonTunnelLost = "TunnelLost"
	// ReasonAwaitingReport: the tunnel is open and the agent has not said yet how its cluster is.
	ReasonAwaitingReport = "AwaitingReport"
	// ReasonAPIServerUnhealthy: the agent is connected and finds its own API server unhealthy.
	ReasonAPIServerUnhealthy = "ApiServerUnhealthy"
	// ReasonVersionSkew: agent and hub speak no common protocol version. The message says which of the two to upgrade.
	ReasonVersionSkew = "VersionSkew"
	// ReasonRemoving: the Cluster is being deleted and its agent uninstalls itself.
	ReasonRemoving = "Removing"
)

// Reasons of the condition AgentUpToDate.
const (
	// ReasonAgentUpdated: the agent's Deployment is rolled out as spec.agent says.
	ReasonAgentUpdated = "AgentUpdated"
	// ReasonAgentUpdating: the agent's Deployment was changed and its pods are not ready yet, or it is about to be
	// changed.
	ReasonAgentUpdating = "AgentUpdating"
	// ReasonAgentWaiting: the agent runs as spec.agent says, with what the hub gave agents before, and has not had its
	// turn to be upgraded.
	ReasonAgentWaiting = "AgentWaiting"
	// ReasonAgentRolloutStopped is of an event alone: more agents failed to be upgraded than the hub's configuration
	// allows, so no other of the workspace begins, or none at all.
	ReasonAgentRolloutStopped = "AgentRolloutStopped"
	// ReasonNodeAgentsMissing: spec.agent asks for node agents, and the agent cannot make them, or their pods are refused.
	ReasonNodeAgentsMissing = "NodeAgentsMissing"
	// ReasonAgentNotReady: the agent's Deployment is as spec.agent says, and its deadline (progressDeadlineSeconds) has
	// passed before all of its pods are ready. The message says what keeps them. Requests may be served all the same, by
	// the pods that are ready.
	ReasonAgentNotReady = "AgentNotReady"
	// ReasonAgentRolledBack: with what spec.agent says the agent did not become ready in time, and was put back to what it
	// was. The message says why. It is not tried again until spec.agent, or the hub's configuration, changes.
	ReasonAgentRolledBack = "AgentRolledBack"
	// ReasonAgentRejected: the member's API server, or the agent, refused the Deployment that spec.agent makes. The
	// message says why. It is not tried again until spec.agent, or the hub's configuration, changes.
	ReasonAgentRejected = "AgentRejected"
	// ReasonAgentProfileDiffers: the agent was installed with another profile than spec.agent.profile says. The rights of
	// an agent come with its manifest, so neither hub nor agent changes it. Apply the manifest in the Secret
	// "<cluster>-registration".
	ReasonAgentProfileDiffers = "AgentProfileDiffers"
	// ReasonAgentUnmanaged: the agent cannot change its own Deployment: there is none, or its manifest is of an older
	// Drover. Apply the manifest in the Secret "<cluster>-registration" to have it so.
	ReasonAgentUnmanaged = "AgentUnmanaged"
)

// The reason of the condition Withdrawn.
const (
	// ReasonStillInForce: the agent was made ReadOnly before a Full one had taken back what was delivered.
	ReasonStillInForce = "StillInForce"
	// ReasonUnclaimedObjects: a member has objects with a set's label that belong to no set and that the agent has not
	// made.
	ReasonUnclaimedObjects = "UnclaimedObjects"
)

// The reasons of the conditions Maintained and Continuous.
const (
	// ReasonNoLeader: no replica of the agent leads, as when its API server refuses it the Lease.
	ReasonNoLeader = "NoLeader"
	// ReasonMemberRestored: the cluster's etcd went back to an earlier state.
	ReasonMemberRestored = "MemberRestored"
)

// Reasons of events on a Cluster beyond those of its conditions.
const (
	// ReasonTokenCreated: a join token was made or replaced.
	ReasonTokenCreated = "TokenCreated"
	// ReasonUninstalled: the agent removed itself from the member.
	ReasonUninstalled = "Uninstalled"
	// ReasonLeftBehind: the Cluster was removed without its agent being reachable; the message says how to clean up the
	// member.
	ReasonLeftBehind = "LeftBehind"
)
