// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster represents a member: a Kubernetes cluster that Drover manages through an agent inside it. The namespace of
// the Cluster is the workspace that the member belongs to. Objects can target only Clusters in their own namespace.
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
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec configures how the member joins, how its agent runs, and what happens when the Cluster is deleted. All fields
	// are optional.
	// +optional
	// +kubebuilder:default={}
	Spec ClusterSpec `json:"spec,omitzero"`

	// status is the observed state of the member.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Cluster `json:"items"`
}

// ClusterSpec is the desired state of a Cluster. Every field can be changed at any time.
//
// +kubebuilder:validation:XValidation:rule="!has(self.agent) || !has(self.agent.hostNetwork) || !self.agent.hostNetwork || !has(self.authorizedEndpoint) || !has(self.authorizedEndpoint.server) || size(self.authorizedEndpoint.server) == 0 || has(self.authorizedEndpoint.mode) && self.authorizedEndpoint.mode == 'APIServer'",message="agent.hostNetwork requires authorizedEndpoint.mode APIServer: in Agent mode, the agent would open port 6443 on its nodes"
type ClusterSpec struct {
	// registration configures how an agent joins as this Cluster.
	// +optional
	// +kubebuilder:default={}
	Registration Registration `json:"registration,omitzero"`

	// agent configures the agent in the member. The hub writes these settings to the manifest in the Secret
	// "<name>-registration", and applies them to a connected agent through its tunnel.
	// +optional
	// +kubebuilder:default={}
	Agent Agent `json:"agent,omitzero"`

	// authorizedEndpoint lets users connect directly to the member, without going through the hub. Users authenticate with
	// short-lived tokens that the hub signs for this Cluster. Setting authorizedEndpoint requires the "update" verb on
	// clusters/agent, because the endpoint determines the server that receives users' tokens. No workspace role includes
	// this verb. authorizedEndpoint also requires signIn in the hub's configuration and an agent with the Full profile. By
	// default, users can connect only through the hub.
	// +optional
	// +structType=atomic
	AuthorizedEndpoint AuthorizedEndpoint `json:"authorizedEndpoint,omitzero"`

	// deletionPolicy defines what happens in the member when the Cluster is deleted. With Uninstall, the default, the hub
	// asks the agent to remove itself and everything that Drover installed. If the agent cannot be reached within 20
	// seconds, the member is left unchanged. With Orphan, the member is always left unchanged. In both cases, the Cluster
	// is deleted from the hub.
	// +optional
	// +kubebuilder:default=Uninstall
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// deletionProtection prevents users and GitOps tools from deleting the Cluster. Setting it back to false requires
	// permission to delete the Cluster. Deleting the whole workspace still deletes the Cluster. deletionProtection
	// defaults to false.
	// +optional
	DeletionProtection bool `json:"deletionProtection,omitempty"`
}

// AuthorizedEndpointMode selects the server that users connect to when they do not connect through the hub.
// +kubebuilder:validation:Enum=Agent;APIServer
type AuthorizedEndpointMode string

const (
	// AuthorizedEndpointAgent means that users connect to the agent. This is the default.
	AuthorizedEndpointAgent AuthorizedEndpointMode = "Agent"
	// AuthorizedEndpointAPIServer means that users connect to the member's API server. This mode is experimental.
	AuthorizedEndpointAPIServer AuthorizedEndpointMode = "APIServer"
)

