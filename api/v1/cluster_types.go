// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster says that a member exists: a Kubernetes cluster that Drover manages through an agent in it.
// Its namespace is the workspace that it belongs to; whatever targets it lives in the same namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=dcl
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="CPU",type=string,JSONPath=`.status.capacity.cpu`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.capacity.memory`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agent.version`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Agent-Image",type=string,priority=1,JSONPath=`.status.agent.image`
// +kubebuilder:printcolumn:name="Wanted-Image",type=string,priority=1,JSONPath=`.status.agent.wantedImage`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes a label value",fieldPath=.metadata
type Cluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is the user's choice, at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how the member joins and what happens at deletion. An imported cluster needs nothing in it.
	// +optional
	// +kubebuilder:default={}
	Spec ClusterSpec `json:"spec,omitempty"`

	// status says what the member is and how it is doing, as its agent reports it.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ClusterStatus `json:"status,omitempty"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Cluster `json:"items"`
}

// ClusterSpec is what the user wants of a Cluster. Every field can be changed at any time.
type ClusterSpec struct {
	// registration says how an agent joins as this Cluster.
	// +optional
	// +kubebuilder:default={}
	Registration Registration `json:"registration,omitempty"`

	// agent says how the agent in the member is set up. It takes effect in the manifest of the Secret
	// "<name>-registration", and through the tunnel on an agent that is connected.
	// +optional
	// +kubebuilder:default={}
	Agent Agent `json:"agent,omitempty"`

	// authorizedEndpoint has users reach the member without the hub, at an address of the member's own, by short-lived
	// tokens that the hub has signed for this Cluster. It decides where users' tokens are sent, and takes "update" on
	// clusters/agent, which no role of a workspace has. It takes signIn in the hub's configuration, and an agent of the
	// profile Full. Default: none.
	// +optional
	// +kubebuilder:default={}
	AuthorizedEndpoint AuthorizedEndpoint `json:"authorizedEndpoint,omitzero"`

	// deletionPolicy says what happens in the member when the Cluster is deleted: Uninstall (default) asks the
	// agent to remove itself and all that Drover put there, if it can be reached within 20 seconds; Orphan leaves
	// it as it is. Deletion on the hub ends in both cases.
	// +optional
	// +kubebuilder:default=Uninstall
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// deletionProtection refuses every deletion of the Cluster, by a person or by GitOps. Setting it back to false takes
	// the right to delete the Cluster. A deletion of the whole workspace deletes the Cluster nevertheless. Default: false.
	// +optional
	DeletionProtection bool `json:"deletionProtection,omitempty"`
}

// AuthorizedEndpointMode is what verifies the tokens of users who come without the hub.
// +kubebuilder:validation:Enum=Agent;APIServer
type AuthorizedEndpointMode string

const (
	// AuthorizedEndpointAgent has the agent serve users. It is the default.
	AuthorizedEndpointAgent AuthorizedEndpointMode = "Agent"
	// AuthorizedEndpointAPIServer has the member's own API server serve users.
	AuthorizedEndpointAPIServer AuthorizedEndpointMode = "APIServer"
)

// AuthorizedEndpoint is where users reach a member without the hub.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'APIServer' || !has(self.tlsSecretName) || size(self.tlsSecretName) == 0",message="tlsSecretName is the certificate of the agent, which serves no user with mode APIServer: leave it out"
type AuthorizedEndpoint struct {
	// mode says what serves users. Agent (default): the agent, at port 6443 of its pods, in any member. APIServer: the
	// member's own API server, which you set up to ask a DaemonSet of the agent, on the nodes of the control plane, what a
	// token is worth. server is the API server's own address then, and caBundle the CA of its certificate. It takes the
	// manifest to be applied again.
	// +optional
	Mode AuthorizedEndpointMode `json:"mode,omitempty"`

	// server is the URL of the endpoint as users reach it: https://, a host and perhaps a port, and nothing else. You make
	// a Service, or a load balancer, that leads from there to port 6443 of the agent's pods, also of those that are not
	// ready: without the hub none is. With mode APIServer it is the address of the API server. Empty for none.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	// +kubebuilder:validation:XValidation:rule="self.matches('^$|^https://([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*|[[](([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,7}:|([0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,5}(:[0-9a-f]{1,4}){1,2}|([0-9a-f]{1,4}:){1,4}(:[0-9a-f]{1,4}){1,3}|([0-9a-f]{1,4}:){1,3}(:[0-9a-f]{1,4}){1,4}|([0-9a-f]{1,4}:){1,2}(:[0-9a-f]{1,4}){1,5}|[0-9a-f]{1,4}:(:[0-9a-f]{1,4}){1,6}|:((:[0-9a-f]{1,4}){1,7}|:))[]])(:[0-9]{1,5})?$')",message="must be https://<host> or https://<host>:<port>, in lower case and without a path"
	Server string `json:"server,omitempty"`

	// tlsSecretName names a Secret of type kubernetes.io/tls in the agent's namespace of the member, with the certificate
	// of server; you create it there. It takes caBundle as well, unless all users' computers trust its CA. Default: a
	// certificate that the agent makes, of a CA of its own, which it keeps in the member.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover-agent-')",message="tlsSecretName must not be a Secret of the agent's own, drover-agent-…"
	TLSSecretName string `json:"tlsSecretName,omitempty"`

	// caBundle is the CA of the certificate of tlsSecretName, or of the API server with mode APIServer, in PEM.
	// Kubeconfigs have it.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	CABundle string `json:"caBundle,omitempty"`

	// offline is how long users go on without the hub: the life of their tokens for this Cluster, and the age at which the
	// member's list of ended sessions is too old to serve anyone. Default 1h, from 10m to 12h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(s|m|h))+$')",message="write offline in hours, minutes and seconds, for example 8h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+(s|m|h))+$') || duration(self) >= duration('10m') && duration(self) <= duration('12h')",message="offline must be between 10m and 12h"
	Offline metav1.Duration `json:"offline,omitzero"`
}

