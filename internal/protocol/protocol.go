// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol defines the messages between the hub and its agents: paths, JSON bodies and versions.
//
// The hub sends each request to a member through the tunnel, as an HTTP request to a path on the agent. The agent
// itself sends only two requests to the hub: one to join (PathRegister) and one to connect (PathConnect).
package protocol

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Version is the protocol version of this build. An agent announces the versions that it supports in its first report.
// The hub supports the versions from MinVersion to Version. If there is no version that both support, the hub sets the
// reason VersionSkew.
const (
	Version    = 1
	MinVersion = 1
)

// These constants determine how long an agent takes to reconnect after it has lost its connection to the hub. After a
// refusal, an agent waits longer, because a refusal requires manual action.
const (
	// LongestWait is the maximum time between two attempts to connect, however many attempts have failed.
	LongestWait = 30 * time.Second
	// AttemptTime is the timeout for one attempt to connect.
	AttemptTime = 10 * time.Second
	// LongestReturn is the maximum time that an agent takes to connect once the hub can be reached again. It is the sum of
	// an attempt that fails, a wait, and an attempt that succeeds.
	LongestReturn = AttemptTime + LongestWait + AttemptTime
)

// Paths on the hub that agents use.
const (
	// PathConnect accepts the WebSocket upgrade that establishes the tunnel. It requires Authorization: Bearer
	// <connect token>.
	PathConnect = "/v1/connect"
	// PathRegister accepts a RegisterRequest in a POST request. It requires Authorization: Bearer <join token>.
	PathRegister = "/v1/register"
	// PathCACerts serves the PEM-encoded CA bundle that agents pin.
	PathCACerts = "/v1/cacerts"
	// PathImport is the prefix of the path that serves the agent's manifest, "/v1/import/<join token>.yaml".
	PathImport = "/v1/import/"
)

// Paths on the agent that the hub uses through the tunnel.
const (
	// PathClusters is followed by the namespace and name of a Cluster, and by a path in the Cluster's Kubernetes API.
	PathClusters = "/k8s/clusters/"
	// PathKubernetes is the prefix of requests to the member's Kubernetes API. It is followed by the path in that
	// API.
	PathKubernetes = "/v1/k8s"
	// PathSettings accepts Settings in a PUT request. The agent responds with 204 once they are stored permanently.
	PathSettings = "/v1/settings"
	// PathDeployment accepts the agent's complete Deployment in a PUT request. The body is apps/v1 JSON. Any replica of
	// the agent accepts the request. The replica responds with 202 once the Deployment is stored for the leader. The
	// leader's report contains the outcome. A response with 422 is a permanent refusal, and its body contains the
	// reason.
	PathDeployment = "/v1/deployment"
	// PathUninstall accepts a POST request. The agent removes everything that Drover has created in the member, and
	// responds with 200 and an UninstallResult.
	PathUninstall = "/v1/uninstall"
	// PathTerm responds to a GET request with the current Term. The agent reads the term from its API server on each
	// request. Any replica accepts the request. A host's agent, which has no replicas, responds with the name of its
	// process.
	PathTerm = "/v1/term"
)

// MaxBody is the maximum size of any JSON body in this protocol, in bytes. Larger bodies are rejected without being
// read.
const MaxBody = 1 << 20

// RegisterRequest is an agent's request to become the agent of the Cluster that the join token belongs to.
type RegisterRequest struct {
	// PublicKey is the agent's Ed25519 public key. It is 32 bytes long and is encoded as base64 in JSON.
	PublicKey []byte `json:"publicKey"`
	// ClusterUID is the UID of the kube-system namespace in the member.
	ClusterUID string `json:"clusterUID"`
	// Proof is the signature of ProofPayload, made with the private key of PublicKey. It proves that the sender owns
	// the key.
	Proof []byte `json:"proof"`
	// Current is the Cluster that the agent belongs to when it sends the request, or nil if there is none.
	Current *CurrentCluster `json:"current,omitempty"`
}

// CurrentCluster identifies the current Cluster of an agent that wants to join another Cluster, and proves that the
// agent belongs to its current Cluster.
type CurrentCluster struct {
	Cluster ClusterRef `json:"cluster"`
	// Proof is the signature of ProofPayload, made with the agent's key for its current Cluster.
	Proof []byte `json:"proof"`
}

// ProofPayload returns the bytes that are signed for RegisterRequest.Proof: a fixed context, the join token, and the
// member's UID. A proof for one token and member is therefore not valid for any other.
func ProofPayload(token, clusterUID string) []byte {
	return fmt.Appendf(nil, "drover-register-v1\x00%s\x00%s", token, clusterUID)
}

