// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

// Names of what the hub's manifest creates in a member and the agent finds there.
const (
	// AgentNamespace is the namespace of the agent in a member. It differs from the manager's, so that a hub can import
	// itself.
	AgentNamespace = "drover-agent"
	// AgentName is the name of the agent's Deployment, ServiceAccount, Role, RoleBinding, ClusterRole and
	// ClusterRoleBinding.
	AgentName = "drover-agent"
	// AgentViewBinding is the name of the ClusterRoleBinding that gives Viewer the rights to view, in a member whose agent
	// has the profile ReadOnly.
	AgentViewBinding = "drover-agent-view"
	// Viewer is the user that an agent of the profile ReadOnly impersonates at its API server for every request. It is the
	// only one that such an agent may impersonate. It does not use its own account, which can read the agent's private
	// key.
	Viewer = "drover:viewer"
	// RegistrationSecret holds what the agent joins with: KeyToken and KeyCABundle. Only the manifest writes it.
	RegistrationSecret = "drover-agent-registration"
	// IdentitySecret holds the agent's private key, its Cluster and the settings that the hub announced. Only the
	// agent's replicas write it, so that applying the manifest again changes none of it.
	IdentitySecret = "drover-agent-identity"
)

// What the agent makes in its namespace beside the identity, and its replicas share.
const (
	// NodeAgentName is the name of the DaemonSet of node agents, and the value of LabelName of its pods, which are not of
	// the agent's Deployment.
	NodeAgentName = "drover-node-agent"
	// NodeAgentLease is the Lease of the node agent that opens a tunnel while no replica of the agent is connected.
	NodeAgentLease = "drover-node-agent"
	// LeaderLease is the Lease of the leader among the agent's replicas.
	LeaderLease = "drover-agent"
	// DeploymentSecret holds the Deployment that the hub sent last, the one before, and how far the change is. A Secret,
	// because the environment in it must not be readable with the right to read ConfigMaps.
	DeploymentSecret = "drover-agent-deployment"
)

// EnvironmentSecret is made by people, for the agent's variables with a secretKey. No other Secret is read into its
// environment: a proxy's address that is made of the agent's own key would show the key to whoever resolves names.
const EnvironmentSecret = "drover-agent-env"

// Keys of RegistrationSecret.
const (
	// KeyToken is the join token.
	KeyToken = "token"
	// KeyCABundle is the CA bundle to pin, as PEM. Absent when agents trust their system's.
	KeyCABundle = "ca.crt"
	// KeyServers are the hub's addresses, the preferred one first, one a line.
	KeyServers = "servers"
)

// Environment of the agent. Each is also read under the name that operators of Rancher know, where there is one:
// CATTLE_SERVER, CATTLE_CA_CHECKSUM, CATTLE_DEBUG, CATTLE_TUNNEL_DATA_DEBUG.
const (
	// EnvServer lists the hub's base URLs, separated by commas.
	EnvServer = "DROVER_SERVER"
	// EnvCAChecksum lists what CertificateChecksums gives for the CA bundle, separated by commas.
	EnvCAChecksum = "DROVER_CA_CHECKSUM"
	// EnvTrust is Pinned (default) or System.
	EnvTrust = "DROVER_TRUST"
	// EnvDebug set to true logs at level debug.
	EnvDebug = "DROVER_DEBUG"
	// EnvTunnelDataDebug set to true logs sizes and kinds of the frames of the tunnel, never their content.
	EnvTunnelDataDebug = "DROVER_TUNNEL_DATA_DEBUG"
	// EnvProfile is Full (default) or ReadOnly.
	EnvProfile = "DROVER_PROFILE"
	// EnvNamespace is the agent's namespace, AgentNamespace by default.
	EnvNamespace = "DROVER_NAMESPACE"
	// EnvListen is the address of /healthz, /readyz and /metrics, ":8080" by default.
	EnvListen = "DROVER_LISTEN"
	// EnvDirectListen is the address at which users are served who come without the hub, ":6443" by default.
	EnvDirectListen = "DROVER_DIRECT_LISTEN"
	// EnvSocket is the path of the unix socket that "drover-agent loglevel" talks to.
	EnvSocket = "DROVER_SOCKET"
)
