// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Host represents a machine on which Drover can install software. An agent runs as root on the machine and carries out
// the Host's instructions. The namespace of the Host is the workspace that the machine belongs to.
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
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec configures how the machine joins, and what happens when the Host is deleted. All fields are optional.
	// +optional
	// +kubebuilder:default={}
	Spec HostSpec `json:"spec,omitzero"`

	// status is the observed state of the machine, and of the instructions that it carries out.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status HostStatus `json:"status,omitzero"`
}

// HostList is a list of Hosts.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// HostSpec is the desired state of a Host. Every field except consumerRef can be changed at any time.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.consumerRef) || !has(self.consumerRef) || self.consumerRef == oldSelf.consumerRef",message="spec.consumerRef cannot be changed while the host is taken: the object that claimed it must release it first"
type HostSpec struct {
	// tokenTTL is the lifetime of the join token. It starts when Drover creates the token. The valid range is 1m to 8760h.
	// The default is 24h. tokenTTL has no effect after an agent has joined.
	// +optional
	// +kubebuilder:default="24h"
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$')",message="tokenTTL must be in hours, minutes and seconds, for example 36h or 1h30m"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([0-9]+([.][0-9]+)?(s|m|h))+$') || duration(self) >= duration('1m') && duration(self) <= duration('8760h')",message="tokenTTL must be between 1m and 8760h"
	TokenTTL metav1.Duration `json:"tokenTTL,omitzero"`

	// deletionPolicy defines what happens to the machine when the Host is deleted. With Clean, the default, the host
	// carries out the cleanup instructions in the Secret "<host>-host-plan" and removes its agent. A host that is not
	// connected cannot be cleaned. With Orphan, the machine is left unchanged, and its agent can no longer connect.
	// +optional
	// +kubebuilder:default=Clean
	DeletionPolicy HostDeletionPolicy `json:"deletionPolicy,omitempty"`

	// internalAddress is the IP address that the other machines of a cluster use to reach this machine. In the cluster
	// of a ClusterInstallation, it is also the node's address. The default is the first address that the machine
	// reports. Set internalAddress if the reported address is wrong, for example on machines that all report the same
	// NAT address on their first network interface. Set it before consumerRef is set.
	// +optional
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.matches('^((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])[.]){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])$|^(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}:[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|[0-9A-Fa-f]{1,4}:(:[0-9A-Fa-f]{1,4}){1,6}|:((:[0-9A-Fa-f]{1,4}){1,7}|:))$')",message="internalAddress must be an IP address, for example 10.0.0.5 or fd00::5"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^(0|127|169[.]254|22[4-9]|2[3-5][0-9])[.]|^[fF][eE][89aAbB]|^[fF][fF]|^[0:]+1?$')",message="internalAddress must be reachable from other machines: loopback, link-local, multicast and unspecified addresses are not allowed"
	InternalAddress string `json:"internalAddress,omitempty"`

	// consumerRef refers to the object in the same namespace that has claimed the host and provides its instructions.
	// The object's controller sets this field, and removes it once the machine has been cleaned. While consumerRef is
	// set, no other object can claim the host.
	// +optional
	ConsumerRef *HostConsumerRef `json:"consumerRef,omitempty"`
}

// HostConsumerRef refers to the object that has claimed a Host. It has the same format as the consumerRef field of a
// Metal3 BareMetalHost, because Cluster API tools expect that field.
type HostConsumerRef struct {
	// apiVersion is the API version of the object.
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]+/)?v[a-z0-9]+$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// kind is the kind of the object.
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// name is the name of the object.
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the UID of the object. It distinguishes the object from a later object with the same name.
	// +kubebuilder:validation:XValidation:rule="self.matches('^[-A-Za-z0-9]{1,64}$')",message="must be a UID: 1 to 64 letters, digits and hyphens"
	UID types.UID `json:"uid"`
}

// HostDeletionPolicy defines what happens to the machine when a Host is deleted.
//
// +kubebuilder:validation:Enum=Clean;Orphan
type HostDeletionPolicy string

