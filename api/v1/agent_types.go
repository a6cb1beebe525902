// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Agent says how the agent in the member is set up. A connected agent that runs as the Deployment of its manifest is
// changed through its tunnel, and put back if what it was changed to does not become ready; see the condition
// AgentUpToDate. A user who decides what runs as the agent, which hub it trusts or where it runs has the agent's
// rights. Setting anything here except replicas and resources therefore takes "update" on clusters/agent, which no role
// of a workspace has.
// +kubebuilder:validation:XValidation:rule="!has(self.nodeAgent) || !self.nodeAgent || !has(self.profile) || self.profile != 'ReadOnly'",message="nodeAgent needs the profile Full: its pods are on the nodes' network, and an agent that only reads may not make such pods"
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

	// profile says what the agent may do in the member. Full (default): serve users as themselves, with what the member's
	// RBAC grants them, and deliver roles, bindings and projects. ReadOnly: report, and serve every user who may reach the
	// member as the user "drover:viewer", who has the rights of Kubernetes' ClusterRole "view" and nothing else; writes,
	// exec and everything that is to be delivered are refused, and what was delivered before is taken back. The rights of
	// the agent come with its manifest: a change takes effect once a person applies the new manifest in the member. An
	// agent refuses to change its profile by itself.
	// +optional
	// +kubebuilder:default=Full
	Profile AgentProfile `json:"profile,omitempty"`

	// replicas of the agent, 1 to 5. Each holds a tunnel. Default: 1 in a member with one node and 2 in any other; the
	// agent follows the number of nodes.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas *int32 `json:"replicas,omitempty"`

	// nodeAgent puts a node agent on every node, whatever its taints, on the node's own network: a DaemonSet. While no
	// replica of the agent is connected, one of them opens a tunnel, and users reach the member through it; nothing is
	// delivered meanwhile. The owner of every such node can have the agent's rights: nodeSelector and what affinity
	// requires of nodes hold for node agents as well. It takes the manifest: apply the new one in the member. It needs the
	// profile Full. Default: false.
	// +optional
	NodeAgent bool `json:"nodeAgent,omitempty"`

	// nodeSelector names labels that a node must have for the agent to run there. Default: any node; one of the
	// control plane is preferred. At most 16.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +mapType=atomic
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations of the agent, beside those of the taints of control planes, which it always has. At most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity of the agent. Default: it prefers nodes of the control plane, and for each replica another node. What is
	// set here takes the place of that.
	// +optional
	// +structType=atomic
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// resources of the agent's container: cpu, memory and ephemeral-storage. Any other is refused, by the agent too: it
	// could lead the agent to a chosen node. Default: requests of 20m CPU and 32Mi memory, and a limit of 256Mi memory.
	// What is set here takes the place of all three.
	// +optional
	// +structType=atomic
	Resources *AgentResources `json:"resources,omitempty"`

	// priorityClassName of the agent's pods. The PriorityClass must exist in the member. Default: the member's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// imagePullSecrets name Secrets in the agent's namespace in the member, "drover-agent", with which its image is
	// pulled. A person, or GitOps, creates them there. Default: those of the hub's configuration. At most 8.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []PullSecret `json:"imagePullSecrets,omitempty"`

	// env is more environment for the agent: HTTPS_PROXY, HTTP_PROXY, NO_PROXY (or in lower case), GOMEMLIMIT, GOGC,
	// GOMAXPROCS, and of OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME,
	// OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED and OTEL_BSP_*. Any other is refused, by the agent too: it could make
	// another server pass as the hub. All who read the manifest see what is in "value"; what is secret, such as the
	// password of a proxy, goes into "secretKey". At most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name.matches('^(HTTPS_PROXY|https_proxy|HTTP_PROXY|http_proxy|NO_PROXY|no_proxy|GOMEMLIMIT|GOGC|GOMAXPROCS|OTEL_(EXPORTER_OTLP_(TRACES_)?(ENDPOINT|HEADERS)|SERVICE_NAME|RESOURCE_ATTRIBUTES|SDK_DISABLED|BSP_[A-Z_]+))$'))",message="an agent takes no other variables than HTTPS_PROXY, HTTP_PROXY, NO_PROXY, GOMEMLIMIT, GOGC, GOMAXPROCS, and those of OpenTelemetry that docs/spec/cluster.md lists"
	Env []AgentEnv `json:"env,omitempty"`
}

// AgentResources are the compute resources of the agent's container.
type AgentResources struct {
	// requests are what the scheduler sets aside, by cpu, memory and ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="an agent takes cpu, memory and ephemeral-storage only"
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are what the container can have at most, by cpu, memory and ephemeral-storage. Memory: at least 32Mi, with
	// less an agent does not start. An agent needs 64Mi in a member with thousands of nodes.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="an agent takes cpu, memory and ephemeral-storage only"
	// +kubebuilder:validation:XValidation:rule="!('memory' in self) || !string(self['memory']).matches('^-?[0-9.]+[a-zA-Z]*$') || !quantity(string(self['memory'])).isLessThan(quantity('32Mi'))",message="an agent does not start with less than 32Mi of memory: set memory to 32Mi or more, or leave it out"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// AgentEnv is one variable of the agent's environment.
// +kubebuilder:validation:XValidation:rule="!has(self.secretKey) || !has(self.value) || size(self.value) == 0",message="set value or secretKey, not both"
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

	// secretKey is a key of the Secret "drover-agent-env" in the agent's namespace in the member, "drover-agent": the
	// variable has what is there. A person, or GitOps, creates that Secret in the member, and the hub never sees it. While
	// the Secret or the key is missing, pods of the agent do not start.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	SecretKey string `json:"secretKey,omitempty"`
}

// AgentProfile says what an agent may do in its member.
// +kubebuilder:validation:Enum=Full;ReadOnly
type AgentProfile string

const (
	// ProfileFull serves users as themselves and delivers.
	ProfileFull AgentProfile = "Full"
	// ProfileReadOnly reports, and serves reads as one user for all.
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

	// image of the agent's Deployment when it was rolled out last. Empty while that is not known.
	// +optional
	Image string `json:"image,omitempty"`

	// wantedImage is the image that the agent is to have: that of spec.agent, or of the hub's configuration. Empty when
	// the agent has it.
	// +optional
	WantedImage string `json:"wantedImage,omitempty"`

	// observedGeneration is the generation of the Cluster of which the agent's Deployment was rolled out last.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// upgrade is the agent's part in the last upgrade of all agents, as the hub's configuration says in agent.rollout.
	// Absent before the first one.
	// +optional
	Upgrade *AgentUpgrade `json:"upgrade,omitempty"`
}

// AgentUpgrade is the part of one agent in an upgrade of all agents.
type AgentUpgrade struct {
	// revision of the hub's part of the agents' Deployments: their image, and what the manager's version makes of them.
	Revision string `json:"revision"`

	// wave that the Cluster was in when its agent began.
	// +optional
	Wave string `json:"wave,omitempty"`

	// since when the agent is being upgraded.
	Since metav1.Time `json:"since"`

	// complete is when the new Deployment was rolled out.
	// +optional
	Complete *metav1.Time `json:"complete,omitempty"`

	// failed is when the agent restored the Deployment before, or when it did not come back with the new one in time.
	// +optional
	Failed *metav1.Time `json:"failed,omitempty"`
}
