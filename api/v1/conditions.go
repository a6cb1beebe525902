// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Conditions of a Cluster. All of them except Stalled have positive polarity: True is the healthy state.
const (
	// ConditionRegistered is True when an agent has joined with the Cluster's token and the hub knows the agent's key.
	//
	// The reason for True is AgentJoined. The reasons for False are AwaitingAgent, AlreadyImported, TokenExpired,
	// TokenUsed, TokenInvalid, TooManyClusters, SecretConflict and RegistrationFailed. When the hub rejects another
	// agent while the legitimate agent is connected, only the condition's message reports the rejection.
	ConditionRegistered = "Registered"

	// ConditionConnected is True while at least one tunnel of the Cluster's agent is open.
	//
	// The reasons for True are Connected and ConnectedByNodeAgent. The reasons for False are the same as for Registered,
	// plus TunnelLost, AgentTooFast, TooManyTunnels and IdentityMismatch.
	ConditionConnected = "Connected"

	// ConditionReady is True when the Cluster can be used through the hub: an agent has joined, its tunnel is open and
	// the member's API server is healthy. Tools such as kstatus, Flux and Argo CD read this condition.
	//
	// The reasons for True are Connected and ConnectedByNodeAgent. The reasons for False are the same as for Registered
	// and Connected, plus ApiServerUnhealthy, VersionSkew, AwaitingReport and Removing.
	ConditionReady = "Ready"

	// ConditionStalled is present only while the object cannot become Ready without manual action, and is then always
	// True. It has the same reason as Ready.
	ConditionStalled = "Stalled"

	// ConditionAgentUpToDate is True when the agent in the member matches spec.agent. It does not affect Ready. It is
	// absent before the first report and keeps its value while the member is disconnected.
	//
	// The reason for True is AgentUpdated. The reasons for False are AgentUpdating, AgentWaiting, AgentRolledBack,
	// AgentRejected, AgentProfileDiffers and AgentNotReady. The reason for Unknown is AgentUnmanaged.
	ConditionAgentUpToDate = "AgentUpToDate"

	// ConditionWithdrawn is present only while a member still has objects that were delivered before its agent became
	// ReadOnly, and is then always False. A ReadOnly agent is not permitted to remove these objects, so they are still in
	// force. The message names the objects and says what to do.
	//
	// Its reason is StillInForce, or UnclaimedObjects if the member has objects whose LabelSet label names a set that no
	// object on the hub owns.
	ConditionWithdrawn = "Withdrawn"

	// ConditionMaintained is present only while replicas of the agent are connected but have had no leader for at least a
	// minute, and is then always False. During this time, users are served, but nothing is delivered or repaired, and
	// grants do not expire. Maintained does not affect Ready.
	//
	// Its reason is NoLeader.
	ConditionMaintained = "Maintained"

	// ConditionContinuous is present only for one day after the agent detects that the member's etcd was reset to an
	// earlier state, and is then always False. It does not affect Ready.
	//
	// Its reason is MemberRestored.
	ConditionContinuous = "Continuous"

	// ConditionGuardsApplied is True when the member enforces the admission policies that prevent its users from
	// changing the objects of Projects. It does not affect Ready. It is absent while the state of the policies is
	// unknown, and on Clusters whose agent does not accept deliveries. It keeps its value while the member is
	// disconnected.
	//
	// The reason for True is GuardsApplied. The reasons for False are Conflict, Fighting, DeliveryFailed, AgentTooOld,
	// NoLeader and IdentityMismatch.
	ConditionGuardsApplied = "GuardsApplied"

	// ConditionDirectAccess is True when the agent has everything that it needs to serve users without the hub. It does
	// not affect Ready. It is absent if spec.authorizedEndpoint is not set, and while the state is unknown. It keeps
	// its value while the member is disconnected.
	//
	// The reason for True is Delivered. The reasons for False are SignInOff, CertificateMissing, DaemonSetMissing,
	// AgentReadOnly, AgentTooOld, Conflict, Fighting, DeliveryFailed, NoLeader and IdentityMismatch.
	ConditionDirectAccess = "DirectAccess"
)

