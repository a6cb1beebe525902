// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// Labels that system-upgrade-controller uses. Upgrade images and dashboards use these labels to find Jobs and pods.
const (
	labelController = "upgrade.cattle.io/controller"
	labelExclusive  = "upgrade.cattle.io/exclusive"
	labelNode       = "upgrade.cattle.io/node"
	labelPlan       = "upgrade.cattle.io/plan"
	labelVersion    = "upgrade.cattle.io/version"
	labelHashPrefix = "plan.upgrade.cattle.io/"

	controllerName = v1.ManagedBy
)

// Drover's own labels on Jobs and pods.
const (
	labelAttempt = v1.Group + "/attempt"
	labelKind    = v1.Group + "/job"
	// annotationNode contains the name of the node, because the name may be too long for a label.
	annotationNode = v1.Group + "/node"
)

const (
	maxLabel = 63 // the maximum number of characters in a label value
	// secretsPath is the directory under which Secrets with a relative path are mounted.
	secretsPath = "/run/system-upgrade/secrets"
)

// work is the input for a Job.
type work struct {
	plan    *v1.Plan
	version string // in the form used in image tags: "-" replaces "+"
	images  string // registry for images that do not specify one
	host    string // hostname label of the node
	job     rollout.Job
}

// prepare reports whether the Job is for the prepare container.
func (w work) prepare() bool { return w.job.Kind == rollout.Prepare }

// jobName returns the name of the Job. For the upgrade container and a node name without dots, the name is the same as
// in system-upgrade-controller.
func (w work) jobName() string {
	verb := "apply"
	if w.prepare() {
		verb = "prepare"
	}
	return safeName(verb, w.plan.Name, "on", w.job.Node, "with", w.job.Hash)
}

// safeName joins words with "-". It also replaces dots with "-", because a name that is truncated after a dot would be
// invalid. The result is at most 63 characters long and ends with a digest of the full text.
func safeName(words ...string) string {
	whole := strings.Join(words, "-")
	shown := strings.ReplaceAll(whole, ".", "-")
	if len(whole) <= maxLabel && shown == whole {
		return whole
	}
	sum := sha256.Sum256([]byte(whole))
	digest := hex.EncodeToString(sum[:])
	if len(shown) <= 57 {
		return shown + "-" + digest[:5]
	}
	if shown[56] != '-' {
		return shown[:57] + "-" + digest[:5]
	}
	return shown[:56] + "-" + digest[:6]
}

// labelValue returns a valid label value for s. A tag from a channel may start or end with characters that are not
// allowed at the start or end of a label value.
func labelValue(s string) string {
	sum := sha256.Sum224([]byte(s))
	for _, value := range []string{s, safeName(s)} {
		if len(validation.IsValidLabelValue(value)) == 0 {
			return value
		}
	}
	return hex.EncodeToString(sum[:])
}

// newJob returns the Job for a step. It is like the Job that system-upgrade-controller creates for the same plan,
// but has no init containers for drain and prepare and no retries, because the planner handles these.
func newJob(w work) *batchv1.Job {
	one, none := int32(1), int32(0)
	labels := map[string]string{
		labelController:               controllerName,
		labelExclusive:                strconv.FormatBool(w.plan.Spec.Exclusive),
		labelNode:                     labelValue(w.job.Node),
		labelPlan:                     w.plan.Name,
		labelVersion:                  labelValue(w.version),
		labelHashPrefix + w.plan.Name: w.job.Hash,
		v1.LabelManagedBy:             controllerName,
		labelAttempt:                  strconv.FormatInt(int64(w.job.Attempt), 10),
		labelKind:                     string(w.job.Kind),
	}
	job := &batchv1.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Name: w.jobName(), Namespace: w.plan.Namespace, Labels: labels,
			Annotations: map[string]string{annotationNode: w.job.Node},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1.GroupVersion.String(), Kind: "Plan", Name: w.plan.Name, UID: w.plan.UID, Controller: new(true),
			}},
		},
		Spec: batchv1.JobSpec{
			Completions: &one, Parallelism: &one, BackoffLimit: &none,
			// A disruption is not a failure of the image, so the Job creates another pod.
			PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action: batchv1.PodFailurePolicyActionIgnore,
				OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{
					{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue},
				},
			}}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(w)},
		},
	}
	if limit := w.plan.Spec.JobActiveDeadlineSecs; limit == nil {
		job.Spec.ActiveDeadlineSeconds = new(int64(defaultDeadline))
	} else if *limit > 0 {
		job.Spec.ActiveDeadlineSeconds = new(*limit)
	}
	return job
}

// defaultDeadline is the default deadline of a Job, in seconds. The schema of Plans contains the same default.
const defaultDeadline = 900

func podSpec(w work) corev1.PodSpec {
	spec := &w.plan.Spec
	container := spec.Upgrade
	if w.prepare() {
		container = *spec.Prepare
	}
	pod := corev1.PodSpec{
		HostIPC: true, HostPID: true, HostNetwork: true,
		DNSPolicy:          corev1.DNSClusterFirstWithHostNet,
		ServiceAccountName: cmp.Or(spec.ServiceAccountName, accountName),
		PriorityClassName:  spec.PriorityClassName,
		RestartPolicy:      corev1.RestartPolicyNever,
		Affinity:           affinity(w),
		Tolerations:        rollout.Tolerations(&spec.NodeWork),
		Volumes:            podVolumes(spec.Secrets, container.Volumes),
		Containers:         []corev1.Container{newContainer(w, container)},
	}
	for _, secret := range spec.ImagePullSecrets {
		pod.ImagePullSecrets = append(pod.ImagePullSecrets, corev1.LocalObjectReference{Name: secret.Name})
	}
	return pod
}

// affinity binds the pod to the node, and keeps it away from other pods of the plan or of exclusive plans. Images and
// dashboards read the hostname label, but the pod is bound by the node's name. Otherwise, a kubelet could set another
// node's label on its own Node, and would get the other node's pods along with their Secrets.
func affinity(w work) *corev1.Affinity {
	apart := metav1.LabelSelectorRequirement{Key: labelPlan, Operator: metav1.LabelSelectorOpIn,
		Values: []string{w.plan.Name}}
	if w.plan.Spec.Exclusive {
		apart = metav1.LabelSelectorRequirement{Key: labelExclusive, Operator: metav1.LabelSelectorOpIn,
			Values: []string{"true"}}
	}
	return &corev1.Affinity{
		NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{w.host}}},
				MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn,
					Values: []string{w.job.Node}}},
			}},
		}},
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{apart}},
			TopologyKey:   corev1.LabelHostname,
		}}},
	}
}
