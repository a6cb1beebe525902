// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ClusterInstallation installs a cluster with k3s or RKE2 on Hosts in its namespace, and keeps the cluster in the
// desired state. It also installs the agent that connects the cluster to the hub. Anyone who can write a
// ClusterInstallation has root access to the Hosts.
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
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the cluster to install, and the Hosts to install it on.
	Spec ClusterInstallationSpec `json:"spec"`

	// status describes the progress of the installation.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for drover-provisioner, which reconciles installations", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status ClusterInstallationStatus `json:"status,omitzero"`
}

// ClusterInstallationList is a list of ClusterInstallations.
//
// +kubebuilder:object:root=true
type ClusterInstallationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ClusterInstallation `json:"items"`
}

// Distribution is the Kubernetes distribution to install.
//
// +kubebuilder:validation:Enum=k3s;rke2
type Distribution string

// Distributions.
const (
	DistributionK3s  Distribution = "k3s"
	DistributionRKE2 Distribution = "rke2"
)

// ClusterInstallationSpec is the desired state of an installed cluster.
//
// +kubebuilder:validation:XValidation:rule="self.distribution == oldSelf.distribution && self.clusterName == oldSelf.clusterName",message="distribution and clusterName cannot be changed: create another ClusterInstallation"
// +kubebuilder:validation:XValidation:rule="has(self.dataDir) == has(oldSelf.dataDir) && (!has(self.dataDir) || self.dataDir == oldSelf.dataDir)",message="dataDir cannot be changed: create another ClusterInstallation"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.certificateRotation) ? oldSelf.certificateRotation : 0) <= (has(self.certificateRotation) ? self.certificateRotation : 0)",message="certificateRotation can only be raised"
// +kubebuilder:validation:XValidation:rule="(has(oldSelf.encryptionKeyRotation) ? oldSelf.encryptionKeyRotation : 0) <= (has(self.encryptionKeyRotation) ? self.encryptionKeyRotation : 0)",message="encryptionKeyRotation can only be raised"
// +kubebuilder:validation:XValidation:rule="self.pools.exists(p, p.roles.exists(r, r == 'etcd')) && self.pools.exists(p, p.roles.exists(r, r == 'control-plane'))",message="a cluster needs a pool with the role etcd and a pool with the role control-plane; the same pool can have both"
// +kubebuilder:validation:XValidation:rule="self.distribution != 'k3s' || self.version.contains('+k3s')",message="version must be a release of k3s, for example v1.35.3+k3s1"
// +kubebuilder:validation:XValidation:rule="self.distribution != 'rke2' || self.version.contains('+rke2r')",message="version must be a release of rke2, for example v1.35.3+rke2r1"
type ClusterInstallationSpec struct {
	// clusterName is the name of a Cluster in the same namespace. The new cluster joins the hub as this Cluster. Create
	// the Cluster along with the ClusterInstallation.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName"`

	// distribution is the Kubernetes distribution: k3s or rke2. It cannot be changed.
	Distribution Distribution `json:"distribution"`

	// version is the release to install on all hosts, for example "v1.35.3+k3s1". When the version changes, the servers
	// are updated one at a time, and then the workers. The new version must be another patch release of the same
	// Kubernetes minor version, or a release of the next minor version. A running host is never downgraded to an older
	// minor version.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^v[0-9]+[.][0-9]+[.][0-9]+[+](k3s|rke2r)[0-9]+$`
	Version string `json:"version"`

	// config is the distribution's configuration for all hosts, with the same keys as in its config.yaml. Keys that Drover
	// manages are rejected: server, token, agent-token, cluster-init, node-name, data-dir, cluster-reset and the options
	// that assign roles. After a change, the distribution is restarted on one host at a time.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	Config *runtime.RawExtension `json:"config,omitempty"`

	// serverConfig is merged into config on servers, which are the hosts with the role etcd or control-plane. Use this
	// field for options that only servers accept, because a k3s worker fails to start if its configuration contains a
	// server option.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Type=object
	ServerConfig *runtime.RawExtension `json:"serverConfig,omitempty"`

	// registriesSecretName is the name of a Secret in the same namespace whose key registries.yaml contains the
	// configuration of the image registries. The Secret must have the label provision.cluster.drover.dev/use: "true". By
	// default, no registries are configured.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	RegistriesSecretName string `json:"registriesSecretName,omitempty"`

	// dataDir is the data directory of the distribution. It cannot be changed. By default, the distribution uses its own
	// default directory.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[-A-Za-z0-9._/]*$`
	DataDir string `json:"dataDir,omitempty"`

	// installer is the script that installs the distribution on a host. The default is the script from get.k3s.io or
	// get.rke2.io.
	// +optional
	Installer Installer `json:"installer,omitempty,omitzero"`

	// pools define which Hosts belong to the cluster and which roles these Hosts have. A Host belongs to the first pool
	// that selects it.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +listType=map
	// +listMapKey=name
	Pools []HostPool `json:"pools"`

	// maxUnavailable is the maximum number of workers that are changed at the same time. Servers are always changed one
	// at a time. The default is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxUnavailable int32 `json:"maxUnavailable,omitempty"`

	// certificateRotation is a counter. Whenever it is increased, the servers renew the control plane certificates, one
	// server at a time. The default is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	CertificateRotation int64 `json:"certificateRotation,omitempty"`

	// etcd configures etcd snapshots. After a change, the servers with the etcd role are restarted one at a time.
	// +optional
	Etcd Etcd `json:"etcd,omitempty,omitzero"`

	// encryptionKeyRotation is a counter. Whenever it is increased, one server rotates the keys that encrypt Secrets.
	// The servers are then restarted one at a time. With k3s, serverConfig must contain {secrets-encryption: true} when
	// the cluster is installed. RKE2 always encrypts Secrets. encryptionKeyRotation defaults to 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EncryptionKeyRotation int64 `json:"encryptionKeyRotation,omitempty"`
}