// AuthorizedEndpoint configures how users reach a member without going through the hub.
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'APIServer' || !has(self.tlsSecretName) || size(self.tlsSecretName) == 0",message="tlsSecretName cannot be set if mode is APIServer, because users do not connect to the agent"
type AuthorizedEndpoint struct {
	// mode selects the server that users connect to. With Agent, the default, users connect to the agent on port 6443 of
	// its pods. This mode works in every member. With APIServer, users connect to the member's API server. This mode is
	// experimental. To use it, configure the API server to send tokens for verification to the pods of the agent's
	// DaemonSet, which run on the control plane nodes. Also set server to the API server's address, and caBundle to the CA
	// that issued the API server's certificate. After changing the mode, apply the agent's manifest again.
	// +optional
	Mode AuthorizedEndpointMode `json:"mode,omitempty"`

	// server is the URL that users connect to, in the format https://<host> or https://<host>:<port>. In Agent mode,
	// create a Service or a load balancer that forwards connections to port 6443 of the agent's pods. The Service or load
	// balancer must forward connections even to pods that are not ready, because no pod is ready while the hub is
	// unreachable. In APIServer mode, server is the address of the API server. If server is empty, users can reach the
	// member only through the hub.
	// +optional
	// +kubebuilder:validation:MaxLength=300
	// +kubebuilder:validation:XValidation:rule="self.matches('^$|^https://([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*|[[](([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,7}:|([0-9a-f]{1,4}:){1,6}:[0-9a-f]{1,4}|([0-9a-f]{1,4}:){1,5}(:[0-9a-f]{1,4}){1,2}|([0-9a-f]{1,4}:){1,4}(:[0-9a-f]{1,4}){1,3}|([0-9a-f]{1,4}:){1,3}(:[0-9a-f]{1,4}){1,4}|([0-9a-f]{1,4}:){1,2}(:[0-9a-f]{1,4}){1,5}|[0-9a-f]{1,4}:(:[0-9a-f]{1,4}){1,6}|:((:[0-9a-f]{1,4}){1,7}|:))[]])(:[0-9]{1,5})?$')",message="must be https://<host> or https://<host>:<port>, in lower case and without a path"
	Server string `json:"server,omitempty"`

	// tlsSecretName is the name of a Secret of type kubernetes.io/tls that contains the certificate for the host in the
	// server field. Create the Secret in the agent's namespace in the member. Also set caBundle, unless every user's
	// computer trusts the CA. By default, the agent creates a certificate that is signed by its own CA, and stores it in
	// the member.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('drover-agent-')",message="tlsSecretName must not be one of the agent's own Secrets, drover-agent-…"
	TLSSecretName string `json:"tlsSecretName,omitempty"`

	// caBundle is the PEM-encoded CA bundle that is used to verify the certificate in tlsSecretName or, in APIServer
	// mode, the API server's certificate. The bundle is copied into users' kubeconfigs.
	// +optional
	// +kubebuilder:validation:MaxLength=16384
	CABundle string `json:"caBundle,omitempty"`

	// offline is the lifetime of users' tokens for this Cluster. Users can work without the hub for at most this long. The
	// member also stops serving users when its list of ended sessions is older than this duration. The valid range is 10m
	// to 12h. The default is 1h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(s|m|h))+$')",message="offline must be in hours, minutes and seconds, for example 8h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+(s|m|h))+$') || duration(self) >= duration('10m') && duration(self) <= duration('12h')",message="offline must be between 10m and 12h"
	Offline metav1.Duration `json:"offline,omitzero"`
}

// On reports whether users can reach the member without the hub.
func (e AuthorizedEndpoint) On() bool { return e.Server != "" }

// ByAPIServer reports whether users reach the member's API server instead of its agent.
func (e AuthorizedEndpoint) ByAPIServer() bool {
	return e.On() && e.Mode == AuthorizedEndpointAPIServer
}

// OfflineTime returns Offline, or the default if Offline is not set.
func (e AuthorizedEndpoint) OfflineTime() time.Duration { return cmp.Or(e.Offline.Duration, time.Hour) }

// DeletionPolicy defines what happens in a member when its Cluster is deleted.
// +kubebuilder:validation:Enum=Uninstall;Orphan
type DeletionPolicy string

