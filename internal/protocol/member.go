// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import "time"

// Names of objects in a member that the hub's manifest creates for the agent.
const (
	// AgentNamespace is the agent's namespace in a member. It differs from the manager's namespace, so that a hub can
	// import its own cluster.
	AgentNamespace = "drover-agent"
	// AgentName is the name of the agent's Deployment, ServiceAccount, Role, RoleBinding, ClusterRole and
	// ClusterRoleBinding.
	AgentName = "drover-agent"
	// AgentViewBinding is the name of the ClusterRoleBinding that grants Viewer the "view" ClusterRole in a member
	// whose agent has the ReadOnly profile.
	AgentViewBinding = "drover-agent-view"
	// Viewer is the user that an agent with the ReadOnly profile impersonates in all its requests to its API server.
	// Such an agent must not impersonate anyone else. It does not use its own account for these requests, because its
	// own account can read the agent's private key.
	Viewer = "drover:viewer"
	// RegistrationSecret holds the data that the agent needs to join. The keys of the data are KeyToken, KeyCABundle
	// and KeyServers. It is written only when the manifest is applied.
	RegistrationSecret = "drover-agent-registration"
	// IdentitySecret holds the agent's private key, its Cluster, and the settings that the hub announced. Only the
	// agent's replicas write it, so applying the manifest again does not change it.
	IdentitySecret = "drover-agent-identity"
)

// Names of objects that the agent creates in its namespace in addition to its identity. All replicas of the agent
// share these objects.
const (
	// NodeAgentName is the name of the DaemonSet of node agents. It is also the value of LabelName on the DaemonSet's
	// pods. These pods do not belong to the agent's Deployment.
	NodeAgentName = "drover-node-agent"
	// NodeAgentLease is the Lease of the node agent that opens a tunnel while no replica of the agent is connected.
	NodeAgentLease = "drover-node-agent"
	// LeaderLease is the Lease that the agent's replicas use to elect their leader.
	LeaderLease = "drover-agent"
	// DeploymentSecret holds the latest Deployment that the hub sent, the previous Deployment, and the progress of the
	// change between the two. It is a Secret, so that permission to read ConfigMaps is not enough to read the environment
	// variables in a Deployment.
	DeploymentSecret = "drover-agent-deployment"
)

// EnvironmentSecret is the name of a Secret that users create. It holds the values of the agent's variables that have a
// secretKey. The agent's environment must not take values from any other Secret. If it could, a user could build a
// proxy address from the agent's private key, and any DNS server that resolves this address would see the key.
const EnvironmentSecret = "drover-agent-env"

// Keys in RegistrationSecret.
const (
	// KeyToken is the key of the join token.
	KeyToken = "token"
	// KeyCABundle is the key of the PEM-encoded CA bundle to pin. It is absent if agents trust their system's CAs.
	KeyCABundle = "ca.crt"
	// KeyServers is the key of the hub's addresses, one per line. The preferred address comes first.
	KeyServers = "servers"
)

// Environment variables of the agent. Some of them can also be set under the names that Rancher uses: CATTLE_SERVER,
// CATTLE_CA_CHECKSUM, CATTLE_DEBUG and CATTLE_TUNNEL_DATA_DEBUG.
const (
	// EnvServer is a comma-separated list of the hub's base URLs.
	EnvServer = "DROVER_SERVER"
	// EnvCAChecksum is a comma-separated list of checksums of the CA bundle; see CertificateChecksums.
	EnvCAChecksum = "DROVER_CA_CHECKSUM"
	// EnvTrust is Pinned (the default) or System.
	EnvTrust = "DROVER_TRUST"
	// EnvDebug enables debug logging if it is true.
	EnvDebug = "DROVER_DEBUG"
	// EnvTunnelDataDebug enables logging of the sizes and types of the tunnel's frames if it is true. The content of
	// frames is never logged.
	EnvTunnelDataDebug = "DROVER_TUNNEL_DATA_DEBUG"
	// EnvProfile is Full (the default) or ReadOnly.
	EnvProfile = "DROVER_PROFILE"
	// EnvHostNetwork is true if the agent's pods use the network of their nodes. The agent then opens no port.
	EnvHostNetwork = "DROVER_HOST_NETWORK"
	// EnvNamespace is the agent's namespace. The default is AgentNamespace.
	EnvNamespace = "DROVER_NAMESPACE"
	// EnvListen is the address on which the agent serves /healthz, /readyz and /metrics. The default is ":8080".
	EnvListen = "DROVER_LISTEN"
	// EnvDirectListen is the address on which the agent serves users who do not connect through the hub. The default
	// is ":6443".
	EnvDirectListen = "DROVER_DIRECT_LISTEN"
	// EnvSocket is the path of the Unix socket that "drover-agent loglevel" and "drover-agent probe" connect to.
	EnvSocket = "DROVER_SOCKET"
)

// ProbeTimeout is how many seconds a probe of an agent on its node's network may take. The probe starts a process.
const ProbeTimeout = 5

// PathMove accepts a MoveRequest in a POST request to the agent. The agent responds with 202 immediately, and then
// opens another tunnel through the hub's address. When the new tunnel is ready, the agent ends its report on the old
// tunnel. An agent that responds with 404 cannot move. It reconnects only after its tunnel has ended.
const PathMove = "/v1/move"

// Limits for MoveRequest.Seconds.
const (
	minMove = time.Second
	maxMove = time.Hour
)

// MoveRequest asks an agent to open another tunnel before the current one ends.
type MoveRequest struct {
	// Seconds is how long the old tunnel may still be used. A value outside the range 1 to 3600 is replaced by the
	// nearest limit.
	Seconds int64 `json:"seconds"`
}

// Keep returns how long the old tunnel may still be used.
func (m MoveRequest) Keep() time.Duration {
	return time.Duration(min(max(m.Seconds, int64(minMove/time.Second)), int64(maxMove/time.Second))) * time.Second
}