// Installer is a script that installs a distribution. It receives the same environment variables as the distribution's
// own installation script.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.path) && has(self.url))",message="set exactly one of path and url"
// +kubebuilder:validation:XValidation:rule="!has(self.sha256) || has(self.url)",message="sha256 requires url"
type Installer struct {
	// path is the absolute path of a script on the machine. Use this field if the machine cannot download a script.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern=`^/[-A-Za-z0-9._/]+$`
	Path string `json:"path,omitempty"`
	// url is the https URL of a script that the host downloads.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[-A-Za-z0-9._~:/%]+$`
	URL string `json:"url,omitempty"`
	// sha256 is the SHA-256 digest of the script at url, in hexadecimal. If the digest differs, the script is not run. By
	// default, the digest is not verified.
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// HostRole is a role of a host in a cluster.
//
// +kubebuilder:validation:Enum=etcd;control-plane;worker
type HostRole string

// Host roles.
const (
	RoleEtcd         HostRole = "etcd"
	RoleControlPlane HostRole = "control-plane"
	RoleWorker       HostRole = "worker"
)

// HostPool is a group of Hosts with the same roles in a cluster.
type HostPool struct {
	// name is the name of the pool. It must be 1 to 63 characters long.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// roles are the roles of the hosts: etcd, control-plane and worker. A host with the etcd or control-plane role is a
	// server. A server without the worker role is tainted, so only pods that tolerate the taint run there.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	Roles []HostRole `json:"roles"`
	// selector selects Hosts by their labels. The empty selector selects all Hosts in the namespace.
	Selector metav1.LabelSelector `json:"selector"`
	// replicas is the number of Hosts in the pool. By default, all selected Hosts belong to the pool.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000
	Replicas *int32 `json:"replicas,omitempty"`
}

// ClusterInstallationStatus is the observed state of an installation.
type ClusterInstallationStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions contains Ready. It also contains Stalled while manual action is required.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// summary is "<ready>/<hosts>", for example "3/4".
	// +optional
	Summary string `json:"summary,omitempty"`

	// hosts is the number of hosts that belong to the cluster or are being removed from it.
	// +optional
	Hosts int32 `json:"hosts,omitempty"`
	// ready is the number of hosts that match the spec.
	// +optional
	Ready int32 `json:"ready,omitempty"`

	// waiting lists up to 16 hosts that are not ready, and says why.
	// +optional
	// +listType=map
	// +listMapKey=host
	// +kubebuilder:validation:MaxItems=16
	Waiting []WaitingHost `json:"waiting,omitempty"`
}

