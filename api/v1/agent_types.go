// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Agent configures the agent in the member. If the agent runs as the Deployment from its manifest, the hub applies
// changes to it through the agent's tunnel. If the updated agent does not become ready, it is rolled back, and the
// AgentUpToDate condition reports the rollback. A user who can choose the agent's image, its nodes, or the hub that it
// trusts can obtain the agent's rights. Setting any field except replicas and resources therefore requires the "update"
// verb on clusters/agent. No workspace role includes this verb.
// +kubebuilder:validation:XValidation:rule="!has(self.nodeAgent) || !self.nodeAgent || !has(self.profile) || self.profile != 'ReadOnly'",message="nodeAgent requires the Full profile: node agents use the nodes' network, and a ReadOnly agent is not allowed to create such pods"
type Agent struct {
	// image is the container image of the agent. The default is the image in the hub's configuration.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Image string `json:"image,omitempty"`

	// trust defines which CAs the agent trusts when it verifies the hub. With Pinned, the default, the agent trusts
	// only the CA bundle in its manifest and the CAs that the hub has since announced through the tunnel. With System,
	// the agent trusts the CAs in its image. Use System if the hub's certificate was issued by a public CA.
	// +optional
	// +kubebuilder:default=Pinned
	Trust Trust `json:"trust,omitempty"`

	// profile selects the rights of the agent in the member. With Full, the default, the agent delivers roles, bindings
	// and projects. It impersonates the user in each request that it forwards, so the member's RBAC applies. With
	// ReadOnly, the agent reports on the member and forwards all users' requests as the user "drover:viewer", who has only
	// the rights of the Kubernetes ClusterRole "view". Write and exec requests are rejected, no objects are delivered, and
	// objects that were delivered earlier are withdrawn. The agent's rights are part of its manifest, so a change takes
	// effect when the new manifest is applied in the member. An agent never changes its own profile.
	// +optional
	// +kubebuilder:default=Full
	Profile AgentProfile `json:"profile,omitempty"`

	// replicas is the number of agent pods, from 1 to 5. Each pod opens its own tunnel. By default, the agent has 1
	// replica in a member with a single node, and 2 replicas otherwise. The agent adjusts this number as nodes are added
	// and removed.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=5
	Replicas *int32 `json:"replicas,omitempty"`

	// nodeAgent enables node agents. A node agent runs on every node, in a DaemonSet that uses the host network and
	// tolerates all taints. While no replica of the agent is connected, one of the node agents opens a tunnel so that
	// users can still reach the member. No objects are delivered during this time. Anyone who controls a node with a node
	// agent can obtain the agent's rights. To run node agents only on some nodes, set nodeSelector or affinity. Changes to
	// nodeAgent take effect when the new manifest is applied in the member. Node agents require the Full profile.
	// nodeAgent defaults to false.
	// +optional
	NodeAgent bool `json:"nodeAgent,omitempty"`

	// hostNetwork makes the agent's pods use their nodes' network and DNS resolver, and lets them run on nodes that
	// have no pod network yet. Set it if a Baseline installs the member's CNI plugin. The API server's ClusterIP must
	// be reachable from the nodes. The pods do not open any ports on the nodes. NetworkPolicies do not apply to such
	// pods. Changes to hostNetwork take effect when the new manifest is applied in the member. hostNetwork defaults to
	// false.
	// +optional
	HostNetwork bool `json:"hostNetwork,omitempty"`

	// nodeSelector lists up to 16 labels that a node must have for the agent to run on it. By default, the agent can
	// run on any node, but prefers control plane nodes.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +mapType=atomic
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// tolerations lists up to 16 tolerations in addition to the agent's built-in tolerations for control plane taints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity replaces the agent's default affinity. By default, the agent prefers control plane nodes, and its replicas
	// are spread across nodes.
	// +optional
	// +structType=atomic
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// resources are the compute resources of the agent's container. Only cpu, memory and ephemeral-storage are accepted.
	// The hub and the agent both reject any other resource, because it could force the agent onto a particular node. By
	// default, the container requests 20m of CPU and 32Mi of memory, and has a memory limit of 256Mi. Setting this field
	// replaces all three defaults.
	// +optional
	// +structType=atomic
	Resources *AgentResources `json:"resources,omitempty"`

	// priorityClassName is the name of the PriorityClass of the agent's pods. The PriorityClass must exist in the member.
	// By default, the pods get the member's default priority.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// imagePullSecrets names up to 8 Secrets for pulling the agent's image. The Secrets must exist in the agent's
	// namespace "drover-agent" in the member. Create them there manually or with GitOps. By default, the Secrets in the
	// hub's configuration are used.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []PullSecret `json:"imagePullSecrets,omitempty"`

	// env lists up to 16 additional environment variables for the agent. The allowed names are HTTPS_PROXY, HTTP_PROXY
	// and NO_PROXY (also in lower case), GOMEMLIMIT, GOGC, GOMAXPROCS, and the OpenTelemetry variables
	// OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
	// OTEL_SDK_DISABLED and OTEL_BSP_*. The hub and the agent both reject other names, because a variable could
	// redirect the agent to another server. Anyone who can read the Cluster or its manifest can see the value field.
	// Use the secretKey field for confidential values, such as a proxy password.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(e, e.name.matches('^(HTTPS_PROXY|https_proxy|HTTP_PROXY|http_proxy|NO_PROXY|no_proxy|GOMEMLIMIT|GOGC|GOMAXPROCS|OTEL_(EXPORTER_OTLP_(TRACES_)?(ENDPOINT|HEADERS)|SERVICE_NAME|RESOURCE_ATTRIBUTES|SDK_DISABLED|BSP_[A-Z_]+))$'))",message="an agent accepts only the variables HTTPS_PROXY, HTTP_PROXY, NO_PROXY, GOMEMLIMIT, GOGC, GOMAXPROCS and the OpenTelemetry variables in docs/spec/cluster.md"
	Env []AgentEnv `json:"env,omitempty"`
}

