// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DroverMachine is the infrastructure of a Machine of Cluster API: one Host of the workspace, which is taken while the Machine exists, and cleaned and given back after.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1"
// +kubebuilder:resource:categories=cluster-api,shortName=droverma
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.metadata.labels['cluster\.x-k8s\.io/cluster-name']`
// +kubebuilder:printcolumn:name="Host",type=string,JSONPath=`.status.hostName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="ProviderID",type=string,priority=1,JSONPath=`.spec.providerID`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type DroverMachine struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says which Host the machine may be.
	// +optional
	Spec DroverMachineSpec `json:"spec,omitempty"`

	// status is what Cluster API reads, and which Host the machine is.
	// +optional
	Status DroverMachineStatus `json:"status,omitempty"`
}

// DroverMachineList is a list of DroverMachines.
//
// +kubebuilder:object:root=true
type DroverMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverMachine `json:"items"`
}

// DroverMachineSpec is what the user wants of a DroverMachine.
type DroverMachineSpec struct {
	// providerID is "drover://<workspace>/<host>" once a Host was taken. The manager writes it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// hostSelector selects the Hosts of the workspace that the machine may be, by their labels. Default: any that is available.
	// +optional
	HostSelector *metav1.LabelSelector `json:"hostSelector,omitempty"`

	// antiAffinity keeps machines of one control plane, or of one MachineDeployment, apart. Default: they share nothing but the workspace.
	// +optional
	AntiAffinity *AntiAffinity `json:"antiAffinity,omitempty"`
}

// AntiAffinity says what machines of one group must not share.
type AntiAffinity struct {
	// topologyKey is a label of Hosts. No two machines of the group are on Hosts with the same value; a Host without the label takes none.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
}

// DroverMachineStatus is what is known of a DroverMachine.
type DroverMachineStatus struct {
	// initialization is what Cluster API waits for.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// hostName is the Host that the machine is.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	HostName string `json:"hostName,omitempty"`

	// addresses are those that the Host reports, at most 32.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []MachineAddress `json:"addresses,omitempty"`

	// failureDomain is where the Host is, by spec.failureDomainLabel of the DroverCluster.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// conditions are Ready, and Paused while Cluster API asks for it.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MachineAddress is an address of a machine, as the contract has it.
type MachineAddress struct {
	// type is Hostname or InternalIP.
	// +required
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is a name or an IP address.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// DroverMachineTemplate is what Cluster API makes DroverMachines of.
//
// +kubebuilder:object:root=true
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1"
// +kubebuilder:resource:categories=cluster-api,shortName=drovermt
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DroverMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the template.
	// +required
	Spec DroverMachineTemplateSpec `json:"spec"`
}

// DroverMachineTemplateList is a list of DroverMachineTemplates.
//
// +kubebuilder:object:root=true
type DroverMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverMachineTemplate `json:"items"`
}

// DroverMachineTemplateSpec is the template of machines.
type DroverMachineTemplateSpec struct {
	// template of a machine. Machines that were made of it do not follow a change: let Cluster API roll out another template.
	// +required
	Template DroverMachineTemplateResource `json:"template"`
}

// DroverMachineTemplateResource is what a machine is made of.
type DroverMachineTemplateResource struct {
	// metadata for the machines.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec of the machines.
	// +required
	Spec DroverMachineSpec `json:"spec"`
}

// ObjectMeta is the metadata that a template may give.
//
// +kubebuilder:validation:MinProperties=1
type ObjectMeta struct {
	// labels of the machines.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// annotations of the machines.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}
