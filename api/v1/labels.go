// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Labels and annotations that Drover reads or writes. All keys start with the name of the API group.
const (
	// LabelCluster names the Cluster that an object on the hub belongs to. Drover sets it on the Secrets that it
	// creates for a Cluster.
	LabelCluster = Group + "/cluster"

	// LabelHost names the Host that a Secret belongs to. Drover sets it on the Secrets that it creates for a Host.
	// Users who write the Secret with a Host's instructions must set this label themselves.
	LabelHost = Group + "/host"

	// LabelSecretKind identifies the purpose of a Secret that Drover created. Its value is one of the SecretKind
	// constants.
	LabelSecretKind = Group + "/secret"

	// LabelDistribution is the distribution of a Cluster, for example "k3s", "rke2", "eks" or "kubernetes". Drover sets
	// it once the agent has sent a report.
	LabelDistribution = Group + "/distribution"

	// LabelVersion is the major and minor version of a Cluster, for example "v1.36". Drover sets it once the agent has
	// sent a report.
	LabelVersion = Group + "/version"

	// AnnotationRotate on the hub's CA Secret starts the rotation to a new certificate authority (see
	// docs/operations/certificates.md). Each new value starts another rotation.
	AnnotationRotate = Group + "/rotate"

	// AnnotationRetireNow on the hub's CA Secret ends trust in the replaced authority immediately, for example if its key
	// was stolen. The value must be the same as the value of AnnotationRotate. Kubeconfigs that contain only the old
	// authority can then no longer verify the hub. The same applies to agents that have been disconnected since the
	// rotation.
	AnnotationRetireNow = Group + "/retire-now"

	// AnnotationAgentDigest on an agent's pods identifies the agent settings that the hub computed for the Cluster.
	// Drover sets it.
	AnnotationAgentDigest = Group + "/agent-digest"

	// AnnotationAgentReplicas on the agent's Deployment has the value AgentReplicasByNodes while the number of replicas
	// depends on the number of nodes. Drover sets it unless spec.agent.replicas is set.
	AnnotationAgentReplicas = Group + "/agent-replicas"

	// AnnotationTerms on the manager's Lease lists the most recent leaders, and the number of times that each of them
	// renewed the Lease. Drover sets it.
	AnnotationTerms = Group + "/terms"

	// AnnotationRotated on the hub's CA Secret records the last value of AnnotationRotate that Drover has processed.
	// Drover sets it.
	AnnotationRotated = Group + "/rotated"
)

// AnnotationAutoUpdate with the value "false" on a built-in RoleTemplate protects your changes to the template. Without
// the annotation, the manager reverts them whenever a new leader takes over.
const AnnotationAutoUpdate = Group + "/autoupdate"

// AnnotationNodeAgent on the agent's Deployment is "true" while the agent maintains a DaemonSet of node agents.
const AnnotationNodeAgent = Group + "/node-agent"

// AnnotationDirectAccess on the agent's Deployment is "APIServer" while the agent maintains a DaemonSet that verifies
// users' tokens for the member's API servers.
const AnnotationDirectAccess = Group + "/direct-access"

// AnnotationAgentLastError on the agent's Deployment records why the agent is not connected to the hub. The value
// contains a time and an error. The agent removes the annotation when it connects.
const AnnotationAgentLastError = Group + "/agent-last-error"

// AgentReplicasByNodes is the value of AnnotationAgentReplicas.
const AgentReplicasByNodes = "by-nodes"

