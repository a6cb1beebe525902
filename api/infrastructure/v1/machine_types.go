// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// DroverMachine is the infrastructure of a Machine of Cluster API: one Host of the workspace, which is taken while the
// Machine exists, and cleaned and given back after.
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

	// hostSelector selects the Hosts of the workspace that the machine may be, by their labels. Default: any that is
	// available.
	// +optional
	HostSelector *metav1.LabelSelector `json:"hostSelector,omitempty"`

	// antiAffinity keeps machines of one control plane, or of one MachineDeployment, apart. Default: they share nothing
	// but the workspace.
	// +optional
	AntiAffinity *AntiAffinity `json:"antiAffinity,omitempty"`

	// inPlaceUpdate lets Cluster API update the machine in place, instead of replacing it. Default: it replaces machines.
	// +optional
	InPlaceUpdate *InPlaceUpdate `json:"inPlaceUpdate,omitempty"`

	// tasks are one-time work for the machine after its bootstrap, in this order. Drover's own controllers write and
	// remove them; a template has none. Each runs once, whatever becomes of the hub or the machine meanwhile; what shall
	// run again is another task. To remove a task does not end it. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	Tasks []MachineTask `json:"tasks,omitempty"`
}

// InPlaceUpdate says how a machine is updated in place.
type InPlaceUpdate struct {
	// installer puts kubeadm, kubelet and kubectl of a version on the machine.
	// +required
	Installer Installer `json:"installer"`
}

