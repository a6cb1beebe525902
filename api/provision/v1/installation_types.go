// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ClusterInstallation makes a cluster of Hosts of its namespace with k3s or RKE2, and keeps it as it says. The agent of
// the Cluster that it names is installed in it. Who may write one is root on the Hosts.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=cinst
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterName`
// +kubebuilder:printcolumn:name="Distribution",type=string,JSONPath=`.spec.distribution`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Hosts",type=string,JSONPath=`.status.summary`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes a label value",fieldPath=.metadata
type ClusterInstallation struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name has at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is installed, and where.
	Spec ClusterInstallationSpec `json:"spec"`

	// status says how far it is, and what each host that is not ready waits for.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for drover-provisioner, which reconciles installations", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ClusterInstallationStatus `json:"status,omitempty"`
}

// ClusterInstallationList is a list of ClusterInstallations.
//
// +kubebuilder:object:root=true
type ClusterInstallationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterInstallation `json:"items"`
}

// Distribution is what makes a cluster of machines.
//
// +kubebuilder:validation:Enum=k3s;rke2
type Distribution string

// Distributions.
const (
	DistributionK3s  Distribution = "k3s"
	DistributionRKE2 Distribution = "rke2"
)

// ClusterInstallationSpec is what the user wants of a cluster.
//
// +kubebuilder:validation:XValidation:rule="self.distribution == oldSelf.distribution && self.clusterName == oldSelf.clusterName",message="distribution and clusterName cannot be changed: make another installation"
// +kubebuilder:validation:XValidation:rule="has(self.dataDir) == has(oldSelf.dataDir) && (!has(self.dataDir) || self.dataDir == oldSelf.dataDir)",message="dataDir cannot be changed: make another installation"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.certificateRotation) ? oldSelf.certificateRotation : 0) <= (has(self.certificateRotation) ? self.certificateRotation : 0)",message="certificateRotation can only be raised"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.encryptionKeyRotation) ? oldSelf.encryptionKeyRotation : 0) <= (has(self.encryptionKeyRotation) ? self.encryptionKeyRotation : 0)",message="encryptionKeyRotation can only be raised"
// +kubebuilder:validation:XValidation:rule="self.pools.exists(p, p.roles.exists(r, r == 'etcd')) && self.pools.exists(p, p.roles.exists(r, r == 'control-plane'))",message="a cluster needs a pool with the role etcd and one with the role control-plane; a pool may have both"
// +kubebuilder:validation:XValidation:rule="self.distribution == 'k3s' ? self.version.contains('+k3s') : self.version.contains('+rke2')",message="version is one of the distribution's releases, for example v1.35.3+k3s1 or v1.35.3+rke2r1"
type ClusterInstallationSpec struct {
	// clusterName names the Cluster, in the same namespace, whose agent is installed in the cluster. Make it beside this
	// object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName"`

	// distribution is k3s or rke2.
	Distribution Distribution `json:"distribution"`

	// version is the release that all hosts have, for example "v1.35.3+k3s1". A change updates the servers one at a time,
	// then the workers: to a patch release, or to the next minor version of Kubernetes. No host that works gets a minor
	// version that is older than its own.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+[.][0-9]+[.][0-9]+[+](k3s|rke2r)[0-9]+$`
	Version string `json:"version"`

	// config is the distribution's own configuration for all hosts, as its config.yaml has it. What Drover decides cannot
	// be in it: server, token, agent-token, cluster-init, node-name, data-dir, cluster-reset and the options that divide
	// the roles. A change restarts the hosts one after another.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Config *runtime.RawExtension `json:"config,omitempty"`

	// serverConfig is added to config on servers, those with the role etcd or control-plane: a worker of k3s does not
	// start with options of servers.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	ServerConfig *runtime.RawExtension `json:"serverConfig,omitempty"`

	// registriesSecretName names a Secret of the same namespace with the key registries.yaml, and with the label
	// provision.cluster.drover.dev/use: "true".
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RegistriesSecretName string `json:"registriesSecretName,omitempty"`

	// dataDir is where the distribution keeps its data. Default: its own.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[-A-Za-z0-9._/]*$`
	DataDir string `json:"dataDir,omitempty"`

	// installer says what installs the distribution on a host. Default: its own script, from get.k3s.io or get.rke2.io.
	// +optional
	Installer Installer `json:"installer,omitempty,omitzero"`

	// pools say which Hosts are part of the cluster, and what they are in it. A Host is of the first pool that selects it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Pools []HostPool `json:"pools"`

	// maxUnavailable is how many workers may be changed at the same time. Servers are changed one at a time. Default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// certificateRotation has the servers renew the certificates of the control plane, one server at a time, whenever it
	// is raised. Default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CertificateRotation int64 `json:"certificateRotation,omitempty"`

	// etcd says where and when snapshots are made. A change restarts the servers with etcd, one after another.
	// +optional
	Etcd Etcd `json:"etcd,omitempty,omitzero"`

	// encryptionKeyRotation has one server rotate the keys that encrypt Secrets, whenever it is raised, and then starts
	// the servers again, one at a time. Default 0. It takes serverConfig {secrets-encryption: true} from the beginning
	// with k3s; RKE2 always encrypts.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EncryptionKeyRotation int64 `json:"encryptionKeyRotation,omitempty"`
}