// Labels and annotations of objects that are delivered to members.
const (
	// LabelProject names a Project. On a Namespace in a member, it assigns the namespace to the project. On a Secret in a
	// workspace, it requests copies of the Secret in all namespaces of the project.
	LabelProject = Group + "/project"

	// LabelIngress with the value "true" on a Namespace in a member allows the namespace's pods to connect to pods in
	// projects whose networkIsolation is Project. The label is intended for the namespaces of ingress controllers, service
	// meshes and monitoring systems. The member's administrator sets it.
	LabelIngress = Group + "/ingress"

	// LabelSet marks every object that Drover created in a member. Its value is the name of the set that the object
	// belongs to. A set contains all objects that result from one object on the hub. For example, "crtb.alice-owns-prod"
	// is the set of a ClusterRoleTemplateBinding.
	LabelSet = Group + "/set"

	// LabelManagedBy with the value ManagedBy marks every object that Drover created in a member.
	LabelManagedBy = "app.kubernetes.io/managed-by"

	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "drover"

	// AnnotationExceptNamespaces on a Secret with LabelProject is a comma-separated list of namespaces to which the
	// Secret is not copied.
	AnnotationExceptNamespaces = Group + "/except-namespaces"
)

// Annotations on Secrets named "<host>-host-plan" that Drover created.
const (
	// AnnotationPlanDigest is a digest of the instructions.
	AnnotationPlanDigest = Group + "/plan-digest"
	// AnnotationPlanNote holds notes from the controller that created the instructions.
	AnnotationPlanNote = Group + "/plan-note"
)

// Values of LabelSecretKind.
const (
	// SecretKindRegistration marks the Secret "<cluster>-registration", which contains the join token and the agent's
	// manifest.
	SecretKindRegistration = "registration"
	// SecretKindAgent marks the Secret "<cluster>-agent", which contains the public key of the agent that joined.
	SecretKindAgent = "agent"
	// SecretKindHostJoin marks the Secret "<host>-host-join", which contains the join token and the join command of a
	// Host.
	SecretKindHostJoin = "host-join"
	// SecretKindHostAgent marks the Secret "<host>-host-identity", which contains the public key of a Host's agent.
	SecretKindHostAgent = "host-identity"
	// SecretKindHostInstructions marks the Secret "<host>-host-plan", in which a user or a controller provides the
	// instructions of a Host.
	SecretKindHostInstructions = "host-plan"
	// SecretKindKubeconfig marks the Secret "<cluster>-kubeconfig", which Cluster API uses to reach a cluster through
	// the hub. The Secret contains no credentials.
	SecretKindKubeconfig = "kubeconfig"
	// SecretKindProvision marks the Secret "<installation>-provision" of a ClusterInstallation.
	SecretKindProvision = "provision"
	// SecretKindAuthority marks the Secret that contains the hub's own CA.
	SecretKindAuthority = "authority"
	// SecretKindSignIn marks the Secret that holds the keys used to sign users' tokens.
	SecretKindSignIn = "sign-in"
	// SecretKindUser marks the Secret "drover-user-<user>", which contains the hash of a User's password.
	SecretKindUser = "user"
	// SecretKindProvider marks the Secrets that AuthProviders can refer to. A hub administrator creates these Secrets.
	SecretKindProvider = "provider"
	// SecretKindSession marks the Secret "drover-session-<id>", which contains the session of a user who has signed in.
	SecretKindSession = "session"
	// SecretKindToken marks the Secret "drover-token-<id>", which represents a token that a user created for scripts.
	SecretKindToken = "token"
)

// Suffixes of the Secrets that belong to a Cluster.
const (
	// RegistrationSecretSuffix is appended to the Cluster's name to form the name of its registration Secret.
	RegistrationSecretSuffix = "-registration"
	// AgentSecretSuffix is appended to the Cluster's name to form the name of the Secret with the agent's identity.
	AgentSecretSuffix = "-agent"
)

// LabelImport with the value "true" on a Cluster API Cluster requests the import of that cluster. On a Drover Cluster,
// the label tells Drover to install the agent with the kubeconfig from Cluster API.
const LabelImport = Group + "/import"

// FinalizerUninstall prevents the removal of a deleted Cluster until its agent has removed Drover's objects from the
// member, or until it is clear that the member cannot be reached.
const FinalizerUninstall = Group + "/uninstall"