// Reasons of a Cluster's conditions.
const (
	// ReasonGuardsApplied means that the member enforces the admission policies that protect the objects of Projects.
	ReasonGuardsApplied = "GuardsApplied"
	// ReasonDirectAccess means that the agent has everything that it needs to serve users without the hub.
	ReasonDirectAccess = "Delivered"
	// ReasonSignInOff means that the hub's configuration does not set signIn, so there are no tokens for direct access.
	ReasonSignInOff = "SignInOff"
	// ReasonCertificateMissing means that the agent has not reported a certificate for direct access.
	ReasonCertificateMissing = "CertificateMissing"
	// ReasonDaemonSetMissing means that the control plane nodes do not run the DaemonSet that verifies users' tokens for
	// the member's API servers.
	ReasonDaemonSetMissing = "DaemonSetMissing"
	// ReasonAwaitingAgent means that no agent has joined yet. In the member, run the command from the Secret
	// "<cluster>-registration".
	ReasonAwaitingAgent = "AwaitingAgent"
	// ReasonTokenExpired means that no agent joined before the token expired. Delete the Secret
	// "<cluster>-registration" to get a new token.
	ReasonTokenExpired = "TokenExpired"
	// ReasonTokenUsed means that the token in spec.registration.tokenSecretRef was used by an agent that has been
	// revoked. Put a new token into the Secret.
	ReasonTokenUsed = "TokenUsed"
	// ReasonTokenInvalid means that the Secret or key in spec.registration.tokenSecretRef is missing, or that the token
	// is shorter than 32 characters.
	ReasonTokenInvalid = "TokenInvalid"
	// ReasonPending means that the manager has not reconciled the Cluster yet. The schema sets this reason, with status
	// Unknown, on new objects by default.
	ReasonPending = "Pending"
	// ReasonProfileTaken means that a ClusterProfile with the Cluster's name belongs to another cluster manager. The
	// event's message names that manager.
	ReasonProfileTaken = "ProfileTaken"
	// ReasonRegistrationFailed means that the registration Secret could not be written. The message says why, and
	// Drover tries again.
	ReasonRegistrationFailed = "RegistrationFailed"
	// ReasonSecretConflict means that a Secret with a name that Drover needs already exists and does not belong to
	// Drover. Rename or delete the Secret, or choose another name for the Cluster.
	ReasonSecretConflict = "SecretConflict"
	// ReasonTooManyClusters means that the workspace has more Clusters than the hub's configuration allows. Older Clusters
	// take precedence. The object becomes Stalled.
	ReasonTooManyClusters = "TooManyClusters"
	// ReasonAgentJoined means that an agent has joined and its key is known.
	ReasonAgentJoined = "AgentJoined"
	// ReasonAgentTooFast means that the hub closed the agent's tunnels because the agent exceeded the rate limits for
	// reports or changes.
	ReasonAgentTooFast = "AgentTooFast"
	// ReasonTooManyTunnels means that the workspace has reached the maximum number of tunnels that the hub's configuration
	// allows.
	ReasonTooManyTunnels = "TooManyTunnels"
	// ReasonAlreadyImported means that the member's agent already serves another Cluster of this hub. An agent can
	// serve only one Cluster.
	ReasonAlreadyImported = "AlreadyImported"
	// ReasonIdentityMismatch means that the hub rejected a different cluster, or an agent with a different key, that
	// presented this Cluster's token or name. The reason also applies when two clusters hold the same agent key, for
	// example after etcd was copied. The hub then serves neither cluster.
	ReasonIdentityMismatch = "IdentityMismatch"
	// ReasonConnected means that the agent's tunnel is open.
	ReasonConnected = "Connected"
	// ReasonConnectedByNodeAgent means that the tunnel of a node agent is open, but no replica of the agent's
	// Deployment is connected.
	ReasonConnectedByNodeAgent = "ConnectedByNodeAgent"
	// ReasonTunnelLost means that the agent has disconnected. status.lastSeen is the time of the disconnection.
	ReasonTunnelLost = "TunnelLost"
	// ReasonAwaitingReport means that the tunnel is open, but the agent has not yet reported the state of the member.
	ReasonAwaitingReport = "AwaitingReport"
	// ReasonAPIServerUnhealthy means that the agent is connected, and reports that the member's API server is
	// unhealthy.
	ReasonAPIServerUnhealthy = "ApiServerUnhealthy"
	// ReasonVersionSkew means that the agent and the hub have no protocol version in common. The message says which
	// side to upgrade.
	ReasonVersionSkew = "VersionSkew"
	// ReasonRemoving means that the Cluster is being deleted and its agent is uninstalling itself.
	ReasonRemoving = "Removing"
)