// RegisterResponse holds the agent's new identity.
type RegisterResponse struct {
	// Cluster is the agent's new Cluster.
	Cluster ClusterRef `json:"cluster"`
	// Audience is the audience of connect tokens. It identifies this hub and does not change when the hub's addresses
	// change.
	Audience string `json:"audience"`
	// Settings are the hub's current settings.
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
	// Protocol and MinProtocol are the newest and the oldest protocol versions that the agent supports.
	Protocol    int `json:"protocol"`
	MinProtocol int `json:"minProtocol"`
	// AgentVersion is the version of the agent, for example "v0.1.0".
	AgentVersion string `json:"agentVersion"`
	// ClusterUID is the UID of the kube-system namespace.
	ClusterUID string `json:"clusterUID"`
	// SettingsDigest is the Settings.Digest of the Settings that the agent has stored.
	SettingsDigest string `json:"settingsDigest,omitempty"`
	// Version is the version of the API server, for example "v1.36.3". It is empty until the agent has reached its
	// API server.
	Version string `json:"version,omitempty"`
	// Distribution is the Kubernetes distribution, or empty if the agent cannot determine it.
	Distribution string `json:"distribution,omitempty"`
	// Nodes contains the number of nodes and the sums of their resources. It is nil until the agent has listed the
	// nodes.
	Nodes *Nodes `json:"nodes,omitempty"`
	// Health is the health of the API server, as observed by this replica.
	Health Health `json:"health"`
	// Leader reports whether this replica of the agent is the leader. Only the leader watches the member. Other
	// replicas report only their own state, and the version and health of the API server.
	Leader bool `json:"leader,omitempty"`
	// Restored is the time when this process noticed that the cluster's etcd had been reset to an earlier state. It
	// is zero if the process has not noticed a reset.
	Restored time.Time `json:"restored,omitzero"`
	// Deployment is the state of the agent's own Deployment. Only the leader reports it, after its first check.
	Deployment *Deployment `json:"deployment,omitempty"`
	Remnants
	// DirectAuthority is the PEM-encoded CA of the certificate that the agent has created for direct access. It is
	// empty if the agent has created no certificate. It is at most MaxDirectAuthority bytes long.
	DirectAuthority string `json:"directAuthority,omitempty"`
	// Host is the report of a host's agent. It is nil for other agents.
	Host *HostReport `json:"host,omitempty"`
	// Capabilities may differ between agents with the same protocol version.
	Capabilities
}

// Remnants are objects that remain in the member even though they are no longer wanted. Only the leader reports them.
type Remnants struct {
	// Left names sets that were delivered before the agent was switched to the ReadOnly profile. The agent is no
	// longer allowed to remove them. The names are values of v1.LabelSet. There are at most 16.
	Left []string `json:"left,omitempty"`
	// Unclaimed names objects that have the label v1.LabelSet but belong to no set and were not applied by the agent.
	// The names have the format of SetObject.Object. There are at most 16.
	Unclaimed []string `json:"unclaimed,omitempty"`
}

// Capabilities describes the capabilities of an agent that cannot be derived from its protocol version.
type Capabilities struct {
	// Features are the features of the agent, such as FeatureSets. There are at most 32.
	Features []string `json:"features,omitempty"`
	// Profile is v1.ProfileReadOnly for a read-only agent. Such an agent refuses sets, and refuses every request that
	// is not read-only. Profile is empty for any other agent.
	Profile string `json:"profile,omitempty"`
}

// Has reports whether the agent has a feature.
func (c Capabilities) Has(feature string) bool { return slices.Contains(c.Features, feature) }

// Deployment describes the state of the agent's Deployment. It also describes the outcome of the last Deployment that
// the hub sent.
type Deployment struct {
	// Digest is the digest of the current Deployment, from v1.AnnotationAgentDigest. It is empty if the manifest
	// predates this annotation.
	Digest string `json:"digest,omitempty"`
	// RolledOut reports whether all pods belong to the current Deployment and are ready.
	RolledOut bool `json:"rolledOut,omitempty"`
	// NotReady explains why some pods of the current Deployment are still not ready after its deadline. It is at most
	// 512 bytes long.
	NotReady string `json:"notReady,omitempty"`
	// NodeAgents explains why the member has no node agents even though it should have some. It is at most 512 bytes long.
	NodeAgents string `json:"nodeAgents,omitempty"`
	// Direct explains why the member's API servers have no authenticator for users' tokens even though they should have
	// one. It is at most 512 bytes long.
	Direct string `json:"direct,omitempty"`
	// Failed is the digest of the last Deployment that was rolled back or refused. It never identifies the current
	// Deployment.
	Failed string `json:"failed,omitempty"`
	// Rejected is true if the API server rejected Failed, and false if Failed was rolled back because it did not become
	// ready.
	Rejected bool `json:"rejected,omitempty"`
	// Unmanaged is true if there is no Deployment that the agent may read and change. In this case, Message explains
	// why, and all other fields are empty.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// Message explains why the Deployment in Failed was rolled back or refused. It is at most 512 bytes long.
	Message string `json:"message,omitempty"`
}

