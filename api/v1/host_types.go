// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Host says that a machine exists which Drover may install something on, through an agent that runs there as root. Its
// namespace is the workspace that it belongs to.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=dhost
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="OS",type=string,JSONPath=`.status.machine.os`
// +kubebuilder:printcolumn:name="Arch",type=string,JSONPath=`.status.machine.architecture`
// +kubebuilder:printcolumn:name="CPU",type=integer,JSONPath=`.status.machine.cpus`
// +kubebuilder:printcolumn:name="Memory",type=string,JSONPath=`.status.machine.memory`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.agentVersion`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Address",type=string,priority=1,JSONPath=`.status.machine.addresses[0]`
// +kubebuilder:printcolumn:name="Consumer",type=string,priority=1,JSONPath=`.spec.consumerRef.name`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes a label value",fieldPath=.metadata
type Host struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is the user's choice, at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says how the machine joins and what happens at deletion. Nothing is required in it.
	// +optional
	// +kubebuilder:default={}
	Spec HostSpec `json:"spec,omitempty"`

	// status says what the machine is and how far it is with its plan, as its agent reports it.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status HostStatus `json:"status,omitempty"`
}

// HostList is a list of Hosts.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// HostSpec is what the user wants of a Host. Every field can be changed at any time, but for consumerRef.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.consumerRef) || !has(self.consumerRef) || self.consumerRef == oldSelf.consumerRef",message="spec.consumerRef cannot be changed: the host is taken; what has taken it gives it back first"
type HostSpec struct {
	// tokenTTL is how long a join token can be used, counted from when Drover made it. Default 24h, at least 1m, at most
	// 8760h. It does not matter any more once an agent has joined.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$')",message="write tokenTTL in hours, minutes and seconds, for example 36h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') || duration(self) >= duration('1m') && duration(self) <= duration('8760h')",message="tokenTTL must be between 1m and 8760h"
	TokenTTL metav1.Duration `json:"tokenTTL,omitzero"`

	// deletionPolicy says what happens on the machine when the Host is deleted: Clean (default) does what the plan says of
	// that, and removes the agent; Orphan leaves the machine as it is, where the agent is no longer let in. A host that is
	// not connected is not cleaned.
	// +optional
	// +kubebuilder:default=Clean
	DeletionPolicy HostDeletionPolicy `json:"deletionPolicy,omitempty"`

	// internalAddress is the IP address at which other machines of a cluster reach this one, if it is not the first that
	// the machine reports: on machines whose first network is NAT, all report the same one. It is the address of the node,
	// too, in clusters of a ClusterInstallation. Set it before the host is taken.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$|^(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|[0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}|:((:[0-9A-Fa-f]{1,4}){1,7}|:))$')",message="internalAddress must be an IP address, for example 10.0.0.5 or fd00::5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(0|127|169[.]254|22[4-9]|2[3-5][0-9])[.]|^[fF][eE][89aAbB]|^[fF][fF]|^[0:]+1?$')",message="internalAddress must be one at which other machines reach this one, and not of its loopback, its link or a group"
	InternalAddress string `json:"internalAddress,omitempty"`

	// consumerRef names the object that has taken the host and gives it its plan, in the Host's own namespace. The
	// controller of that object sets it, and removes it once the machine is clean. No other takes a host with it.
	// +optional
	ConsumerRef *HostConsumerRef `json:"consumerRef,omitempty"`
}

// HostConsumerRef names what has taken a Host. Metal3's BareMetalHost has such a field, and what Cluster API expects of
// infrastructure is written for it.
type HostConsumerRef struct {
	// apiVersion of the object.
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]+/)?v[a-z0-9]+$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// kind of the object.
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name of the object.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the object: one that was made again with the same name has not taken the host.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-A-Za-z0-9]{1,64}$')",message="a UID has 1 to 64 letters, digits and hyphens"
	UID types.UID `json:"uid"`
}

// HostDeletionPolicy says what happens on the machine when a Host is deleted.
//
// +kubebuilder:validation:Enum=Clean;Orphan
type HostDeletionPolicy string

// Deletion policies of Hosts.
const (
	// HostClean cleans the machine and removes the agent.
	HostClean HostDeletionPolicy = "Clean"
	// HostOrphan leaves the machine as it is.
	HostOrphan HostDeletionPolicy = "Orphan"
)

// HostState is how far a machine is.
type HostState string

// States of a Host.
const (
	// HostWaitingToRegister: no agent has joined. The command is in the Secret "<host>-host-join".
	HostWaitingToRegister HostState = "WaitingToRegister"
	// HostAvailable: the agent has joined, and the host has no plan.
	HostAvailable HostState = "Available"
	// HostInstalling: the host carries out its plan, or has failed to.
	HostInstalling HostState = "Installing"
	// HostWaitingForKubernetes: all instructions have succeeded, and a probe of the plan has not.
	HostWaitingForKubernetes HostState = "WaitingForKubernetes"
	// HostActive: the plan is carried out, and all of its probes are successful.
	HostActive HostState = "Active"
	// HostCleaning: the plan was taken away, and what it installed is removed.
	HostCleaning HostState = "Cleaning"
)

