// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Project is a group of namespaces in one or many members that share people, quota, limits, isolation and secrets.
//
// Namespaces are in a Project because spec.namespaces lists them, or because a user labelled them in the member with
// "cluster.drover.dev/project: <name>". Secrets of the Project's own namespace with that label are copied to all of
// them. Deleting a Project deletes no namespace.
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
	// metadata is the standard object's metadata. The name is the user's choice, at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says where the project is and what its namespaces have.
	// +required
	Spec ProjectSpec `json:"spec"`

	// status says how far the project has got.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ProjectStatus `json:"status,omitempty"`
}

// ProjectList is a list of Projects.
//
// +kubebuilder:object:root=true
type ProjectList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Project `json:"items"`
}

// ProjectSpec says where a Project is and what its namespaces have. Every field can be changed at any time. Amounts
// have no exponent: 1e3 is written 1000 or 1k.
//
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || self.resourceQuota.all(k, self.?namespaceDefaultResourceQuota[?k].hasValue())",message="every resource in resourceQuota needs a share for each namespace in namespaceDefaultResourceQuota",messageExpression="'every resource in resourceQuota needs a share for each namespace in namespaceDefaultResourceQuota, which lacks %s'.format([self.resourceQuota.filter(k, !self.?namespaceDefaultResourceQuota[?k].hasValue())])"
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || !has(self.namespaceDefaultResourceQuota) || ['requests.cpu', 'requests.memory', 'limits.cpu', 'limits.memory', 'requests.storage'].all(k, !(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k]))))",message="namespaceDefaultResourceQuota must not exceed resourceQuota",messageExpression="'namespaceDefaultResourceQuota must not exceed resourceQuota, as it does for %s'.format([['requests.cpu', 'requests.memory', 'limits.cpu', 'limits.memory', 'requests.storage'].filter(k, !(!(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k])))))])"
// +kubebuilder:validation:XValidation:rule="!has(self.resourceQuota) || !has(self.namespaceDefaultResourceQuota) || ['pods', 'services', 'secrets', 'configmaps', 'persistentvolumeclaims'].all(k, !(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k]))))",message="namespaceDefaultResourceQuota must not exceed resourceQuota",messageExpression="'namespaceDefaultResourceQuota must not exceed resourceQuota, as it does for %s'.format([['pods', 'services', 'secrets', 'configmaps', 'persistentvolumeclaims'].filter(k, !(!(k in self.resourceQuota) || !(k in self.namespaceDefaultResourceQuota) || [self.resourceQuota[k], self.namespaceDefaultResourceQuota[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || !quantity(string(self.namespaceDefaultResourceQuota[k])).isGreaterThan(quantity(string(self.resourceQuota[k])))))])"
type ProjectSpec struct {
	ClusterTarget `json:",inline"`

	// namespaces that Drover makes in each member, or joins to the project if they are there. At most 256, each a name
	// that Kubernetes takes. A namespace that is taken from the list leaves the project and stays in the member. Not
	// possible are default, kube-* and drover-*, which belong to the cluster. Listing one takes the verb
	// "manage-namespaces" on the project.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",message="must be the name of a namespace: lower-case letters, digits and dashes"
	// +kubebuilder:validation:XValidation:rule="self.all(n, n != 'default' && !n.startsWith('kube-') && !n.startsWith('drover-'))",message="default, kube-* and drover-* belong to the cluster and cannot be in a project"
	Namespaces []string `json:"namespaces,omitempty"`

	// resourceQuota is what all namespaces of the project together may use in each member. Keys are those of a
	// ResourceQuota: "limits.cpu", "requests.memory", "pods", "count/deployments.apps", … At most 24. Each needs a share
	// in namespaceDefaultResourceQuota. Default: no quota.
	// +optional
	// +kubebuilder:validation:MaxProperties=24
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims'])",message="a key is not one that a ResourceQuota knows",messageExpression="'a ResourceQuota does not know %s'.format([self.filter(k, !(k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims']))])"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a quota must not be negative",messageExpression="'a quota must not be negative, as it is for %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	// +mapType=atomic
	ResourceQuota corev1.ResourceList `json:"resourceQuota,omitempty"`

	// namespaceDefaultResourceQuota is the share of each namespace. Namespaces get it while resourceQuota lasts, those
	// that are there first; later ones get what is left, or nothing, and the condition QuotaFits says so. A resource that
	// is only here, and not in resourceQuota, every namespace gets. At most 24 keys. Default: none.
	// +optional
	// +kubebuilder:validation:MaxProperties=24
	// +kubebuilder:validation:XValidation:rule="self.all(k, k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims'])",message="a key is not one that a ResourceQuota knows",messageExpression="'a ResourceQuota does not know %s'.format([self.filter(k, !(k.contains('/') || k.startsWith('hugepages-') || k.startsWith('requests.hugepages-') || k in ['cpu', 'memory', 'ephemeral-storage', 'requests.cpu', 'requests.memory', 'requests.storage', 'requests.ephemeral-storage', 'limits.cpu', 'limits.memory', 'limits.ephemeral-storage', 'pods', 'services', 'services.nodeports', 'services.loadbalancers', 'replicationcontrollers', 'resourcequotas', 'secrets', 'configmaps', 'persistentvolumeclaims']))])"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a quota must not be negative",messageExpression="'a quota must not be negative, as it is for %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	// +mapType=atomic
	NamespaceDefaultResourceQuota corev1.ResourceList `json:"namespaceDefaultResourceQuota,omitempty"`

	// containerDefaults are requests and limits of containers that set none (a LimitRange in each namespace). With a quota
	// on limits or requests, pods without them are refused by Kubernetes: set them here. Default: none.
	// +optional
	// +structType=atomic
	ContainerDefaults *ContainerDefaults `json:"containerDefaults,omitempty"`

	// networkIsolation says who may open connections to the project's pods. None (default): Drover sets no limit. Project:
	// pods of the project's namespaces, of kube-system, and of namespaces labelled "cluster.drover.dev/ingress: true".
	// Connections out of the project are never limited. NetworkPolicies that are made in a namespace can allow more.
	// +optional
	// +kubebuilder:default=None
	NetworkIsolation NetworkIsolation `json:"networkIsolation,omitempty"`

	// podSecurity is the Pod Security Standard that the namespaces enforce, warn of and audit: privileged, baseline or
	// restricted. Default: Drover leaves the namespaces' own labels alone. Setting it, and deleting a project that sets
	// it, takes the verb "updatepsa" on the project.
	// +optional
	PodSecurity PodSecurity `json:"podSecurity,omitempty"`
}

