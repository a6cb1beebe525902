// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package protocol defines what hub and agent send to each other: paths, JSON bodies, versions.
//
// Everything the hub asks of a member is an HTTP request that travels through the tunnel to a path of the
// agent; the agent itself asks the hub for two things only, to join (PathRegister) and to connect (PathConnect).
package protocol

import (
	"fmt"
	"slices"
	"time"
)

// Version is the protocol version of this build. An agent says in its first report which it speaks; the hub accepts
// MinVersion to Version and shows anything else as the reason VersionSkew.
const (
	Version    = 1
	MinVersion = 1
)

// How long an agent that lost the hub takes to come back. A refusal, which needs a person, takes longer.
const (
	// LongestWait is the upper end of the wait between two attempts to connect, however many have failed.
	LongestWait = 30 * time.Second
	// AttemptTime is how long an agent dials, at most, until an attempt has failed.
	AttemptTime = 10 * time.Second
	// LongestReturn is the time in which an agent has made an attempt that finds the hub back: one that began before, a
	// wait, and the next, which succeeds.
	LongestReturn = AttemptTime + LongestWait + AttemptTime
)

// Paths on the hub, for agents.
const (
	// PathConnect is the WebSocket upgrade that becomes the tunnel. Authorization: Bearer <connect token>.
	PathConnect = "/v1/connect"
	// PathRegister takes a RegisterRequest by POST. Authorization: Bearer <join token>.
	PathRegister = "/v1/register"
	// PathCACerts serves the CA bundle to pin, as PEM.
	PathCACerts = "/v1/cacerts"
	// PathImport is the prefix of the agent's manifest, "/v1/import/<join token>.yaml".
	PathImport = "/v1/import/"
)

// Paths on the agent, for the hub, through the tunnel.
const (
	// PathClusters is followed by the namespace and the name of a Cluster and the path in its Kubernetes API.
	PathClusters = "/k8s/clusters/"
	// PathKubernetes is the prefix of requests for the member's Kubernetes API. What follows is the path there.
	PathKubernetes = "/v1/k8s"
	// PathSettings takes Settings by PUT and answers 204 when they are stored permanently.
	PathSettings = "/v1/settings"
	// PathDeployment takes the agent's whole Deployment by PUT, as apps/v1 JSON, and answers 202 when it is stored for the
	// leader among the agent's replicas. Any replica may be asked; the outcome is in the leader's report. 422 means that
	// it is refused permanently, and why.
	PathDeployment = "/v1/deployment"
	// PathUninstall takes a POST, removes everything that Drover put into the member and answers 200 with an
	// UninstallResult.
	PathUninstall = "/v1/uninstall"
	// PathTerm answers GET with the Term that is in force, which the agent reads from its API server at each request.
	// Any replica may be asked. The agent of a host, of which there is one, answers with the name of its process.
	PathTerm = "/v1/term"
)

// MaxBody bounds every JSON body of this protocol, in bytes. A larger one is refused unread.
const MaxBody = 1 << 20

// RegisterRequest asks to become the agent of the Cluster that the join token is for.
type RegisterRequest struct {
	// PublicKey is the agent's Ed25519 key, 32 bytes, base64 in JSON.
	PublicKey []byte `json:"publicKey"`
	// ClusterUID is the UID of the namespace kube-system in the member.
	ClusterUID string `json:"clusterUID"`
	// Proof is the signature by PublicKey of ProofPayload: the sender owns the key.
	Proof []byte `json:"proof"`
	// Current is the Cluster that the agent is already, nil if it is none.
	Current *CurrentCluster `json:"current,omitempty"`
}

// CurrentCluster names, and proves, the present Cluster of an agent that asks to become another one.
type CurrentCluster struct {
	Cluster ClusterRef `json:"cluster"`
	// Proof is the signature of ProofPayload by the key with which it is that Cluster.
	Proof []byte `json:"proof"`
}

// ProofPayload is what RegisterRequest.Proof signs: a fixed context, then the join token and the member's UID, so that
// a proof made for one token or one member is not valid for another.
func ProofPayload(token, clusterUID string) []byte {
	return fmt.Appendf(nil, "drover-register-v1\x00%s\x00%s", token, clusterUID)
}

// RegisterResponse holds the agent's new identity.
type RegisterResponse struct {
	// Cluster it now is.
	Cluster ClusterRef `json:"cluster"`
	// Audience to put into connect tokens. It names this hub and survives a change of its addresses.
	Audience string `json:"audience"`
	// Settings in force.
	Settings Settings `json:"settings"`
}

// ClusterRef names one Cluster on the hub, and which one of that name.
type ClusterRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID of the Cluster object: a Cluster that is deleted and made again under its name is another one.
	UID string `json:"uid"`
}

// String is "namespace/name".
func (r ClusterRef) String() string { return r.Namespace + "/" + r.Name }