// Reasons of the AgentUpToDate condition.
const (
	// ReasonAgentUpdated means that the agent's Deployment matches spec.agent and has been rolled out.
	ReasonAgentUpdated = "AgentUpdated"
	// ReasonAgentUpdating means that the agent's Deployment is about to be changed, or that it was changed but its pods
	// are not ready yet.
	ReasonAgentUpdating = "AgentUpdating"
	// ReasonAgentWaiting means that the agent is waiting for its turn in an upgrade of all agents. Until then, it runs
	// with the hub's previous agent settings. Apart from these settings, the agent matches spec.agent.
	ReasonAgentWaiting = "AgentWaiting"
	// ReasonAgentRolloutStopped is used only in events. It means that more agent upgrades have failed than the hub's
	// configuration allows, so no more upgrades are started in the workspace or in the whole fleet.
	ReasonAgentRolloutStopped = "AgentRolloutStopped"
	// ReasonNodeAgentsMissing means that spec.agent requests node agents, but the agent cannot create them, or their
	// pods are rejected.
	ReasonNodeAgentsMissing = "NodeAgentsMissing"
	// ReasonAgentNotReady means that the agent's Deployment matches spec.agent, but progressDeadlineSeconds elapsed
	// before all of its pods were ready. The message says what blocks the pods. Pods that are ready continue to serve
	// requests.
	ReasonAgentNotReady = "AgentNotReady"
	// ReasonAgentRolledBack means that the agent did not become ready in time with the settings in spec.agent, and was
	// rolled back. The message says why. Drover tries again when spec.agent or the hub's configuration changes.
	ReasonAgentRolledBack = "AgentRolledBack"
	// ReasonAgentRejected means that the member's API server or the agent rejected the Deployment that results from
	// spec.agent. The message says why. Drover tries again when spec.agent or the hub's configuration changes.
	ReasonAgentRejected = "AgentRejected"
	// ReasonAgentProfileDiffers means that the agent was installed with a profile other than spec.agent.profile. An
	// agent's rights are part of its manifest, so neither the hub nor the agent can change them. Apply the manifest in
	// the Secret "<cluster>-registration".
	ReasonAgentProfileDiffers = "AgentProfileDiffers"
	// ReasonAgentUnmanaged means that the agent cannot change its own Deployment. Either it does not run as a Deployment,
	// or an older version of Drover wrote its manifest. Apply the manifest in the Secret "<cluster>-registration" to let
	// Drover manage the agent.
	ReasonAgentUnmanaged = "AgentUnmanaged"
)

// Reasons of the Withdrawn condition.
const (
	// ReasonStillInForce means that the agent became ReadOnly before it had withdrawn all objects that it had delivered.
	ReasonStillInForce = "StillInForce"
	// ReasonUnclaimedObjects means that the member has objects with the LabelSet label that do not belong to any set
	// and were not created by the agent.
	ReasonUnclaimedObjects = "UnclaimedObjects"
)

// Reasons of the Maintained and Continuous conditions.
const (
	// ReasonNoLeader means that no replica of the agent is the leader, for example because the API server prevents the
	// replicas from writing the Lease.
	ReasonNoLeader = "NoLeader"
	// ReasonMemberRestored means that the member's etcd was reset to an earlier state.
	ReasonMemberRestored = "MemberRestored"
)

// Reasons that are used only in events on a Cluster.
const (
	// ReasonTokenCreated means that a join token was created or replaced.
	ReasonTokenCreated = "TokenCreated"
	// ReasonUninstalled means that the agent removed itself from the member.
	ReasonUninstalled = "Uninstalled"
	// ReasonLeftBehind means that the Cluster was deleted while its agent was unreachable. The message says how to
	// clean up the member.
	ReasonLeftBehind = "LeftBehind"
)
