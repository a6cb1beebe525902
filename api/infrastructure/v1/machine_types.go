// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// DroverMachine represents the infrastructure of a Cluster API Machine. It claims one available Host in its namespace.
// When the Machine is deleted, the Host is cleaned and becomes available again.
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

	// spec defines which Hosts the machine can claim and which tasks it carries out.
	// +optional
	Spec DroverMachineSpec `json:"spec,omitzero"`

	// status is the observed state of the DroverMachine. Cluster API reads it.
	// +optional
	Status DroverMachineStatus `json:"status,omitzero"`
}

// DroverMachineList is a list of DroverMachines.
//
// +kubebuilder:object:root=true
type DroverMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DroverMachine `json:"items"`
}

// DroverMachineSpec is the desired state of a DroverMachine.
type DroverMachineSpec struct {
	// providerID identifies the machine's Host, in the format "drover://<workspace>/<host>". The provisioner sets it
	// when the machine claims a Host.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`

	// hostSelector is a label selector for the Hosts that the machine can claim. Only Hosts in the same namespace are
	// considered. By default, the machine can claim any available Host.
	// +optional
	HostSelector *metav1.LabelSelector `json:"hostSelector,omitempty"`

	// antiAffinity keeps the machines of a control plane, or of a MachineDeployment, on different hardware. By default,
	// the machines can share hardware.
	// +optional
	AntiAffinity *AntiAffinity `json:"antiAffinity,omitempty"`

	// inPlaceUpdate allows Cluster API to update the machine in place. By default, Cluster API replaces the machine
	// instead. This field is experimental, because it relies on Cluster API hooks that are alpha.
	// +optional
	InPlaceUpdate *InPlaceUpdate `json:"inPlaceUpdate,omitempty"`

	// tasks lists up to 16 one-time tasks that the machine carries out, in order, after it has been bootstrapped. Drover's
	// controllers add and remove tasks, so templates must not contain any. Each task runs at most once, even if the hub or
	// the machine restarts. To repeat a task, add another one with a new id. Removing a running task does not stop it.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	Tasks []MachineTask `json:"tasks,omitempty"`
}

// InPlaceUpdate configures how a machine is updated in place.
type InPlaceUpdate struct {
	// installer is the script that installs the new version of kubeadm, kubelet and kubectl on the machine.
	// +required
	Installer Installer `json:"installer"`
}

