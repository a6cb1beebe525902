// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol defines the messages between hub and agent: paths, JSON bodies and versions.
//
// The hub sends each request to a member as an HTTP request that travels through the tunnel to a path on the agent. The
// agent itself sends only two requests to the hub: to join (PathRegister) and to connect (PathConnect).
package protocol

import (
	"fmt"
	"slices"
	"time"
)

// Version is the protocol version of this build. An agent announces its versions in its first report. The hub accepts
// the versions from MinVersion to Version, and shows the reason VersionSkew for any other version.
const (
	Version    = 1
	MinVersion = 1
)

// These constants define how long an agent that has lost its connection to the hub takes to reconnect. Reconnecting
// takes longer after a refusal, because a refusal requires manual action.
const (
	// LongestWait is the longest wait between attempts to connect, no matter how many have failed.
	LongestWait = 30 * time.Second
	// AttemptTime is the time after which an attempt to connect fails.
	AttemptTime = 10 * time.Second
	// LongestReturn is the time within which an agent connects after the hub is reachable again. It is the sum of the
	// rest of a failing attempt, a wait, and the next attempt, which succeeds.
	LongestReturn = AttemptTime + LongestWait + AttemptTime
)

// Paths on the hub that agents use.
const (
	// PathConnect accepts the WebSocket upgrade that becomes the tunnel. It requires Authorization: Bearer <connect
	// token>.
	PathConnect = "/v1/connect"
	// PathRegister accepts a RegisterRequest in a POST request. It requires Authorization: Bearer <join token>.
	PathRegister = "/v1/register"
	// PathCACerts serves the CA bundle that agents pin, in PEM.
	PathCACerts = "/v1/cacerts"
	// PathImport is the prefix of the path that serves the agent's manifest, "/v1/import/<join token>.yaml".
	PathImport = "/v1/import/"
)

// Paths on the agent that the hub uses through the tunnel.
const (
	// PathClusters is followed by the namespace and the name of a Cluster, and by a path in the Cluster's Kubernetes
	// API.
	PathClusters = "/k8s/clusters/"
	// PathKubernetes is the prefix of requests to the member's Kubernetes API. The rest is the path in that API.
	PathKubernetes = "/v1/k8s"
	// PathSettings accepts Settings in a PUT request and responds with 204 when they are stored permanently.
	PathSettings = "/v1/settings"
	// PathDeployment accepts the agent's whole Deployment in a PUT request, as apps/v1 JSON. It responds with 202 when
	// the Deployment is stored for the leader among the agent's replicas. Any replica accepts the request, and the
	// outcome is in the leader's report. A response with 422 is a permanent refusal, and its body contains the reason.
	PathDeployment = "/v1/deployment"
	// PathUninstall accepts a POST request. The agent removes everything that Drover has created in the member, and
	// responds with 200 and an UninstallResult.
	PathUninstall = "/v1/uninstall"
	// PathTerm responds to a GET request with the current Term, which the agent reads from its API server on each
	// request. Any replica accepts the request. A host has only one agent, which responds with the name of its process.
	PathTerm = "/v1/term"
)

// MaxBody is the maximum size of any JSON body in this protocol, in bytes. Larger bodies are rejected without being
// read.
const MaxBody = 1 << 20

// RegisterRequest asks to become the agent of the Cluster that the join token belongs to.
type RegisterRequest struct {
	// PublicKey is the agent's Ed25519 public key. It is 32 bytes long and is encoded as base64 in JSON.
	PublicKey []byte `json:"publicKey"`
	// ClusterUID is the UID of the kube-system namespace in the member.
	ClusterUID string `json:"clusterUID"`
	// Proof is the signature over ProofPayload with PublicKey. It proves that the sender owns the key.
	Proof []byte `json:"proof"`
	// Current is the Cluster that this agent belongs to before the request, or nil if there is none.
	Current *CurrentCluster `json:"current,omitempty"`
}

// CurrentCluster identifies the current Cluster of an agent that asks to join another Cluster, and contains a proof.
type CurrentCluster struct {
	Cluster ClusterRef `json:"cluster"`
	// Proof is the signature over ProofPayload with the agent's key for that Cluster.
	Proof []byte `json:"proof"`
}