const (
	// DeletionPolicyUninstall means that the hub asks the agent to remove itself and everything that Drover installed in
	// the member.
	DeletionPolicyUninstall DeletionPolicy = "Uninstall"
	// DeletionPolicyOrphan means that the member is left unchanged.
	DeletionPolicyOrphan DeletionPolicy = "Orphan"
)

// Registration configures how an agent joins as a Cluster.
type Registration struct {
	// tokenSecretRef refers to the Secret key that contains the join token. The Secret must be in the same namespace. The
	// token must be at least 32 characters long and consist of A-Z, a-z, 0-9, ".", "_", "~" and "-". By default, Drover
	// generates a random 256-bit token.
	// +optional
	TokenSecretRef *SecretKeyReference `json:"tokenSecretRef,omitempty"`

	// tokenTTL is the lifetime of the join token. It starts when Drover first reads the token. The valid range is 1m to
	// 8760h. The default is 24h. tokenTTL has no effect after an agent has joined.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$')",message="tokenTTL must be in hours, minutes and seconds, for example 36h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') || duration(self) >= duration('1m') && duration(self) <= duration('8760h')",message="tokenTTL must be between 1m and 8760h"
	TokenTTL metav1.Duration `json:"tokenTTL,omitzero"`
}

// SecretKeyReference refers to a key of a Secret in the same namespace.
type SecretKeyReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`

	// key is the key in the Secret's data. The default is "token".
	// +optional
	// +kubebuilder:default=token
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Key string `json:"key,omitempty"`
}

// ClusterStatus is the observed state of a member.
type ClusterStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions describe the state of the Cluster. Registered, Connected and Ready are always present. AgentUpToDate,
	// GuardsApplied and DirectAccess are present once their state is known. Stalled is present while manual action is
	// required. Withdrawn is present while the member still has objects that were delivered before its agent became
	// ReadOnly. Maintained is present while the agent has no leader. Continuous is present for one day after the
	// member's etcd is reset to an earlier state. RestoreConfirmed is present while a restored hub is holding back
	// changes to the member.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// version is the version of the member's API server, for example "v1.36.3".
	// +optional
	Version string `json:"version,omitempty"`

	// distribution is the Kubernetes distribution that the agent has detected, for example "k3s", "rke2", "eks" or
	// "kubernetes".
	// +optional
	Distribution string `json:"distribution,omitempty"`

	// clusterUID identifies the member. It is the UID of the member's kube-system namespace.
	// +optional
	ClusterUID string `json:"clusterUID,omitempty"`

	// nodes counts the nodes of the member.
	// +optional
	Nodes *NodeCount `json:"nodes,omitempty"`

	// capacity is the total capacity of all nodes. A memory value of 10Gi or more is rounded down to whole Gi, and a
	// smaller value to whole Mi.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`

	// allocatable is the sum of all nodes' allocatable resources. It is rounded in the same way as capacity.
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`

	// requested is the sum of the resource requests of all pods that have not terminated. It is rounded in the same way
	// as capacity, and can be up to a minute out of date.
	// +optional
	Requested corev1.ResourceList `json:"requested,omitempty"`

	// agent describes the agent that serves the member.
	// +optional
	Agent *AgentStatus `json:"agent,omitempty"`

	// directAuthority is the PEM-encoded certificate of the agent's own CA. By default, this CA signs the certificate that
	// the agent presents to users who connect to it directly.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	DirectAuthority string `json:"directAuthority,omitempty"`

	// lastSeen is the time when the member was disconnected. It is absent while the member is connected.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`

	// restore lists the changes that the hub is holding back because its etcd was restored from a backup. The hub applies
	// them after an administrator has confirmed them with "kubectl drover restored". The field is absent if no changes are
	// held back.
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`
}

// NodeCount counts the nodes of a member.
type NodeCount struct {
	// total is the number of nodes.
	Total int32 `json:"total"`
	// ready is the number of nodes whose Ready condition is True.
	Ready int32 `json:"ready"`
	// summary is "<ready>/<total>".
	Summary string `json:"summary"`
}