// HostStatus is what is known of a machine.
type HostStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// state is how far the machine is: WaitingToRegister, Available, Installing, WaitingForKubernetes, Active or Cleaning.
	// It stays as it was while the agent is not connected; the condition Ready says that.
	// +optional
	State HostState `json:"state,omitempty"`

	// conditions are Ready, Stalled while a person must act, and RestoreConfirmed, False, while the hub hands no plan over
	// because its etcd was restored from a backup and no administrator has confirmed what that would change.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// machine is what the agent reports of it.
	// +optional
	Machine *HostMachine `json:"machine,omitempty"`

	// plan is how far the host is with its plan, absent without one.
	// +optional
	Plan *HostPlanStatus `json:"plan,omitempty"`

	// restore is what the hub, whose etcd was restored from a backup, does on the host only after it was confirmed: its
	// lists have the name of the plan's Secret. Remove means that the host would be cleaned.
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`

	// agentVersion is the version of the agent.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`

	// reportedTo is the term of the manager's leader that the agent last reported to. While it is not the term of the
	// present leader, which the Lease of the manager has, the status may be older than what the machine has: of before
	// a restart, or of a backup that the hub was restored from.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ReportedTo string `json:"reportedTo,omitempty"`

	// lastSeen is when the agent was connected last, absent while it is.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
}

// HostMachine is what the agent reports of its machine. It decides nothing: a machine may report what it likes.
type HostMachine struct {
	// hostname of the machine.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// os is the name of the operating system, as /etc/os-release has it.
	// +optional
	OS string `json:"os,omitempty"`
	// architecture, for example "amd64".
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// kernel is its release.
	// +optional
	Kernel string `json:"kernel,omitempty"`
	// cpus that the machine has.
	// +optional
	CPUs int32 `json:"cpus,omitempty"`
	// memory that the machine has, for example "3915Mi".
	// +optional
	Memory string `json:"memory,omitempty"`
	// addresses of its network interfaces, at most 16.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// roles that the join command gave: etcd, control-plane, worker.
	// +optional
	// +listType=atomic
	Roles []string `json:"roles,omitempty"`
	// labels that the join command gave for the node, as "key=value", at most 32.
	// +optional
	// +listType=atomic
	Labels []string `json:"labels,omitempty"`
	// taints that the join command gave for the node, as "key=value:effect", at most 32.
	// +optional
	// +listType=atomic
	Taints []string `json:"taints,omitempty"`
}

// HostPlanStatus is how far a host is with its plan.
type HostPlanStatus struct {
	// version is that of the plan which this is about: the UID and resourceVersion of its Secret, with a dot between.
	// +optional
	Version string `json:"version,omitempty"`
	// done and total count the plan's one-time instructions.
	Done int32 `json:"done"`
	// total counts all of them.
	Total int32 `json:"total"`
	// instruction that runs, or has failed, by its ID.
	// +optional
	Instruction string `json:"instruction,omitempty"`
	// output is the last of what the instruction wrote that has failed: at most 20 lines and 2 KiB, without the plan's
	// secrets.
	// +optional
	Output string `json:"output,omitempty"`
	// failing are the names of the probes that are not successful, at most 8.
	// +optional
	// +listType=atomic
	Failing []string `json:"failing,omitempty"`
}

// Suffixes of the Secrets that belong to a Host.
const (
	// HostJoinSecretSuffix follows the Host's name in the name of the Secret with the join token and command.
	HostJoinSecretSuffix = "-host-join"
	// HostAgentSecretSuffix follows it in the name of the Secret with the identity of its agent. It does not end as that
	// of Clusters does: the Secrets of a Cluster "x-host" and of a Host "x" have different names.
	HostAgentSecretSuffix = "-host-identity"
	// HostPlanSecretSuffix follows it in the name of the Secret with its plan, which is of the type SecretTypeHostPlan.
	HostPlanSecretSuffix = "-host-plan"
)

// SecretTypeHostPlan is the type of Secrets that hold the plan of a Host. To write one takes the right to update
// hosts/plan: a plan is root on the machine. The type of a Secret cannot be changed.
const SecretTypeHostPlan = Group + "/host-plan"

// HostPlanKey is the key of the plan in its Secret.
const HostPlanKey = "plan.json"

// Reasons of a Host's conditions, beside Pending, AwaitingAgent, TokenExpired, SecretConflict, RegistrationFailed,
// TunnelLost, AwaitingReport, IdentityMismatch, Removing.
const (
	// ReasonHostAvailable: the host has no plan and can take one.
	ReasonHostAvailable = "Available"
	// ReasonInstalling: the host carries out its plan.
	ReasonInstalling = "Installing"
	// ReasonWaitingForKubernetes: a probe of the plan is not successful yet, or no longer.
	ReasonWaitingForKubernetes = "WaitingForKubernetes"
	// ReasonActive: the plan is carried out and its probes are successful.
	ReasonActive = "Active"
	// ReasonCleaning: the plan was taken away, and the host is cleaned.
	ReasonCleaning = "Cleaning"
	// ReasonInstructionFailed: an instruction failed, or a file could not be written; status.plan has the last lines.
	// Stalled: a new plan is needed.
	ReasonInstructionFailed = "InstructionFailed"
	// ReasonInterrupted: an instruction was killed with its machine. It is not repeated. Stalled: look at the machine and
	// give the instruction a new ID.
	ReasonInterrupted = "Interrupted"
	// ReasonPlanInvalid: the Secret "<host>-host-plan" holds no valid plan; the message says why. Stalled.
	ReasonPlanInvalid = "PlanInvalid"
)
