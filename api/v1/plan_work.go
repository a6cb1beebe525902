// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeWork defines the work to do on each node. If any of these fields, the version, or the content of a referenced
// Secret changes, the plan runs again on nodes that have completed it.
//
// +kubebuilder:validation:XValidation:rule="!has(self.secrets) || self.secrets.all(s, !has(s.path) || !s.path.contains('..'))",message="a Secret's path must not contain .."
type NodeWork struct {
	// prepare is a container that runs on the node before the node is cordoned, for example to wait for another plan. If
	// it runs longer than jobActiveDeadlineSecs, it is started again. A restart does not count as an attempt.
	// +optional
	Prepare *PlanContainer `json:"prepare,omitempty"`

	// cordon marks the node as unschedulable while work on it is in progress. The node is uncordoned afterward, even
	// after a failure, unless it was already cordoned. If drain is set, the node is always cordoned. cordon defaults to
	// false.
	// +optional
	Cordon bool `json:"cordon,omitempty"`

	// drain evicts the node's pods before the upgrade container runs. Drover's own pods and the pods of plans are not
	// evicted. By default, the node is not drained.
	// +optional
	// +structType=atomic
	Drain *Drain `json:"drain,omitempty"`

	// upgrade is the container that does the work on the node. The host's root directory is mounted at /host. By default,
	// the container is privileged.
	// +required
	Upgrade PlanContainer `json:"upgrade"`

	// secrets lists Secrets in the plan's namespace to mount into the prepare and upgrade containers. On the hub, each
	// Secret must have the label plans.cluster.drover.dev/use: "true". The Secrets are copied to the members. At most
	// 16 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Secrets []PlanSecret `json:"secrets,omitempty"`

	// serviceAccountName is the name of the ServiceAccount that the pods run as. The ServiceAccount must exist in the
	// drover-plans namespace. The default is "drover-plan", which can read Plans and Nodes.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// tolerations lists up to 16 additional tolerations for the pods. The pods always tolerate the taint of cordoned
	// nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// imagePullSecrets lists Secrets in the plan's namespace that are used to pull images. On the hub, each Secret must
	// have the label plans.cluster.drover.dev/use: "true". The Secrets are copied to the members. At most 8 are
	// allowed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=8
	ImagePullSecrets []PullSecret `json:"imagePullSecrets,omitempty"`

	// priorityClassName is the name of the pods' PriorityClass. The PriorityClass must exist in the member. By default,
	// the pods get the member's default priority.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// postCompleteLabels are labels to add to each node that has completed the plan. In a value, $(LATEST_VERSION) is
	// replaced with status.latestVersion, and $(LATEST_HASH) with status.latestHash. Keys in the kubernetes.io, k8s.io and
	// drover.dev domains are rejected. At most 16 are allowed.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.matches('(^|[.])(kubernetes[.]io|k8s[.]io|drover[.]dev)/'))",message="labels in kubernetes.io, k8s.io and drover.dev cannot be set"
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))",message="keys must be valid label keys"
	// +mapType=atomic
	PostCompleteLabels map[string]LabelTemplate `json:"postCompleteLabels,omitempty"`
}

// LabelTemplate is a label value in which $(LATEST_VERSION) is replaced with status.latestVersion, and $(LATEST_HASH)
// with status.latestHash.
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9_.-]|\$\(LATEST_VERSION\)|\$\(LATEST_HASH\))*$`
type LabelTemplate string

// PullSecret names a Secret for pulling images.
type PullSecret struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`
}

// PlanContainer is a container of a plan's Job.
type PlanContainer struct {
	// image is the container image to run. If it has neither a tag nor a digest, the plan's version is used as the tag.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Image string `json:"image"`

	// command replaces the entry point of the image. At most 64 items are allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Command []string `json:"command,omitempty"`

	// args lists the arguments of the command. At most 64 are allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Args []string `json:"args,omitempty"`

	// envs lists additional environment variables for the container. Names that begin with SYSTEM_UPGRADE_ are reserved
	// for Drover. At most 64 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !e.name.startsWith('SYSTEM_UPGRADE_'))",message="names that begin with SYSTEM_UPGRADE_ are reserved for Drover"
	Envs []corev1.EnvVar `json:"envs,omitempty"`

	// envFrom adds environment variables from Secrets and ConfigMaps in the drover-plans namespace of the member. These
	// Secrets and ConfigMaps are not copied from the hub. To copy a Secret, list it in secrets. At most 16 are allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// volumes lists additional host paths to mount into the container. At most 16 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(v, !(v.name in ['host-root', 'pod-info']))",message="the volume names host-root and pod-info are reserved for Drover"
	Volumes []HostVolume `json:"volumes,omitempty"`

	// securityContext is the security context of the container. By default, the upgrade container is privileged and has
	// the CAP_SYS_BOOT capability, and the prepare container has no security context.
	// +optional
	// +structType=atomic
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`
}

// HostVolume mounts a host path into a container.
type HostVolume struct {
	// name is the name of the volume in the pod.
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
	// source is the absolute path on the host.
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

// PlanSecret is a Secret that is mounted into the containers of a plan.
type PlanSecret struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	Name string `json:"name"`

	// path is the path at which the Secret is mounted. A relative path is relative to /run/system-upgrade/secrets. The
	// default is the name of the Secret.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Path string `json:"path,omitempty"`

	// ignoreUpdates prevents the plan from running again when the Secret's content changes. The default is false.
	// +optional
	IgnoreUpdates bool `json:"ignoreUpdates,omitempty"`

	// defaultMode contains the permission bits of the mounted files, from 0 to 511 (0777). The default is 420 (0644).
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=511
	DefaultMode *int32 `json:"defaultMode,omitempty"`
}

// Drain configures how a node is drained. Its fields correspond to the options of "kubectl drain".
type Drain struct {
	// timeout is the time limit for draining a node, for example "10m". A drain that takes longer fails. "0s" means no
	// limit. The default is 15m.
	// +optional
	// +kubebuilder:default="15m"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// gracePeriod is the time that each pod gets to terminate, in seconds. The default is the pod's own grace period.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	GracePeriod *int32 `json:"gracePeriod,omitempty"`

	// ignoreDaemonSets leaves the pods of DaemonSets running. If this field is false, a node with such pods cannot be
	// drained. The default is true.
	// +optional
	// +kubebuilder:default=true
	IgnoreDaemonSets *bool `json:"ignoreDaemonSets,omitempty"`

	// deleteEmptydirData allows the eviction of pods that use emptyDir volumes. The data in these volumes is lost. If this
	// field is false, a node with such pods cannot be drained. The default is true.
	// +optional
	// +kubebuilder:default=true
	DeleteEmptydirData *bool `json:"deleteEmptydirData,omitempty"`

	// force allows the eviction of pods that no controller manages. These pods are not recreated. If this field is false,
	// a node with such pods cannot be drained. The default is false.
	// +optional
	Force bool `json:"force,omitempty"`

	// disableEviction deletes pods instead of evicting them. This bypasses PodDisruptionBudgets. The default is false.
	// +optional
	DisableEviction bool `json:"disableEviction,omitempty"`

	// skipWaitForDeleteTimeout is the age of a pod's deletion, in seconds, beyond which the drain no longer waits for the
	// pod. With 0, the default, the drain waits for all pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	SkipWaitForDeleteTimeout int32 `json:"skipWaitForDeleteTimeout,omitempty"`

	// podSelector selects the pods to evict. By default, all pods are evicted.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}
