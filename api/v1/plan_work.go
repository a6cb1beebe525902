// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeWork is what is done on each node. The plan runs again on complete nodes when any of it changes, or the version,
// or the content of a Secret that it names.
//
// +kubebuilder:validation:XValidation:rule="!has(self.secrets) || self.secrets.all(s, !has(s.path) || !s.path.contains('..'))",message="the path of a Secret must not contain .."
type NodeWork struct {
	// prepare, where set, runs on the node before it is cordoned, for example to wait for another plan. If it exceeds
	// jobActiveDeadlineSecs, it is started again, and the attempt does not count.
	// +optional
	Prepare *PlanContainer `json:"prepare,omitempty"`

	// cordon: the node takes no new pods while it is at work. It is uncordoned afterwards, also after a failure, unless it
	// was cordoned before. With drain it is always cordoned. Default: false.
	// +optional
	Cordon bool `json:"cordon,omitempty"`

	// drain, where set, evicts the node's pods before the upgrade, never Drover's own and those of plans. Default: they
	// stay.
	// +optional
	// +structType=atomic
	Drain *Drain `json:"drain,omitempty"`

	// upgrade runs on the node with the host's root at /host. It runs privileged unless its securityContext says
	// otherwise.
	// +required
	Upgrade PlanContainer `json:"upgrade"`

	// secrets of the plan's namespace that are mounted into prepare and upgrade. On the hub each needs the label
	// "plans.cluster.drover.dev/use: "true"", and is copied to the members. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Secrets []PlanSecret `json:"secrets,omitempty"`

	// serviceAccountName of the pods, in the namespace drover-plans. Default "drover-plan", which may read Plans and
	// Nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// tolerations of the pods, beside that of cordoned nodes. At most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// imagePullSecrets of the plan's namespace. On the hub they are copied like secrets. At most 8.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []PullSecret `json:"imagePullSecrets,omitempty"`

	// priorityClassName of the pods. The PriorityClass must exist in the member. Default: the member's.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// postCompleteLabels are put on each node that is complete. $(LATEST_VERSION) and $(LATEST_HASH) in a value are
	// replaced. Keys of kubernetes.io, k8s.io and drover.dev are refused. At most 16.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.matches('(^|[.])(kubernetes[.]io|k8s[.]io|drover[.]dev)/'))",message="labels of kubernetes.io, k8s.io and drover.dev cannot be set"
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="a key is no label"
	// +mapType=atomic
	PostCompleteLabels map[string]LabelTemplate `json:"postCompleteLabels,omitempty"`
}

// LabelTemplate is the value of a label, in which $(LATEST_VERSION) and $(LATEST_HASH) are replaced.
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_.-]|\$\(LATEST_VERSION\)|\$\(LATEST_HASH\))*$`
type LabelTemplate string

// PullSecret names a Secret with which images are pulled.
type PullSecret struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`
}

// PlanContainer is a container of a plan's Job.
type PlanContainer struct {
	// image to run. Without tag and digest, the plan's version is the tag.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Image string `json:"image"`

	// command in place of the image's entry point. At most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Command []string `json:"command,omitempty"`

	// args for the command. At most 64.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Args []string `json:"args,omitempty"`

	// envs are more environment. Names that begin with SYSTEM_UPGRADE_ are Drover's. At most 64.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !e.name.startsWith('SYSTEM_UPGRADE_'))",message="names that begin with SYSTEM_UPGRADE_ are set by Drover"
	Envs []corev1.EnvVar `json:"envs,omitempty"`

	// envFrom takes environment from Secrets and ConfigMaps of the namespace drover-plans in the member. At most 16. Those
	// of the hub are not copied: name Secrets in secrets for that.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// volumes are more paths of the host. At most 16.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(v, !(v.name in ['host-root', 'pod-info']))",message="host-root and pod-info are Drover's own volumes"
	Volumes []HostVolume `json:"volumes,omitempty"`

	// securityContext of the container. Default: privileged, with CAP_SYS_BOOT, for upgrade, and none for prepare.
	// +optional
	// +structType=atomic
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`
}

// HostVolume is a path of the host in a container.
type HostVolume struct {
	// name of the volume in the pod.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// source is the path on the host, from its root.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Source string `json:"source"`
	// destination is the path in the container.
	// +required
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Destination string `json:"destination"`
}

// PlanSecret is a Secret that is mounted into a plan's containers.
type PlanSecret struct {
	// name of the Secret.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// path where it is mounted. One that does not begin with "/" is below /run/system-upgrade/secrets. Default: the name.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Path string `json:"path,omitempty"`

	// ignoreUpdates: a change of the Secret's content does not run the plan again on complete nodes. Default: false.
	// +optional
	IgnoreUpdates bool `json:"ignoreUpdates,omitempty"`

	// defaultMode of the files, 0 to 511 (0777). Default 420 (0644).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=511
	DefaultMode *int32 `json:"defaultMode,omitempty"`
}

// Drain has the options of "kubectl drain".
type Drain struct {
	// timeout of the whole drain, for example "10m"; one that takes longer has failed. "0s" is none. Default 15m.
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is no duration"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// gracePeriod in seconds that each pod has to end. Default: the pod's own.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	GracePeriod *int32 `json:"gracePeriod,omitempty"`

	// ignoreDaemonSets leaves pods of DaemonSets; without it a node that has some cannot be drained. Default: true.
	// +optional
	// +kubebuilder:default=true
	IgnoreDaemonSets *bool `json:"ignoreDaemonSets,omitempty"`

	// deleteEmptydirData also evicts pods whose emptyDir volumes are lost by it; without it, a node that has some cannot
	// be drained. Default: true.
	// +optional
	// +kubebuilder:default=true
	DeleteEmptydirData *bool `json:"deleteEmptydirData,omitempty"`

	// force also deletes pods that no controller recreates. Without it a node that has some cannot be drained. Default:
	// false.
	// +optional
	Force bool `json:"force,omitempty"`

	// disableEviction deletes pods, so that PodDisruptionBudgets do not hold. Default: false.
	// +optional
	DisableEviction bool `json:"disableEviction,omitempty"`

	// skipWaitForDeleteTimeout: pods that have been deleted for longer than this many seconds are not waited for. 0, the
	// default, waits.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	SkipWaitForDeleteTimeout int32 `json:"skipWaitForDeleteTimeout,omitempty"`

	// podSelector selects the pods to evict. Default: all.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}