// On reports whether users can reach the member without the hub.
func (e AuthorizedEndpoint) On() bool { return e.Server != "" }

// ByAPIServer reports whether users reach the member's own API server, and not its agent.
func (e AuthorizedEndpoint) ByAPIServer() bool {
	return e.On() && e.Mode == AuthorizedEndpointAPIServer
}

// OfflineTime returns Offline, or its default.
func (e AuthorizedEndpoint) OfflineTime() time.Duration { return cmp.Or(e.Offline.Duration, time.Hour) }

// DeletionPolicy says what happens in a member when its Cluster is deleted.
// +kubebuilder:validation:Enum=Uninstall;Orphan
type DeletionPolicy string

const (
	// DeletionPolicyUninstall asks the agent to remove itself and all that Drover put into the member.
	DeletionPolicyUninstall DeletionPolicy = "Uninstall"
	// DeletionPolicyOrphan leaves the member as it is.
	DeletionPolicyOrphan DeletionPolicy = "Orphan"
)

// Registration says how an agent joins as a Cluster.
type Registration struct {
	// tokenSecretRef names a key of a Secret in the same namespace that holds a join token the user chose, at
	// least 32 characters of [A-Za-z0-9._~-]. Without it Drover makes a random one of 256 bits.
	// +optional
	TokenSecretRef *SecretKeyReference `json:"tokenSecretRef,omitempty"`

	// tokenTTL is how long a join token can be used, counted from when Drover first saw it. Default 24h, at least
	// 1m, at most 8760h. It does not matter any more once an agent has joined.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$')",message="write tokenTTL in hours, minutes and seconds, for example 36h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') || duration(self) >= duration('1m') && duration(self) <= duration('8760h')",message="tokenTTL must be between 1m and 8760h"
	TokenTTL metav1.Duration `json:"tokenTTL,omitzero"`
}

// SecretKeyReference names one key of a Secret in the same namespace.
type SecretKeyReference struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`

	// key in the Secret's data. Default "token".
	// +optional
	// +kubebuilder:default=token
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Key string `json:"key,omitempty"`
}

// ClusterStatus is what Drover knows of a member.
type ClusterStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions of the Cluster: Registered, Connected and Ready; AgentUpToDate, GuardsApplied and DirectAccess once they
	// are known; Stalled while a person must act; Withdrawn while the member still has what was delivered before its agent
	// became ReadOnly; RestoreConfirmed while the hub, which was restored, changes nothing there.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// version of the member's API server, for example "v1.36.3".
	// +optional
	Version string `json:"version,omitempty"`

	// distribution of Kubernetes as far as the agent can tell, for example "k3s", "rke2", "eks", "kubernetes".
	// +optional
	Distribution string `json:"distribution,omitempty"`

	// clusterUID is the UID of the namespace kube-system in the member: its identity.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`

	// nodes of the member, counted.
	// +optional
	Nodes *NodeCount `json:"nodes,omitempty"`

	// capacity is the sum over all nodes. Memory is rounded down: to whole Gi from 10Gi on, else to whole Mi.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// allocatable is the sum over all nodes, rounded as capacity.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// requested is the sum of the requests of all pods that are not finished, rounded as capacity. It may lag by a minute.
	// +optional
	Requested corev1.ResourceList `json:"requested,omitempty"`

	// agent that serves the member.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`

	// directAuthority is the CA, in PEM, of the certificate that the agent has made for spec.authorizedEndpoint.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	DirectAuthority string `json:"directAuthority,omitempty"`

	// lastSeen is when the last tunnel of the member ended. It is written when a member is lost, not while it lives.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`

	// restore is what the hub would change in the member after its etcd was restored, and does not before an administrator
	// has confirmed it with "kubectl drover restored". Absent otherwise.
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`
}

// RestoreStatus is what a hub would change in a member after a restore. Names are those of sets, "crtb/alice" for a
// ClusterRoleTemplateBinding alice; of each list the first 50 are named.
type RestoreStatus struct {
	// checkpoint is what the agent has and the hub does not remember. The annotation cluster.drover.dev/restored with this
	// value confirms the change.
	Checkpoint string `json:"checkpoint"`
	// summary counts: "2 to add, 0 to change, 1 to remove".
	Summary string `json:"summary"`
	// digest is the SHA-256 of all names, also of those that the lists have no place for: it changes whenever another set
	// would be added, changed or removed.
	// +optional
	Digest string `json:"digest,omitempty"`
	// add is what the hub has and the member has not: it was deleted after the backup, or never delivered.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Add []string `json:"add,omitempty"`
	// change is what the member has with another content.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Change []string `json:"change,omitempty"`
	// remove is what the member has and the hub has not: it was created after the backup.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=50
	Remove []string `json:"remove,omitempty"`
}

// NodeCount counts the nodes of a member.
type NodeCount struct {
	// total number of nodes.
	Total int32 `json:"total"`
	// ready is the number of nodes whose condition Ready is True.
	Ready int32 `json:"ready"`
	// summary is "ready/total".
	Summary string `json:"summary"`
}