// Installer is a script. It is run as root with the version in the variable KUBERNETES_VERSION, for example v1.36.3, up
// to five times until it succeeds. It starts nothing.
//
// +kubebuilder:validation:XValidation:rule="has(self.path) != has(self.url)",message="give path or url"
// +kubebuilder:validation:XValidation:rule="!has(self.sha256) || has(self.url)",message="sha256 is for url"
type Installer struct {
	// path of a script that is on the machines, for those that reach no other server.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[-A-Za-z0-9._/]+$`
	Path string `json:"path,omitempty"`
	// url of a script that the host fetches, https only.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[-A-Za-z0-9._~:/%]+$`
	URL string `json:"url,omitempty"`
	// sha256 of the script at url, in hexadecimal. Another script is not run.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// MachineTask is one-time work for a machine.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a task does not change: add another one with an id of its own"
// +kubebuilder:validation:XValidation:rule="(self.action == 'Update') == has(self.update)",message="update is for the action Update, which takes it"
// +kubebuilder:validation:XValidation:rule="self.action.startsWith('Etcd') == has(self.etcd)",message="etcd is for the actions of etcd, which take it"
// +kubebuilder:validation:XValidation:rule="self.action != 'EtcdUpload' || has(self.etcd) && has(self.etcd.s3)",message="EtcdUpload takes etcd.s3"
type MachineTask struct {
	// id of the task, which no other task of this machine has or ever had.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	ID string `json:"id"`

	// action is what is done. Update: the machine is updated in place.
	// +required
	Action TaskAction `json:"action"`

	// update says to what the action Update updates the machine.
	// +optional
	Update *UpdateTask `json:"update,omitempty"`

	// etcd says what an action of etcd takes.
	// +optional
	Etcd *EtcdTask `json:"etcd,omitempty"`
}

// TaskAction is what a task does.
//
// +kubebuilder:validation:Enum=Update;EtcdSnapshot;EtcdUpload;EtcdPrepare;EtcdStop;EtcdResume;EtcdReplace;EtcdJoin
type TaskAction string

// Actions.
const (
	// TaskUpdate updates the machine in place.
	TaskUpdate TaskAction = "Update"
	// TaskEtcdSnapshot makes a snapshot of etcd, and then removes the files of earlier ones.
	TaskEtcdSnapshot TaskAction = "EtcdSnapshot"
	// TaskEtcdUpload copies a snapshot to an S3-compatible store.
	TaskEtcdUpload TaskAction = "EtcdUpload"
	// TaskEtcdPrepare makes the data of a new etcd of a snapshot, beside those that are in use.
	TaskEtcdPrepare TaskAction = "EtcdPrepare"
	// TaskEtcdStop stops the control plane with its etcd.
	TaskEtcdStop TaskAction = "EtcdStop"
	// TaskEtcdResume starts it again as it was.
	TaskEtcdResume TaskAction = "EtcdResume"
	// TaskEtcdReplace begins etcd anew with the data that were prepared.
	TaskEtcdReplace TaskAction = "EtcdReplace"
	// TaskEtcdJoin joins the etcd that was begun anew, without data of its own.
	TaskEtcdJoin TaskAction = "EtcdJoin"
)

// EtcdTask says what an action of etcd takes.
type EtcdTask struct {
	// of is the UID of the EtcdSnapshot or EtcdRestore that it is a part of.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9-]+$`
	Of string `json:"of"`
	// file is the name of a snapshot's file, for EtcdSnapshot, EtcdUpload and EtcdPrepare.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	File string `json:"file,omitempty"`
	// endpoints are URLs at which the etcd may be reached that is joined, for EtcdJoin.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^https://[0-9a-f.:\[\]]+$`
	Endpoints []string `json:"endpoints,omitempty"`
	// remove are the names of files of earlier snapshots, for EtcdSnapshot.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	Remove []string `json:"remove,omitempty"`
	// s3 is the object in a bucket that EtcdUpload writes, and that EtcdPrepare reads if the host has not the file.
	// +optional
	S3 *EtcdTaskS3 `json:"s3,omitempty"`
}

// EtcdTaskS3 is an object in a bucket, and the Secret by which it is reached.
type EtcdTaskS3 struct {
	provisionv1.EtcdS3Object `json:",inline"`
	// credentialsSecretName names a Secret of the same namespace, as credentialsSecretName of a DroverCluster does.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`
}

// UpdateTask says to what a machine is updated in place.
type UpdateTask struct {
	// version of Kubernetes, for example v1.36.3.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+([-+][A-Za-z0-9.+-]+)?$`
	Version string `json:"version"`

	// attempt is what the annotation infrastructure.cluster.drover.dev/update-attempt of the machine had, cut to 63
	// characters.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Attempt string `json:"attempt,omitempty"`

	// patches is the directory on the machine with the patches that its KubeadmConfig names. Without them kubeadm would
	// write the manifests and the kubelet's configuration as they are for any machine.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Patches string `json:"patches,omitempty"`

	// ignorePreflightErrors are those that the KubeadmConfig has kubeadm ignore.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=512
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
}

// AntiAffinity says what machines of one group must not share.
type AntiAffinity struct {
	// topologyKey is a label of Hosts. No two machines of the group are on Hosts with the same value; a Host without the
	// label takes none.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
}

// DroverMachineStatus is what is known of a DroverMachine.
type DroverMachineStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

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

	// tasks are how far those of spec.tasks are.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	Tasks []MachineTaskStatus `json:"tasks,omitempty"`

	// conditions are Ready, TasksSucceeded while there are tasks, and Paused while Cluster API asks for it.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MachineTaskStatus is how far a task is.
type MachineTaskStatus struct {
	// id of the task.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	ID string `json:"id"`

	// state of the task. Succeeded and Failed are final.
	// +required
	State TaskState `json:"state"`

	// message says why the task failed, with the last lines that it wrote, or what it waits for.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// TaskState is how far a task is.
//
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed
type TaskState string

// States of tasks.
const (
	// TaskPending: the Host was not given the task yet, or carries out what was before.
	TaskPending TaskState = "Pending"
	// TaskRunning: the Host carries it out.
	TaskRunning TaskState = "Running"
	// TaskSucceeded: it is done.
	TaskSucceeded TaskState = "Succeeded"
	// TaskFailed: it failed, or was interrupted so that it is unknown how far it is. It is not repeated.
	TaskFailed TaskState = "Failed"
)

// Ended reports whether a state is final.
func (s TaskState) Ended() bool { return s == TaskSucceeded || s == TaskFailed }

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
	// template of a machine. Machines that were made of it do not follow a change: let Cluster API roll out another
	// template.
	// +required
	Template DroverMachineTemplateResource `json:"template"`
}

// DroverMachineTemplateResource is what a machine is made of.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec.tasks) && !has(self.spec.providerID)",message="tasks and providerID are for machines, not for their template"
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