// Report is what an agent reports about its cluster.
type Report struct {
	// Protocol versions that the agent speaks, from MinProtocol to Protocol.
	Protocol    int `json:"protocol"`
	MinProtocol int `json:"minProtocol"`
	// AgentVersion, for example "v0.1.0".
	AgentVersion string `json:"agentVersion"`
	// ClusterUID is the UID of the namespace kube-system.
	ClusterUID string `json:"clusterUID"`
	// SettingsDigest is the digest of the Settings that the agent has stored, see Settings.Digest.
	SettingsDigest string `json:"settingsDigest,omitempty"`
	// Version of the API server, "v1.36.3". Empty while it was never reached.
	Version string `json:"version,omitempty"`
	// Distribution as far as the agent knows it.
	Distribution string `json:"distribution,omitempty"`
	// Nodes, counted. Nil while they could not be listed.
	Nodes *Nodes `json:"nodes,omitempty"`
	// Health of the API server, as this replica sees it.
	Health Health `json:"health"`
	// Leader reports whether this replica of the agent holds the Lease: it alone watches the member. Others report, beside
	// themselves, version and health only. An older agent without an election reports everything and is not a leader.
	Leader bool `json:"leader,omitempty"`
	// Restored is when this process noticed that the cluster's etcd had gone back to an earlier state; zero if it did
	// not.
	Restored time.Time `json:"restored,omitzero"`
	// Deployment is the state of the agent's own Deployment. Only the leader reports it, after its first look.
	Deployment *Deployment `json:"deployment,omitempty"`
	Remnants
	// DirectAuthority is the CA, in PEM, of the certificate that the agent has made for users who come without the hub.
	// Empty if it has made none. At most MaxDirectAuthority bytes.
	DirectAuthority string `json:"directAuthority,omitempty"`
	// Host is what the agent of a host reports, nil for any other.
	Host *HostReport `json:"host,omitempty"`
	// Capabilities that agents of the same protocol version may differ in.
	Capabilities
}

// Remnants are in the member and stay, although nothing on the hub asks for them. Only the leader reports them.
type Remnants struct {
	// Left names the sets, by the value of v1.LabelSet, that an agent of the profile ReadOnly has from before and may not
	// remove. At most 16.
	Left []string `json:"left,omitempty"`
	// Unclaimed names objects, as in SetObject, that carry v1.LabelSet, belong to no set and were not applied by the
	// agent. At most 16.
	Unclaimed []string `json:"unclaimed,omitempty"`
}

// Capabilities are what an agent can do beyond what its protocol version says.
type Capabilities struct {
	// Features that the agent has, such as FeatureSets. At most 32.
	Features []string `json:"features,omitempty"`
	// Profile is v1.ProfileReadOnly for an agent that only reads: it refuses sets and every request that is not a read.
	// Empty for any other.
	Profile string `json:"profile,omitempty"`
}

// Has reports whether the agent has a feature.
func (c Capabilities) Has(feature string) bool { return slices.Contains(c.Features, feature) }

// Deployment is the state of the agent's Deployment, and the outcome of the last one that the hub sent.
type Deployment struct {
	// Digest of the Deployment in force, as v1.AnnotationAgentDigest has it. Empty for one of an older manifest.
	Digest string `json:"digest,omitempty"`
	// RolledOut reports whether all pods are of the Deployment in force, and ready.
	RolledOut bool `json:"rolledOut,omitempty"`
	// NotReady is what keeps the pods of the Deployment in force from being ready, once its deadline has passed. At most
	// 512 bytes.
	NotReady string `json:"notReady,omitempty"`
	// NodeAgents is why the member has no node agents although it is to have some. At most 512 bytes.
	NodeAgents string `json:"nodeAgents,omitempty"`
	// Direct is why API servers of the member have none to ask about users' tokens although they are to have. At most 512
	// bytes.
	Direct string `json:"direct,omitempty"`
	// Failed is the digest of the last Deployment that was put back or refused. One that is in force is never in it.
	Failed string `json:"failed,omitempty"`
	// Rejected reports whether Failed was refused by the API server, and not put back because it did not become ready.
	Rejected bool `json:"rejected,omitempty"`
	// Unmanaged reports whether there is none that the agent may read and change. Then Message says why, and all else is
	// empty.
	Unmanaged bool `json:"unmanaged,omitempty"`
	// Message says why Failed failed. At most 512 bytes.
	Message string `json:"message,omitempty"`
}

// Nodes counts nodes and sums what they have. Quantities are Kubernetes resource quantities by resource name.
type Nodes struct {
	Total       int32             `json:"total"`
	Ready       int32             `json:"ready"`
	Capacity    map[string]string `json:"capacity,omitempty"`
	Allocatable map[string]string `json:"allocatable,omitempty"`
	Requested   map[string]string `json:"requested,omitempty"`
}

// Health of a member's API server as its agent sees it.
type Health struct {
	// Healthy reports whether /readyz answers 200.
	Healthy bool `json:"healthy"`
	// Message names the checks that fail, or why it can't be reached. At most 512 bytes.
	Message string `json:"message,omitempty"`
	// Since is when Healthy last changed.
	Since time.Time `json:"since"`
}

// UninstallResult lists what an uninstalling agent could not remove.
type UninstallResult struct {
	// Remaining names objects that are still there, as "Kind namespace/name: why".
	Remaining []string `json:"remaining,omitempty"`
	// Stale names groups of the member's API that no server serves, as "group/version": while there is one, no namespace
	// that is deleted goes. At most 16.
	Stale []string `json:"stale,omitempty"`
}

// Bound cuts a result to size.
func (r *UninstallResult) Bound() {
	r.Stale = slices.Clone(r.Stale[:min(len(r.Stale), maxLeft)])
	for i, group := range r.Stale {
		r.Stale[i] = Cut(group, maxText)
	}
}

// Term is one leadership among the agent's replicas. It never comes back once another one has begun.
type Term struct {
	// Term names it: who leads, since when, and how many have led before. Empty while no replica leads. At most
	// MaxTerm bytes.
	Term string `json:"term,omitempty"`
}

// MaxTerm bounds Term.Term, in bytes.
const MaxTerm = 256

// Refusal is the body of a 4xx answer to PathRegister and PathConnect: why, and what a user can do.
type Refusal struct {
	// Reason is one of the Reason constants of api/v1, for example "TokenUsed".
	Reason string `json:"reason"`
	// Message says what to do.
	Message string `json:"message"`
}