// Deletion policies of Hosts.
const (
	// HostClean means that the machine is cleaned and its agent is removed.
	HostClean HostDeletionPolicy = "Clean"
	// HostOrphan means that the machine, including its agent, is left unchanged.
	HostOrphan HostDeletionPolicy = "Orphan"
)

// HostState is the stage that a machine has reached.
type HostState string

// States of a Host.
const (
	// HostWaitingToRegister means that no agent has joined. The join command is in the Secret "<host>-host-join".
	HostWaitingToRegister HostState = "WaitingToRegister"
	// HostAvailable means that the agent has joined, and the host has no instructions.
	HostAvailable HostState = "Available"
	// HostInstalling means that the host is carrying out its instructions, or that one of them has failed.
	HostInstalling HostState = "Installing"
	// HostWaitingForKubernetes means that all instructions have succeeded, but at least one probe is still failing.
	HostWaitingForKubernetes HostState = "WaitingForKubernetes"
	// HostActive means that all instructions and all probes have succeeded.
	HostActive HostState = "Active"
	// HostCleaning means that the instructions have been withdrawn and the host is removing everything that they
	// installed.
	HostCleaning HostState = "Cleaning"
)

// HostStatus is the observed state of a machine.
type HostStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// state is the stage that the machine has reached: WaitingToRegister, Available, Installing, WaitingForKubernetes,
	// Active or Cleaning. It keeps its value while the agent is disconnected. The Ready condition shows whether the
	// agent is connected.
	// +optional
	State HostState `json:"state,omitempty"`

	// conditions contains Ready. It also contains Stalled while manual action is required. RestoreConfirmed is present
	// with status False while a restored hub is holding back instructions that an administrator must confirm.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// machine describes the hardware and operating system, as reported by the agent.
	// +optional
	Machine *HostMachine `json:"machine,omitempty"`

	// plan describes the progress of the host's instructions. It is absent while the host has no instructions.
	// +optional
	Progress *HostProgress `json:"plan,omitempty"`

	// restore lists the changes that the hub is holding back because its etcd was restored from a backup. Each change
	// is identified by the name of the Secret that contains the host's instructions. If the remove list contains the
	// Secret, confirming the changes causes the host to be cleaned.
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`

	// agentVersion is the version of the agent.
	// +optional
	AgentVersion string `json:"agentVersion,omitempty"`

	// reportedTo is the leadership term of the manager that received the agent's last report. If it differs from the
	// current term in the manager's Lease, the status might be outdated. It may have been written before the manager was
	// restarted, or it may come from the backup that the hub was restored from.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	ReportedTo string `json:"reportedTo,omitempty"`

	// lastSeen is the time when the agent was disconnected. It is absent while the agent is connected.
	// +optional
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
}

// HostMachine describes a machine, as reported by its agent. The description is informational only. Drover does not
// base any decisions on it, because a machine can report false information.
type HostMachine struct {
	HostProperties `json:",inline"`

	// memory is the total memory, for example "3915Mi".
	// +optional
	Memory string `json:"memory,omitempty"`
}

// HostProperties contains the machine properties that appear in both reports and statuses.
type HostProperties struct {
	// hostname is the hostname of the machine.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// os is the name of the operating system, from /etc/os-release.
	// +optional
	OS string `json:"os,omitempty"`
	// architecture is the processor architecture, for example "amd64".
	// +optional
	Architecture string `json:"architecture,omitempty"`
	// kernel is the kernel release, for example "6.8.0-45-generic".
	// +optional
	Kernel string `json:"kernel,omitempty"`
	// cpus is the number of CPUs.
	// +optional
	CPUs int32 `json:"cpus,omitempty"`
	// addresses lists the IP addresses of the machine's network interfaces. At most 16 are listed.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// roles lists the roles from the join command: etcd, control-plane or worker.
	// +optional
	// +listType=atomic
	Roles []string `json:"roles,omitempty"`
	// labels lists the node labels from the join command. Each label has the format "key=value". At most 32 are listed.
	// +optional
	// +listType=atomic
	Labels []string `json:"labels,omitempty"`
	// taints lists the node taints from the join command. Each taint has the format "key=value:effect". At most 32 are
	// listed.
	// +optional
	// +listType=atomic
	Taints []string `json:"taints,omitempty"`
}

// HostProgress describes the progress of a host's instructions.
type HostProgress struct {
	// version identifies the instructions that this status describes. Its format is "<UID>.<resourceVersion>", using the
	// UID and resourceVersion of the Secret that contains the instructions.
	// +optional
	Version string `json:"version,omitempty"`
	// done is the number of one-time instructions that have succeeded.
	Done int32 `json:"done"`
	// total is the number of one-time instructions.
	Total int32 `json:"total"`
	// instruction is the ID of the instruction that is running or has failed.
	// +optional
	Instruction string `json:"instruction,omitempty"`
	// output contains the last lines of the failed instruction's output, up to 20 lines and 2 KiB. Secrets that appear in
	// the instructions are removed from the output.
	// +optional
	Output string `json:"output,omitempty"`
	// failing lists the names of the probes that are failing. At most 8 are listed.
	// +optional
	// +listType=atomic
	Failing []string `json:"failing,omitempty"`
}

// Suffixes of the Secrets that belong to a Host.
const (
	// HostJoinSecretSuffix is appended to the Host's name to form the name of the Secret with the join token and command.
	HostJoinSecretSuffix = "-host-join"
	// HostAgentSecretSuffix is appended to the Host's name to form the name of the Secret with the identity of the
	// agent. The suffix differs from AgentSecretSuffix so that the Secrets of a Cluster "x-host" and of a Host "x" have
	// different names.
	HostAgentSecretSuffix = "-host-identity"
	// HostInstructionsSecretSuffix is appended to the Host's name to form the name of the Secret with the Host's
	// instructions. This Secret has the type SecretTypeHostInstructions.
	HostInstructionsSecretSuffix = "-host-plan"
)

// SecretTypeHostInstructions is the type of Secrets that hold the instructions of a Host. Writing a Secret of this type
// requires the "update" verb on hosts/instructions, because the instructions run as root on the machine. Kubernetes
// does not allow the type of an existing Secret to be changed.
const SecretTypeHostInstructions = Group + "/host-plan"

// HostInstructionsKey is the key that contains the instructions in a Secret of type SecretTypeHostInstructions.
const HostInstructionsKey = "plan.json"

// Reasons of a Host's conditions, in addition to Pending, AwaitingAgent, TokenExpired, SecretConflict,
// RegistrationFailed, TunnelLost, AwaitingReport, IdentityMismatch and Removing.
const (
	// ReasonHostAvailable means that the host has no instructions and can be claimed.
	ReasonHostAvailable = "Available"
	// ReasonInstalling means that the host is carrying out its instructions.
	ReasonInstalling = "Installing"
	// ReasonWaitingForKubernetes means that a probe has not succeeded yet, or that it is failing again.
	ReasonWaitingForKubernetes = "WaitingForKubernetes"
	// ReasonActive means that all instructions and all probes have succeeded.
	ReasonActive = "Active"
	// ReasonCleaning means that the instructions have been withdrawn and the host is being cleaned.
	ReasonCleaning = "Cleaning"
	// ReasonInstructionFailed means that an instruction failed, or a file could not be written. status.plan contains
	// the last lines of the output. The object remains Stalled until you provide new instructions.
	ReasonInstructionFailed = "InstructionFailed"
	// ReasonInterrupted means that the machine went down while an instruction was running. The instruction is not retried.
	// The object remains Stalled until you give the instruction a new ID. Inspect the machine first.
	ReasonInterrupted = "Interrupted"
	// ReasonInstructionsInvalid means that the Secret "<host>-host-plan" does not contain valid instructions. The
	// message says why. The object becomes Stalled.
	ReasonInstructionsInvalid = "InstructionsInvalid"
)
