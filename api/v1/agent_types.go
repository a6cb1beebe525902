// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import corev1 "k8s.io/api/core/v1"

// Agent says how the agent in the member is set up. A connected agent that runs as the Deployment of its manifest is changed
// through its tunnel, and put back if what it was changed to does not become ready; see the condition AgentUpToDate.
type Agent struct {
	// image of the agent. Default: the image in the hub's configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Image string `json:"image,omitempty"`

	// trust says which certificate the agent accepts from the hub: Pinned (default) accepts only the CA bundle in its
	// manifest and what the hub has announced through the tunnel since; System accepts what the agent's image trusts,
	// for a hub behind a public CA.
	// +optional
	// +kubebuilder:default=Pinned
	Trust Trust `json:"trust,omitempty"`

	// profile says what the agent may do in the member. Full (default): serve users as themselves, with what the member's RBAC
	// grants them, and deliver roles, bindings and projects. ReadOnly: report, and serve everybody who may reach the member with the rights of
	// Kubernetes' ClusterRole "view" and nothing else; writes, exec and everything that is to be delivered are refused. The rights
	// come with the manifest: after a change apply it in the member again.
	// +optional
	// +kubebuilder:default=Full
	Profile AgentProfile `json:"profile,omitempty"`

	// replicas of the agent, 1 to 5. Each holds a tunnel. Default: 1 in a member with one node and 2 in any other; the
	// agent follows the number of nodes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas *int32 `json:"replicas,omitempty"`

	// nodeSelector names labels that a node must have for the agent to run there. Default: any node; one of the
	// control plane is preferred. At most 16.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations of the agent, beside those of the taints of control planes, which it always has. At most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity of the agent. Default: it prefers nodes of the control plane, and for each replica another node. What is
	// set here takes the place of that.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// resources of the agent's container. Default: requests of 20m CPU and 32Mi memory, and a limit of 256Mi memory.
	// What is set here takes the place of all three.
	// +optional
	Resources *AgentResources `json:"resources,omitempty"`

	// priorityClassName of the agent's pods. The PriorityClass must exist in the member. Default: the member's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// env is more environment for the agent, such as HTTPS_PROXY and NO_PROXY. Plain values only: they stand in the
	// manifest for all to read. Names that begin with DROVER_ or CATTLE_ are refused, for Drover sets them. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(e, !e.name.startsWith('DROVER_') && !e.name.startsWith('CATTLE_'))",message="names that begin with DROVER_ or CATTLE_ are Drover's own: use the other fields of spec.agent, or the hub's configuration"
	Env []AgentEnv `json:"env,omitempty"`
}

// AgentResources are the compute resources of the agent's container.
type AgentResources struct {
	// requests are what the scheduler sets aside, by resource name.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are what the container can have at most, by resource name. An agent needs 64Mi of memory in a member with
	// thousands of nodes.
	// +optional
	// +kubebuilder:validation:MaxProperties=8
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// AgentEnv is one variable of the agent's environment.
type AgentEnv struct {
	// name of the variable: letters, digits and underscores, at most 128.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`

	// value of the variable, at most 1024 characters. Default: empty.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Value string `json:"value,omitempty"`
}

// AgentProfile says what an agent may do in its member.
// +kubebuilder:validation:Enum=Full;ReadOnly
type AgentProfile string

const (
	// ProfileFull serves users as themselves and delivers.
	ProfileFull AgentProfile = "Full"
	// ProfileReadOnly reports and serves reads with rights of its own.
	ProfileReadOnly AgentProfile = "ReadOnly"
)

// Trust says which certificate an agent accepts from the hub.
// +kubebuilder:validation:Enum=Pinned;System
type Trust string

const (
	// TrustPinned accepts only the CA bundle that the hub handed to the agent.
	TrustPinned Trust = "Pinned"
	// TrustSystem accepts what the agent's image trusts.
	TrustSystem Trust = "System"
)

// AgentStatus describes the agent that serves a member.
type AgentStatus struct {
	// version of the agent, for example "v0.1.0". Of several replicas, that of the leader.
	Version string `json:"version"`
	// replicas is the number of agent replicas with an open tunnel.
	Replicas int32 `json:"replicas"`
}
