// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Labels and annotations that Drover reads or writes. All begin with the API group.
const (
	// LabelCluster names the Cluster that an object on the hub belongs to. Drover sets it on the
	// Secrets that it makes for a Cluster.
	LabelCluster = Group + "/cluster"

	// LabelHost names the Host that a Secret belongs to. Drover sets it on the Secrets that it makes for a Host, and a
	// person on the one with its plan.
	LabelHost = Group + "/host"

	// LabelSecretKind says what a Secret that Drover made is for: one of the SecretKind constants.
	LabelSecretKind = Group + "/secret"

	// LabelDistribution is set on a Cluster once its agent has reported: the distribution, for
	// example "k3s", "rke2", "eks", "kubernetes".
	LabelDistribution = Group + "/distribution"

	// LabelVersion is set on a Cluster once its agent has reported: major and minor version, for example "v1.36".
	LabelVersion = Group + "/version"

	// AnnotationRotate on the hub's CA Secret starts the change to a new certificate authority
	// (docs/operations/certificates.md). Any value that differs from the last one counts.
	AnnotationRotate = Group + "/rotate"

	// AnnotationRetireNow on the hub's CA Secret, with the value of AnnotationRotate, ends the trust in the authority that
	// was replaced, as when its key was stolen. Agents that were away since, and kubeconfigs that have only that one, no
	// longer verify the hub.
	AnnotationRetireNow = Group + "/retire-now"

	// AnnotationAgentDigest on the pods of an agent identifies what the hub made of spec.agent for them. Drover sets it.
	AnnotationAgentDigest = Group + "/agent-digest"

	// AnnotationAgentReplicas on the agent's Deployment is AgentReplicasByNodes while the agent sets the number of its
	// replicas by the number of nodes. Drover sets it, and not when spec.agent.replicas says how many.
	AnnotationAgentReplicas = Group + "/agent-replicas"

	// AnnotationRestored on a Cluster, with the value of status.restore.checkpoint, confirms what the hub would change in
	// the member after its etcd was restored. It takes update on clusters/agent.
	AnnotationRestored = Group + "/restored"

	// AnnotationTerms on the Lease of the hub's leader has the latest leaders, and how often each renewed it. Drover sets
	// it.
	AnnotationTerms = Group + "/terms"

	// AnnotationRotated on the hub's CA Secret is the value of AnnotationRotate that was last acted on. Drover sets it.
	AnnotationRotated = Group + "/rotated"
)

// AnnotationNodeAgent on the agent's Deployment is "true" while the agent keeps a DaemonSet of node agents beside it.
const AnnotationNodeAgent = Group + "/node-agent"

// AnnotationDirectAccess on the agent's Deployment is the mode APIServer while the agent keeps a DaemonSet beside it,
// which API servers ask about users' tokens.
const AnnotationDirectAccess = Group + "/direct-access"

// AgentReplicasByNodes is the value of AnnotationAgentReplicas.
const AgentReplicasByNodes = "by-nodes"

// Labels and annotations of what is delivered to members.
const (
	// LabelProject names a Project. On a Namespace in a member it says which project the namespace is in; on a Secret in a
	// workspace, that it is copied to all namespaces of that project.
	LabelProject = Group + "/project"

	// LabelIngress with the value "true" on a Namespace in a member lets its pods open connections into projects whose
	// networkIsolation is Project: for ingress controllers, meshes and monitoring. Set by the member's administrator.
	LabelIngress = Group + "/ingress"

	// LabelSet is on every object that Drover made in a member: the set that it belongs to, such as
	// "crtb.alice-owns-prod".
	LabelSet = Group + "/set"

	// LabelManagedBy is on every object that Drover made in a member, with the value ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"

	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "drover"

	// AnnotationExceptNamespaces on a Secret with LabelProject lists namespaces that get no copy, separated by commas.
	AnnotationExceptNamespaces = Group + "/except-namespaces"
)

// Annotations of the Secret "<host>-host-plan" of a plan that Drover made.
const (
	// AnnotationPlanDigest is a digest of the plan.
	AnnotationPlanDigest = Group + "/plan-digest"
	// AnnotationPlanNote is what the controller that made the plan wants to remember.
	AnnotationPlanNote = Group + "/plan-note"
)

// Values of LabelSecretKind.
const (
	// SecretKindRegistration marks the Secret "<cluster>-registration" with the join token and the agent's manifest.
	SecretKindRegistration = "registration"
	// SecretKindAgent marks the Secret "<cluster>-agent" with the public key of the agent that joined.
	SecretKindAgent = "agent"
	// SecretKindHostJoin marks the Secret "<host>-host-join" with the join token and command of a Host.
	SecretKindHostJoin = "host-join"
	// SecretKindHostAgent marks the Secret "<host>-host-identity" with the public key of a Host's agent.
	SecretKindHostAgent = "host-identity"
	// SecretKindHostPlan marks the Secret "<host>-host-plan" with the plan of a Host, which a person or a controller
	// makes.
	SecretKindHostPlan = "host-plan"
	// SecretKindKubeconfig marks the Secret "<cluster>-kubeconfig", with which Cluster API reaches a cluster through the
	// hub. It holds no credential.
	SecretKindKubeconfig = "kubeconfig"
	// SecretKindProvision marks the Secret "<installation>-provision" of a ClusterInstallation.
	SecretKindProvision = "provision"
	// SecretKindAuthority marks the Secret with the hub's own CA.
	SecretKindAuthority = "authority"
	// SecretKindSignIn marks the Secret with the keys that sign users' tokens.
	SecretKindSignIn = "sign-in"
	// SecretKindUser marks the Secret "drover-user-<user>" with the hash of a User's password.
	SecretKindUser = "user"
	// SecretKindProvider marks Secrets that AuthProviders may name. An administrator of the hub makes them.
	SecretKindProvider = "provider"
	// SecretKindSession marks the Secret "drover-session-<id>" of a user who has signed in.
	SecretKindSession = "session"
	// SecretKindToken marks the Secret "drover-token-<id>" of a token that a user made for scripts.
	SecretKindToken = "token"
)

// Suffixes of the Secrets that belong to a Cluster.
const (
	// RegistrationSecretSuffix follows the Cluster's name in the name of its registration Secret.
	RegistrationSecretSuffix = "-registration"
	// AgentSecretSuffix follows the Cluster's name in the name of the Secret that holds the agent's identity.
	AgentSecretSuffix = "-agent"
)

// LabelImport with the value "true" on a Cluster of Cluster API has that cluster imported, and on a Cluster has its
// agent installed by Cluster API's kubeconfig.
const LabelImport = Group + "/import"

// FinalizerUninstall keeps a deleted Cluster until its agent has removed what Drover put into the
// member, or until it is clear that the member cannot be reached.
const FinalizerUninstall = Group + "/uninstall"