// ProofPayload returns the bytes that RegisterRequest.Proof signs: a fixed context, the join token, and the member's
// UID. A proof for one token or member is therefore not valid for any other.
func ProofPayload(token, clusterUID string) []byte {
	return fmt.Appendf(nil, "drover-register-v1\x00%s\x00%s", token, clusterUID)
}

// RegisterResponse holds the agent's new identity.
type RegisterResponse struct {
	// Cluster is the agent's new Cluster.
	Cluster ClusterRef `json:"cluster"`
	// Audience is the audience for connect tokens. It names this hub and does not change when the hub's addresses
	// change.
	Audience string `json:"audience"`
	// Settings are the current settings.
	Settings Settings `json:"settings"`
}

// ClusterRef identifies one Cluster on the hub.
type ClusterRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is the UID of the Cluster object. A Cluster that is deleted and created again under the same name has a
	// different UID.
	UID string `json:"uid"`
}

// String returns "namespace/name".
func (r ClusterRef) String() string { return r.Namespace + "/" + r.Name }

// Report is an agent's report about its cluster.
type Report struct {
	// Protocol and MinProtocol are the newest and the oldest protocol version that the agent supports.
	Protocol    int `json:"protocol"`
	MinProtocol int `json:"minProtocol"`
	// AgentVersion is the version of the agent, for example "v0.1.0".
	AgentVersion string `json:"agentVersion"`
	// ClusterUID is the UID of the kube-system namespace.
	ClusterUID string `json:"clusterUID"`
	// SettingsDigest is the digest of the Settings that the agent has stored, as returned by Settings.Digest.
	SettingsDigest string `json:"settingsDigest,omitempty"`
	// Version is the version of the API server, for example "v1.36.3". It is empty until the agent has reached the API
	// server.
	Version string `json:"version,omitempty"`
	// Distribution is the Kubernetes distribution, if the agent can determine it.
	Distribution string `json:"distribution,omitempty"`
	// Nodes contains the counts of nodes and the sums of their resources. It is nil until the agent has listed the
	// nodes.
	Nodes *Nodes `json:"nodes,omitempty"`
	// Health is the health of the API server as this replica sees it.
	Health Health `json:"health"`
	// Leader reports whether this replica of the agent holds the Lease. Only the leader watches the member. Other
	// replicas report only their own state, the version and the health. An old agent without leader election reports
	// everything and is not a leader.
	Leader bool `json:"leader,omitempty"`
	// Restored is the time when this process noticed that the cluster's etcd had been reset to an earlier state. It is
	// zero if that has not happened.
	Restored time.Time `json:"restored,omitzero"`
	// Deployment is the state of the agent's own Deployment. Only the leader reports it, after its first check.
	Deployment *Deployment `json:"deployment,omitempty"`
	Remnants
	// DirectAuthority is the CA, in PEM, of the certificate that the agent has created for direct access by users. It
	// is empty if the agent has created none. It is at most MaxDirectAuthority bytes long.
	DirectAuthority string `json:"directAuthority,omitempty"`
	// Host is the report of a host's agent. It is nil for other agents.
	Host *HostReport `json:"host,omitempty"`
	// Capabilities may differ between agents of the same protocol version.
	Capabilities
}

// Remnants are objects that remain in the member although nothing on the hub requires them. Only the leader reports
// them.
type Remnants struct {
	// Left names sets that an agent with the ReadOnly profile has from an earlier profile and is not allowed to remove.
	// The names are values of v1.LabelSet. There are at most 16.
	Left []string `json:"left,omitempty"`
	// Unclaimed names objects, in the format of SetObject.Object, that have the label v1.LabelSet but belong to no set
	// and were not applied by the agent. There are at most 16.
	Unclaimed []string `json:"unclaimed,omitempty"`
}

