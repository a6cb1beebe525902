// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Project is a group of namespaces in one or more member clusters. These namespaces share access rights, a quota,
// limits, network isolation and Secrets.
//
// A namespace belongs to a Project if spec.namespaces lists it, or if a user has labeled it in the member with
// "cluster.drover.dev/project: <name>". Secrets in the Project's own namespace on the hub that have the same label are
// copied to all namespaces in the Project. Deleting a Project does not delete its namespaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=dproj
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Namespaces",type=integer,JSONPath=`.status.namespaceCount`
// +kubebuilder:printcolumn:name="Quota-Fits",type=string,JSONPath=`.status.conditions[?(@.type=="QuotaFits")].status`
// +kubebuilder:printcolumn:name="Isolation",type=string,JSONPath=`.spec.networkIsolation`
// +kubebuilder:printcolumn:name="Pod-Security",type=string,JSONPath=`.spec.podSecurity`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes a label value",fieldPath=.metadata
type Project struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the members that the project applies to, and the settings of its namespaces.
	// +required
	Spec ProjectSpec `json:"spec"`

	// status describes the progress of the project's delivery to members.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ProjectStatus `json:"status,omitzero"`
}

// ProjectList is a list of Projects.
//
// +kubebuilder:object:root=true
type ProjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Project `json:"items"`
}

// ProjectSpec defines the members that a Project applies to and the settings of its namespaces. Every field can be
// changed at any time. Quantities must not use an exponent: write 1000 or 1k instead of 1e3.
//
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || self.resourceQuota.all(k, self.?namespaceDefaultResourceQuota[?k].hasValue())",message="every resource in resourceQuota needs a share in namespaceDefaultResourceQuota",messageExpression="'every resource in resourceQuota needs a share in namespaceDefaultResourceQuota; missing: %s'.format([self.resourceQuota.filter(k, !self.?namespaceDefaultResourceQuota[?k].hasValue())])"
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || !has(self.namespaceDefaultResourceQuota) || ['requests.cpu', 'requests.memory', 'limits.cpu', 'limits.memory', 'requests.storage'].all(k, !(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k]))))",message="namespaceDefaultResourceQuota must not exceed resourceQuota",messageExpression="'namespaceDefaultResourceQuota must not exceed resourceQuota: %s'.format([['requests.cpu', 'requests.memory', 'limits.cpu', 'limits.memory', 'requests.storage'].filter(k, !(!(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k])))))])"
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || !has(self.namespaceDefaultResourceQuota) || ['pods', 'services', 'secrets', 'configmaps', 'persistentvolumeclaims'].all(k, !(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k]))))",message="namespaceDefaultResourceQuota must not exceed resourceQuota",messageExpression="'namespaceDefaultResourceQuota must not exceed resourceQuota: %s'.format([['pods', 'services', 'secrets', 'configmaps', 'persistentvolumeclaims'].filter(k, !(!(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k])))))])"
type ProjectSpec struct {
	ClusterTarget `json:",inline"`

	// namespaces lists the names of up to 256 namespaces that belong to the project. In each member, Drover creates these
	// namespaces, or adds them to the project if they already exist. When a name is removed from the list, the namespace
	// leaves the project but is not deleted. The names default, kube-* and drover-* are rejected, because these namespaces
	// belong to the cluster. Adding a namespace to the list requires the "manage-namespaces" verb on the project.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be the name of a namespace: lower-case letters, digits and dashes"
	// +kubebuilder:validation:XValidation:rule="self.all(n, n != 'default' && !n.startsWith('kube-') && !n.startsWith('drover-'))",message="default, kube-* and drover-* belong to the cluster and cannot be in a project"
	Namespaces []string `json:"namespaces,omitempty"`

	// resourceQuota limits the total resource usage of all namespaces of the project, separately in each member. The keys
	// are resource names as in a ResourceQuota, such as "limits.cpu", "requests.memory", "pods" and
	// "count/deployments.apps". At most 24 keys are allowed. Each key must also have a value in
	// namespaceDefaultResourceQuota. By default, there is no quota.
	// +optional
	// +kubebuilder:validation:MaxProperties=24
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims'])",message="keys must be resources that a ResourceQuota supports",messageExpression="'a ResourceQuota does not support %s'.format([self.filter(k, !(k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims']))])"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a quota must not be negative",messageExpression="'a quota must not be negative: %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	// +mapType=atomic
	ResourceQuota corev1.ResourceList `json:"resourceQuota,omitempty"`

	// namespaceDefaultResourceQuota is the share of the quota that each namespace gets. At most 24 keys are allowed. Older
	// namespaces get their shares first. If resourceQuota is too small for all namespaces, the newest ones get the
	// remainder or nothing, and the QuotaFits condition reports the shortage. If a resource is not in resourceQuota, every
	// namespace gets its full share of that resource. By default, namespaces have no quota.
	// +optional
	// +kubebuilder:validation:MaxProperties=24
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims'])",message="keys must be resources that a ResourceQuota supports",messageExpression="'a ResourceQuota does not support %s'.format([self.filter(k, !(k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims']))])"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a quota must not be negative",messageExpression="'a quota must not be negative: %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	// +mapType=atomic
	NamespaceDefaultResourceQuota corev1.ResourceList `json:"namespaceDefaultResourceQuota,omitempty"`

	// containerDefaults are the default resource requests and limits of containers. Drover creates a LimitRange with
	// these values in each namespace. If resourceQuota restricts requests or limits, set containerDefaults, because
	// Kubernetes then rejects pods that do not specify requests or limits. By default, no LimitRange is created.
	// +optional
	// +structType=atomic
	ContainerDefaults *ContainerDefaults `json:"containerDefaults,omitempty"`

	// networkIsolation controls which connections to the project's pods are allowed. With None, the default, Drover does
	// not restrict connections. With Project, only pods in the project's namespaces, in kube-system and in namespaces with
	// the label "cluster.drover.dev/ingress: true" can connect. Outgoing connections are never restricted. NetworkPolicies
	// that you add to a namespace can allow more connections.
	// +optional
	// +kubebuilder:default=None
	NetworkIsolation NetworkIsolation `json:"networkIsolation,omitempty"`

	// podSecurity is the level of the Pod Security Standards for the project's namespaces: privileged, baseline or
	// restricted. It applies to the enforce, warn and audit modes. Setting podSecurity, or deleting a project that sets
	// it, requires the "updatepsa" verb on the project. By default, Drover does not change the Pod Security labels of
	// the namespaces.
	// +optional
	PodSecurity PodSecurity `json:"podSecurity,omitempty"`
}