// WaitingHost is a host that is not ready.
type WaitingHost struct {
	// host is the name of the host.
	Host string `json:"host"`
	// message says why the host is not ready.
	Message string `json:"message"`
}

// Names that the provisioner uses.
const (
	// FinalizerHosts prevents the removal of a deleted ClusterInstallation until its Hosts have been cleaned and
	// released.
	FinalizerHosts = Group + "/hosts"
	// FinalizerNode prevents the removal of a deleted Host until its node has been removed from the cluster.
	FinalizerNode = Group + "/node"
	// LabelUse with the value "true" on a Secret allows the installations in the Secret's namespace to use it. Without
	// this restriction, anyone who can write an installation could read every Secret in the namespace.
	LabelUse = Group + "/use"
	// SecretSuffix is appended to the name of an installation to form the name of its Secret. The Secret contains the
	// tokens that hosts use to join, and records decisions that the provisioner must make only once.
	SecretSuffix = "-provision"
)

// Conditions of a ClusterInstallation.
const (
	// ConditionReady is True when all hosts match the spec.
	ConditionReady = "Ready"
	// ConditionStalled is True while manual action is required.
	ConditionStalled = "Stalled"
)

// Reasons of the conditions.
const (
	// ReasonPending means that the provisioner has not reconciled the object yet.
	ReasonPending = "Pending"
	// ReasonSecretConflict means that the Secret "<installation>-provision" or "<cluster>-registration" already exists
	// and does not belong to Drover. The object becomes Stalled.
	ReasonSecretConflict = "SecretConflict"
	// ReasonNotPermitted means that the provisioner is not permitted to access Secrets in the workspace. The object
	// becomes Stalled.
	ReasonNotPermitted = "NotPermitted"
	// ReasonInstalled means that all hosts match the spec.
	ReasonInstalled = "Installed"
	// ReasonHostsWaiting means that some hosts are not ready. status.waiting lists these hosts and says why.
	ReasonHostsWaiting = "HostsWaiting"
	// ReasonTooFewHosts means that a pool has fewer Hosts than its replicas field requires, and that its selector matches
	// no other available Host.
	ReasonTooFewHosts = "TooFewHosts"
	// ReasonClusterMissing means that the Cluster that clusterName refers to does not exist.
	ReasonClusterMissing = "ClusterMissing"
	// ReasonSpecInvalid means that the spec cannot be used. The message says why. The object becomes Stalled.
	ReasonSpecInvalid = "SpecInvalid"
	// ReasonEtcdLost means that no remaining host has the cluster's data. Drover does not create a new, empty cluster in
	// its place. The object becomes Stalled.
	ReasonEtcdLost = "EtcdLost"
	// ReasonEtcdUnselected means that no pool selects any of the hosts that have the cluster's data. Drover makes no
	// changes until a pool does. The object becomes Stalled.
	ReasonEtcdUnselected = "EtcdUnselected"
	// ReasonKeysNotRotated means that the rotation of the encryption keys failed. Increase encryptionKeyRotation to try
	// again. The object becomes Stalled.
	ReasonKeysNotRotated = "KeysNotRotated"
	// ReasonClusterTaken means that the Cluster belongs to another installation or already has an agent. The object
	// becomes Stalled.
	ReasonClusterTaken = "ClusterTaken"
	// ReasonDeletionProtected means that the installation cannot be deleted because its Cluster has deletionProtection.
	// The object becomes Stalled.
	ReasonDeletionProtected = "DeletionProtected"
	// ReasonGivingBack means that the installation is being deleted and its hosts are being cleaned.
	ReasonGivingBack = "GivingBack"
)