// Capabilities describe abilities of an agent that cannot be derived from its protocol version.
type Capabilities struct {
	// Features are the features of the agent, such as FeatureSets. There are at most 32.
	Features []string `json:"features,omitempty"`
	// Profile is v1.ProfileReadOnly for a read-only agent. Such an agent refuses sets, and refuses every request that
	// is not read-only. Profile is empty for other agents.
	Profile string `json:"profile,omitempty"`
}

// Has reports whether the agent has a feature.
func (c Capabilities) Has(feature string) bool { return slices.Contains(c.Features, feature) }

// Deployment is the state of the agent's Deployment, and the outcome of the last Deployment that the hub sent.
type Deployment struct {
	// Digest is the digest of the current Deployment, from v1.AnnotationAgentDigest. It is empty if the manifest is
	// older than this annotation.
	Digest string `json:"digest,omitempty"`
	// RolledOut reports whether all pods belong to the current Deployment and are ready.
	RolledOut bool `json:"rolledOut,omitempty"`
	// NotReady explains why pods of the current Deployment are not ready after its deadline has passed. It is at most
	// 512 bytes long.
	NotReady string `json:"notReady,omitempty"`
	// NodeAgents explains why the member has no node agents although it should have some. It is at most 512 bytes long.
	NodeAgents string `json:"nodeAgents,omitempty"`
	// Direct explains why the member's API servers have no authenticator for users' tokens although they should have
	// one. It is at most 512 bytes long.
	Direct string `json:"direct,omitempty"`
	// Failed is the digest of the last Deployment that was rolled back or refused. It never identifies the current
	// Deployment.
	Failed string `json:"failed,omitempty"`
	// Rejected is true if the API server rejected Failed, and false if Failed was rolled back because it did not become
	// ready.
	Rejected bool `json:"rejected,omitempty"`
	// Unmanaged is true if there is no Deployment that the agent may read and change. In this case Message explains
	// why, and all other fields are empty.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// Message explains why Failed failed. It is at most 512 bytes long.
	Message string `json:"message,omitempty"`
}

// Nodes counts nodes and sums their resources. Each map contains Kubernetes resource quantities by resource name.
type Nodes struct {
	Total       int32             `json:"total"`
	Ready       int32             `json:"ready"`
	Capacity    map[string]string `json:"capacity,omitempty"`
	Allocatable map[string]string `json:"allocatable,omitempty"`
	Requested   map[string]string `json:"requested,omitempty"`
}

// Health is the health of a member's API server as its agent sees it.
type Health struct {
	// Healthy reports whether /readyz responds with 200.
	Healthy bool `json:"healthy"`
	// Message names the failing checks, or explains why the API server cannot be reached. It is at most 512 bytes long.
	Message string `json:"message,omitempty"`
	// Since is the time when Healthy last changed.
	Since time.Time `json:"since"`
}

// UninstallResult lists objects that an uninstalling agent could not remove.
type UninstallResult struct {
	// Remaining names objects that still exist, in the form "Kind namespace/name: reason".
	Remaining []string `json:"remaining,omitempty"`
	// Stale names API groups in the member that no server serves, in the form "group/version". As long as there is such
	// a group, deleted namespaces remain. There are at most 16.
	Stale []string `json:"stale,omitempty"`
}

// Bound trims a result to its limits.
func (r *UninstallResult) Bound() {
	r.Stale = slices.Clone(r.Stale[:min(len(r.Stale), maxLeft)])
	for i, group := range r.Stale {
		r.Stale[i] = Cut(group, maxText)
	}
}

// Term is one term of leadership among the agent's replicas. A term never returns after another one has started.
type Term struct {
	// Term contains the leader, the start of its term, and the number of earlier terms. It is empty while no replica is
	// the leader. It is at most MaxTerm bytes long.
	Term string `json:"term,omitempty"`
}

// MaxTerm is the maximum size of Term.Term, in bytes.
const MaxTerm = 256

// Refusal is the body of a 4xx response from PathRegister and PathConnect. It contains the reason and advice for the
// user.
type Refusal struct {
	// Reason is one of the Reason constants of api/v1, for example "TokenUsed".
	Reason string `json:"reason"`
	// Message tells the user what to do.
	Message string `json:"message"`
}