// Installer is a script that installs a distribution. It is run with the variables that the distribution's own takes.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.path) && has(self.url))",message="give path or url"
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

// HostRole is what a host is in a cluster.
//
// +kubebuilder:validation:Enum=etcd;control-plane;worker
type HostRole string

// Roles of hosts.
const (
	RoleEtcd         HostRole = "etcd"
	RoleControlPlane HostRole = "control-plane"
	RoleWorker       HostRole = "worker"
)

// HostPool are Hosts that are the same in a cluster.
type HostPool struct {
	// name of the pool.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// roles of the hosts. A host with the role etcd or control-plane is a server. A server without the role worker is
	// tainted, so that only what tolerates that runs on it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Roles []HostRole `json:"roles"`
	// selector of Hosts by their labels. An empty one selects all.
	Selector metav1.LabelSelector `json:"selector"`
	// replicas is how many Hosts the pool has. Default: all that it selects.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
}

// ClusterInstallationStatus is what is known of an installation.
type ClusterInstallationStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready, and Stalled while a person must act.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// summary says how many hosts are ready, of how many: "3/4".
	// +optional
	Summary string `json:"summary,omitempty"`

	// hosts that are part of the cluster, or are leaving it.
	// +optional
	Hosts int32 `json:"hosts,omitempty"`
	// ready are those that are as spec says.
	// +optional
	Ready int32 `json:"ready,omitempty"`

	// waiting says what the hosts wait for that are not ready, the first 16.
	// +optional
	// +listType=map
	// +listMapKey=host
	// +kubebuilder:validation:MaxItems=16
	Waiting []WaitingHost `json:"waiting,omitempty"`
}

// WaitingHost is a host that is not ready.
type WaitingHost struct {
	// host is its name.
	Host string `json:"host"`
	// message says what it waits for.
	Message string `json:"message"`
}

// Names that the manager gives.
const (
	// FinalizerHosts keeps a ClusterInstallation until its Hosts were cleaned and given back.
	FinalizerHosts = Group + "/hosts"
	// FinalizerNode keeps a Host that is deleted until its node was removed from the cluster.
	FinalizerNode = Group + "/node"
	// LabelUse, "true", lets an installation of the namespace use a Secret: who writes installations need not be allowed
	// to read all Secrets.
	LabelUse = Group + "/use"
	// SecretSuffix follows the name of an installation in that of the Secret with the tokens by which hosts join, and what
	// was decided of the cluster once.
	SecretSuffix = "-provision"
)

// Conditions of a ClusterInstallation.
const (
	// ConditionReady: all hosts are as spec says.
	ConditionReady = "Ready"
	// ConditionStalled: a person must act.
	ConditionStalled = "Stalled"
)

// Reasons of the conditions.
const (
	// ReasonPending: the manager has not looked at it.
	ReasonPending = "Pending"
	// ReasonSecretConflict: the Secret "<installation>-provision" or "<cluster>-registration" is there and is not
	// Drover's. Stalled.
	ReasonSecretConflict = "SecretConflict"
	// ReasonInstalled: all hosts are as spec says.
	ReasonInstalled = "Installed"
	// ReasonHostsWaiting: status.waiting says which hosts are not ready, and why.
	ReasonHostsWaiting = "HostsWaiting"
	// ReasonTooFewHosts: a pool has fewer Hosts than replicas, and no free one is selected.
	ReasonTooFewHosts = "TooFewHosts"
	// ReasonClusterMissing: there is no Cluster of that name.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonSpecInvalid: the message says what of spec cannot be installed. Stalled.
	ReasonSpecInvalid = "SpecInvalid"
	// ReasonEtcdLost: no host has the cluster's data any more. Nothing is installed anew in its place. Stalled.
	ReasonEtcdLost = "EtcdLost"
	// ReasonEtcdUnselected: hosts have the cluster's data, and no pool selects one of them. Nothing is changed. Stalled.
	ReasonEtcdUnselected = "EtcdUnselected"
	// ReasonKeysNotRotated: the encryption keys could not be rotated. Raise encryptionKeyRotation to try it again.
	// Stalled.
	ReasonKeysNotRotated = "KeysNotRotated"
	// ReasonClusterTaken: the Cluster is of another installation, or has an agent already. Stalled.
	ReasonClusterTaken = "ClusterTaken"
	// ReasonDeletionProtected: the Cluster has deletionProtection, and deleting the installation would destroy it.
	// Stalled.
	ReasonDeletionProtected = "DeletionProtected"
	// ReasonGivingBack: the installation is being deleted, and its hosts are cleaned.
	ReasonGivingBack = "GivingBack"
)