// Nodes contains the number of nodes and the sums of their resources. Each map contains Kubernetes resource
// quantities by resource name.
type Nodes struct {
	Total       int32             `json:"total"`
	Ready       int32             `json:"ready"`
	Capacity    map[string]string `json:"capacity,omitempty"`
	Allocatable map[string]string `json:"allocatable,omitempty"`
	Requested   map[string]string `json:"requested,omitempty"`
}

// Health is the health of a member's API server, as observed by the member's agent.
type Health struct {
	// Healthy reports whether the API server's /readyz endpoint responds with 200.
	Healthy bool `json:"healthy"`
	// Message names the failing checks, or explains why the API server cannot be reached. It is at most 512 bytes long.
	Message string `json:"message,omitempty"`
	// Since is the time when Healthy last changed.
	Since time.Time `json:"since"`
}

// UninstallResult lists the objects that an agent could not remove when it uninstalled itself.
type UninstallResult struct {
	// Remaining names objects that still exist, in the form "Kind namespace/name: reason".
	Remaining []string `json:"remaining,omitempty"`
	// Stale names API groups in the member that no server serves, in the form "group/version". They prevent the
	// deletion of namespaces from completing. There are at most 16.
	Stale []string `json:"stale,omitempty"`
}

// Bound trims a result to its limits.
func (r *UninstallResult) Bound() {
	r.Stale = slices.Clone(r.Stale[:min(len(r.Stale), maxLeft)])
	for i, group := range r.Stale {
		r.Stale[i] = Cut(group, maxText)
	}
}

// Term is the period in which one of the agent's replicas is the leader. A term never returns after another term has
// started.
type Term struct {
	// Term identifies the leader, the start of its term, and the number of earlier terms. It is empty while no
	// replica is the leader. It is at most MaxTerm bytes long.
	Term string `json:"term,omitempty"`
}

// MaxTerm is the maximum size of Term.Term, in bytes.
const MaxTerm = 256

// Refusal is the body of a 4xx response from PathRegister and PathConnect.
type Refusal struct {
	// Reason is one of the Reason constants of api/v1, for example "TokenUsed".
	Reason string `json:"reason"`
	// Message tells the user how to solve the problem.
	Message string `json:"message"`
}

// WithRegistry prepends a registry to an image, unless the image already specifies one. As in container runtimes, the
// part before the first slash is a registry if it contains a dot or a colon, or is "localhost".
func WithRegistry(registry, image string) string {
	host, _, found := strings.Cut(image, "/")
	if registry == "" || image == "" || found && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return image
	}
	return strings.TrimSuffix(registry, "/") + "/" + image
}

// AgentVariables is the part of an error message that lists the variables that a Cluster may add to its agent's
// environment.
const AgentVariables = "use HTTPS_PROXY, HTTP_PROXY, NO_PROXY, GOMEMLIMIT, GOGC, GOMAXPROCS, " +
	"or a variable of OpenTelemetry that names no file"

// agentVariable matches the allowed variables. The validation rule for spec.agent.env in api/v1 contains the same
// expression, and a test compares the two. The OpenTelemetry variables configure where spans are sent, which
// attributes they have and how they are batched. Variables that name files are not allowed, because an agent's pod
// has no files for them, and a file such as /proc/self/environ may have any content.
var agentVariable = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(HTTPS_PROXY|https_proxy|HTTP_PROXY|http_proxy|` +
		`NO_PROXY|no_proxy|GOMEMLIMIT|GOGC|GOMAXPROCS|` +
		`OTEL_(EXPORTER_OTLP_(TRACES_)?(ENDPOINT|HEADERS)|SERVICE_NAME|RESOURCE_ATTRIBUTES|SDK_DISABLED|BSP_[A-Z_]+))$`)
})

// AgentVariable reports whether a Cluster may add a variable to its agent's environment. Any other variable could
// change which server the agent accepts as the hub or as its API server, or make the agent log secrets. Either effect
// could expose the agent's rights.
func AgentVariable(name string) bool { return agentVariable().MatchString(name) }