// AgentResources are the compute resources of the agent's container.
type AgentResources struct {
	// requests are the resources that the scheduler reserves for the container. The allowed keys are cpu, memory and
	// ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="an agent accepts only cpu, memory and ephemeral-storage"
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are the resources that the container must not exceed. The allowed keys are cpu, memory and ephemeral-storage.
	// The memory limit must be at least 32Mi, because an agent cannot start with less. In a member with thousands of
	// nodes, set it to at least 64Mi.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="an agent accepts only cpu, memory and ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="!('memory' in self) || !string(self['memory']).matches('^-?[0-9.]+[a-zA-Z]*$') || !quantity(string(self['memory'])).isLessThan(quantity('32Mi'))",message="an agent does not start with less than 32Mi of memory: set memory to at least 32Mi, or omit it"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// AgentEnv is an environment variable of the agent.
// +kubebuilder:validation:XValidation:rule="!has(self.secretKey) || !has(self.value) || size(self.value) == 0",message="set value or secretKey, not both"
type AgentEnv struct {
	// name is the name of the variable. It must consist of 1 to 128 letters, digits and underscores, and must not start
	// with a digit.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z_][A-Za-z0-9_]*$`
	Name string `json:"name"`

	// value is the value of the variable. It must be at most 1024 characters long. The default is the empty string.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Value string `json:"value,omitempty"`

	// secretKey is the key that contains the value in the Secret "drover-agent-env". Create the Secret in the agent's
	// namespace "drover-agent" in the member, manually or with GitOps. The hub cannot read it. The agent's pods do not
	// start until the Secret and the key exist.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	SecretKey string `json:"secretKey,omitempty"`
}

// AgentProfile selects the rights of an agent in its member.
// +kubebuilder:validation:Enum=Full;ReadOnly
type AgentProfile string

const (
	// ProfileFull means that the agent delivers roles, bindings and projects, and impersonates the user in each forwarded
	// request.
	ProfileFull AgentProfile = "Full"
	// ProfileReadOnly means that the agent reports on the member, and forwards all read requests as a single user.
	ProfileReadOnly AgentProfile = "ReadOnly"
)

// Trust defines which CAs an agent trusts when it verifies the hub.
// +kubebuilder:validation:Enum=Pinned;System
type Trust string

const (
	// TrustPinned means that the agent trusts only the CAs that it received from the hub.
	TrustPinned Trust = "Pinned"
	// TrustSystem means that the agent trusts the CAs in its image.
	TrustSystem Trust = "System"
)

// AgentStatus describes the agent that serves a member.
type AgentStatus struct {
	// version is the version of the agent, for example "v0.1.0". If the agent has several replicas, it is the version
	// of the leader.
	Version string `json:"version"`
	// replicas is the number of agent replicas with an open tunnel.
	Replicas int32 `json:"replicas"`

	// image is the image that the last rollout of the agent's Deployment used. It is empty if the image is not known
	// yet.
	// +optional
	Image string `json:"image,omitempty"`

	// wantedImage is the image that the agent should run, as configured in spec.agent or in the hub's configuration. It is
	// empty once the agent runs that image.
	// +optional
	WantedImage string `json:"wantedImage,omitempty"`

	// observedGeneration is the generation of the Cluster's spec that the last rollout of the agent's Deployment applied.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// upgrade describes the progress of this agent in the latest upgrade of all agents. It is absent before the first such
	// upgrade. agent.rollout in the hub's configuration controls these upgrades.
	// +optional
	Upgrade *AgentUpgrade `json:"upgrade,omitempty"`
}

// AgentUpgrade describes the progress of one agent in an upgrade of all agents.
type AgentUpgrade struct {
	// revision identifies the settings that the hub applies to the Deployments of all agents. These settings are the
	// image and the manager's built-in Deployment template.
	Revision string `json:"revision"`

	// wave is the name of the wave that the Cluster belonged to when the upgrade of its agent started.
	// +optional
	Wave string `json:"wave,omitempty"`

	// since is the time when the upgrade of the agent started.
	Since metav1.Time `json:"since"`

	// complete is the time when the rollout of the upgraded Deployment finished.
	// +optional
	Complete *metav1.Time `json:"complete,omitempty"`

	// failed is the time when the upgrade failed: either the agent rolled back its Deployment, or the upgraded agent did
	// not reconnect in time.
	// +optional
	Failed *metav1.Time `json:"failed,omitempty"`
}