// ContainerDefaults are the default resource requests and limits of containers.
//
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || [self.requests[k], self.limits[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",message="a default request must not exceed the default limit"
type ContainerDefaults struct {
	// requests are the default resource requests. The allowed keys are cpu, memory and ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="keys must be cpu, memory or ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a default must not be negative",messageExpression="'a default must not be negative: %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are the default resource limits. The allowed keys are cpu, memory and ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="keys must be cpu, memory or ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a default must not be negative",messageExpression="'a default must not be negative: %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// NetworkIsolation controls which connections to the pods of a Project are allowed.
// +kubebuilder:validation:Enum=None;Project
type NetworkIsolation string

const (
	// IsolationNone means that connections are not restricted.
	IsolationNone NetworkIsolation = "None"
	// IsolationProject means that only pods in the project's namespaces, in kube-system and in namespaces with the label
	// LabelIngress can connect.
	IsolationProject NetworkIsolation = "Project"
)

// PodSecurity is a level of the Pod Security Standards.
// +kubebuilder:validation:Enum=privileged;baseline;restricted
type PodSecurity string

const (
	// PodSecurityPrivileged means that pods are not restricted.
	PodSecurityPrivileged PodSecurity = "privileged"
	// PodSecurityBaseline means that known privilege escalations are prevented.
	PodSecurityBaseline PodSecurity = "baseline"
	// PodSecurityRestricted means that current best practices for hardening pods are enforced.
	PodSecurityRestricted PodSecurity = "restricted"
)

// ProjectStatus describes the progress of a Project's delivery to members.
//
// Ready is True with reason Applied, NoClusters or MembersAway. If no member has ever received the project, Ready is
// False with reason MembersAway. Ready is also False with reason Delivering, DeliveryFailed, Conflict, Fighting,
// ClusterNotFound, InvalidSelector, NamespaceTaken, SecretRefused, AgentTooOld, AgentReadOnly, NoLeader or
// IdentityMismatch.
type ProjectStatus struct {
	DeliveryStatus `json:",inline"`

	// namespaceCount is the total number of the project's namespaces in all members.
	// +optional
	NamespaceCount int32 `json:"namespaceCount,omitempty"`

	// namespaces lists the number of the project's namespaces in each member. Only the first 100 members, sorted by name,
	// are listed.
	// +optional
	// +listType=map
	// +listMapKey=cluster
	// +kubebuilder:validation:MaxItems=100
	Namespaces []NamespaceCount `json:"namespaces,omitempty"`
}

// NamespaceCount counts the namespaces of a Project in one member.
type NamespaceCount struct {
	// cluster is the name of the Cluster.
	Cluster string `json:"cluster"`
	// count is the number of the project's namespaces in this member.
	Count int32 `json:"count"`
}