// ContainerDefaults are requests and limits of containers that set none.
//
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || [self.requests[k], self.limits[k]].exists(q, !string(q).matches('^[0-9.]+[a-zA-Z]*$')) || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",message="a default request must not exceed the default limit"
type ContainerDefaults struct {
	// requests, by cpu, memory and ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="keys are cpu, memory and ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a default must not be negative",messageExpression="'a default must not be negative, as it is for %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits, by cpu, memory and ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="keys are cpu, memory and ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !string(self[k]).startsWith('-'))",message="a default must not be negative",messageExpression="'a default must not be negative, as it is for %s'.format([self.filter(k, string(self[k]).startsWith('-'))])"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// NetworkIsolation says who may open connections to the pods of a Project.
// +kubebuilder:validation:Enum=None;Project
type NetworkIsolation string

const (
	// IsolationNone sets no limit.
	IsolationNone NetworkIsolation = "None"
	// IsolationProject admits connections from the project's own pods, kube-system and the ingress namespaces.
	IsolationProject NetworkIsolation = "Project"
)

// PodSecurity is a level of the Pod Security Standards.
// +kubebuilder:validation:Enum=privileged;baseline;restricted
type PodSecurity string

const (
	// PodSecurityPrivileged restricts nothing.
	PodSecurityPrivileged PodSecurity = "privileged"
	// PodSecurityBaseline prevents known privilege escalations.
	PodSecurityBaseline PodSecurity = "baseline"
	// PodSecurityRestricted asks for hardened pods.
	PodSecurityRestricted PodSecurity = "restricted"
)

// ProjectStatus says how far a Project has got.
//
// Ready is True with the reasons Applied, NoClusters and MembersAway; False with MembersAway while no member has had
// it, Delivering, DeliveryFailed, Conflict, Fighting, ClusterNotFound, InvalidSelector, NamespaceTaken, SecretRefused,
// AgentTooOld, AgentReadOnly, NoLeader, IdentityMismatch.
type ProjectStatus struct {
	DeliveryStatus `json:",inline"`

	// namespaceCount is the number of namespaces in the project, over all members.
	// +optional
	NamespaceCount int32 `json:"namespaceCount,omitempty"`

	// namespaces counts them by member; the first hundred members in the order of their names.
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
	// count of namespaces, those that the spec lists and those that were labelled in the member.
	Count int32 `json:"count"`
}