// Installer is a script that runs as root on the machine. The environment variable KUBERNETES_VERSION contains the
// version to install, for example v1.36.3. If the script fails, it is run again, up to five times in total. The script
// must not start any services.
//
// +kubebuilder:validation:XValidation:rule="has(self.path) != has(self.url)",message="set exactly one of path and url"
// +kubebuilder:validation:XValidation:rule="!has(self.sha256) || has(self.url)",message="sha256 requires url"
type Installer struct {
	// path is the absolute path of a script on the machine. Use it if the machine cannot download the script.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[-A-Za-z0-9._/]+$`
	Path string `json:"path,omitempty"`
	// url is the https URL of a script that the host downloads.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[-A-Za-z0-9._~:/%]+$`
	URL string `json:"url,omitempty"`
	// sha256 is the expected SHA-256 digest of the script at url, in hexadecimal. If the digest does not match, the script
	// is not run. By default, the digest is not verified.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// MachineTask is a one-time task for a machine.
//
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a task cannot be changed: add another task with a new id"
// +kubebuilder:validation:XValidation:rule="(self.action == 'Update') == has(self.update)",message="set update if, and only if, the action is Update"
// +kubebuilder:validation:XValidation:rule="self.action.startsWith('Etcd') == has(self.etcd)",message="set etcd if, and only if, the action begins with Etcd"
// +kubebuilder:validation:XValidation:rule="self.action != 'EtcdUpload' || has(self.etcd) && has(self.etcd.s3)",message="the EtcdUpload action requires etcd.s3"
type MachineTask struct {
	// id identifies the task. It must be unique among all current and past tasks of this machine, and must be 1 to 58
	// characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`
	ID string `json:"id"`

	// action is the type of the task. Update updates the machine in place. The actions whose names start with Etcd are
	// steps of an EtcdSnapshot or EtcdRestore.
	// +required
	Action TaskAction `json:"action"`

	// update contains the parameters of the Update action.
	// +optional
	Update *UpdateTask `json:"update,omitempty"`

	// etcd contains the parameters of the actions whose names start with Etcd.
	// +optional
	Etcd *EtcdTask `json:"etcd,omitempty"`
}

// TaskAction is the type of a task.
//
// +kubebuilder:validation:Enum=Update;EtcdSnapshot;EtcdUpload;EtcdPrepare;EtcdStop;EtcdResume;EtcdReplace;EtcdJoin
type TaskAction string

// Task actions.
const (
	// TaskUpdate is the action that updates the machine in place.
	TaskUpdate TaskAction = "Update"
	// TaskEtcdSnapshot is the action that takes a snapshot of etcd and then removes the files of earlier snapshots.
	TaskEtcdSnapshot TaskAction = "EtcdSnapshot"
	// TaskEtcdUpload is the action that copies a snapshot to an S3-compatible store.
	TaskEtcdUpload TaskAction = "EtcdUpload"
	// TaskEtcdPrepare is the action that creates a new etcd data directory from a snapshot. It does not change the current
	// data directory.
	TaskEtcdPrepare TaskAction = "EtcdPrepare"
	// TaskEtcdStop is the action that stops the control plane and its etcd.
	TaskEtcdStop TaskAction = "EtcdStop"
	// TaskEtcdResume is the action that starts the control plane again after TaskEtcdStop. It does not change the control
	// plane's data.
	TaskEtcdResume TaskAction = "EtcdResume"
	// TaskEtcdReplace is the action that starts the new etcd with the data directory that TaskEtcdPrepare created.
	TaskEtcdReplace TaskAction = "EtcdReplace"
	// TaskEtcdJoin is the action that starts an etcd member with an empty data directory, and joins it to the new etcd.
	TaskEtcdJoin TaskAction = "EtcdJoin"
)

// EtcdTask contains the parameters of the actions whose names start with Etcd.
type EtcdTask struct {
	// of is the UID of the EtcdSnapshot or EtcdRestore that the task belongs to.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[a-z0-9-]+$`
	Of string `json:"of"`
	// file is the file name of the snapshot. The actions EtcdSnapshot, EtcdUpload and EtcdPrepare use it.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	File string `json:"file,omitempty"`
	// endpoints lists the URLs of the etcd cluster to join. The action EtcdJoin uses them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:Pattern=`^https://[0-9a-f.:\[\]]+$`
	Endpoints []string `json:"endpoints,omitempty"`
	// remove lists the file names of earlier snapshots to remove. The action EtcdSnapshot uses it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][-A-Za-z0-9._]*$`
	Remove []string `json:"remove,omitempty"`
	// s3 is the location of the snapshot in a bucket. EtcdUpload writes to it. EtcdPrepare reads from it if the file is
	// not on the host.
	// +optional
	S3 *EtcdTaskS3 `json:"s3,omitempty"`
}

// EtcdTaskS3 identifies an object in a bucket and the Secret with the credentials to access it.
type EtcdTaskS3 struct {
	provisionv1.EtcdS3Object `json:",inline"`
	// credentialsSecretName is the name of a Secret in the same namespace. The Secret must have the keys and the label
	// that spec.etcd.s3.credentialsSecretName of a DroverCluster requires.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	CredentialsSecretName string `json:"credentialsSecretName,omitempty"`
}

// UpdateTask contains the parameters of an in-place update.
type UpdateTask struct {
	// version is the target Kubernetes version, for example v1.36.3.
	// +required
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+\.[0-9]+\.[0-9]+([-+][A-Za-z0-9.+-]+)?$`
	Version string `json:"version"`

	// attempt is the value of the machine's annotation infrastructure.cluster.drover.dev/update-attempt, truncated to 63
	// characters.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Attempt string `json:"attempt,omitempty"`

	// patches is the directory on the machine that contains the patches from the KubeadmConfig. kubeadm applies them so
	// that the manifests and the kubelet configuration are the same as after the bootstrap.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Patches string `json:"patches,omitempty"`

	// ignorePreflightErrors lists the preflight errors that kubeadm ignores. They come from the KubeadmConfig.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +kubebuilder:validation:items:MaxLength=512
	IgnorePreflightErrors []string `json:"ignorePreflightErrors,omitempty"`
}

// AntiAffinity keeps the machines of a control plane, or of a MachineDeployment, on different hardware.
type AntiAffinity struct {
	// topologyKey is the key of a label on Hosts. Two machines of the same control plane or MachineDeployment never
	// claim Hosts with the same value of this label. Hosts without the label are never claimed.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey"`
}

// DroverMachineStatus is the observed state of a DroverMachine.
type DroverMachineStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// initialization reports whether the infrastructure has been provisioned. Cluster API waits until provisioning is
	// complete.
	// +optional
	Initialization Initialization `json:"initialization,omitempty,omitzero"`

	// hostName is the name of the Host that the machine has claimed.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	HostName string `json:"hostName,omitempty"`

	// addresses lists the hostname and the IP addresses of the Host. At most 32 are listed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Addresses []MachineAddress `json:"addresses,omitempty"`

	// failureDomain is the failure domain of the Host. It is the value of the label that spec.failureDomainLabel of the
	// DroverCluster specifies.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`

	// tasks reports the progress of each task in spec.tasks.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=16
	Tasks []MachineTaskStatus `json:"tasks,omitempty"`

	// conditions contains Ready. It also contains TasksSucceeded if spec.tasks is not empty, and Paused while Cluster
	// API has paused the machine.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MachineTaskStatus describes the progress of a task.
type MachineTaskStatus struct {
	// id is the id of the task.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=58
	ID string `json:"id"`

	// state is the state of the task. Succeeded and Failed are final.
	// +required
	State TaskState `json:"state"`

	// message says why the task is not finished yet. If the task failed, message contains the last lines of its output.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message,omitempty"`
}

// TaskState is the state of a task.
//
// +kubebuilder:validation:Enum=Pending;Running;Succeeded;Failed
type TaskState string

// Task states.
const (
	// TaskPending means that the Host has not received the task yet, or is carrying out earlier tasks.
	TaskPending TaskState = "Pending"
	// TaskRunning means that the Host is carrying out the task.
	TaskRunning TaskState = "Running"
	// TaskSucceeded means that the task has finished successfully.
	TaskSucceeded TaskState = "Succeeded"
	// TaskFailed means that the task failed or was interrupted. The task is not retried.
	TaskFailed TaskState = "Failed"
)

// Ended reports whether a state is final.
func (s TaskState) Ended() bool { return s == TaskSucceeded || s == TaskFailed }

// MachineAddress is an address of a machine, as the Cluster API contract defines it.
type MachineAddress struct {
	// type is the type of the address: Hostname or InternalIP.
	// +required
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is a hostname or an IP address.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// DroverMachineTemplate is a template from which Cluster API creates DroverMachines.
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

	// spec contains the template for DroverMachines.
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

// DroverMachineTemplateSpec contains the template for DroverMachines.
type DroverMachineTemplateSpec struct {
	// template describes the DroverMachines to create. Changes do not affect existing machines. To replace existing
	// machines, change the template reference of the control plane or MachineDeployment. Cluster API then rolls out the
	// new template.
	// +required
	Template DroverMachineTemplateResource `json:"template"`
}

// DroverMachineTemplateResource describes the DroverMachines to create from a template.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec.tasks) && !has(self.spec.providerID)",message="tasks and providerID cannot be set in a template"
type DroverMachineTemplateResource struct {
	// metadata is the metadata of the DroverMachines.
	// +optional
	ObjectMeta ObjectMeta `json:"metadata,omitempty,omitzero"`
	// spec is the spec of the DroverMachines.
	// +required
	Spec DroverMachineSpec `json:"spec"`
}
