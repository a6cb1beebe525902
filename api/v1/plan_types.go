// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Plan runs a container image on nodes, either one node at a time or several in parallel. It can cordon and drain each
// node before the image runs. Plans upgrade Kubernetes or the operating system, or do any other work that proceeds node
// by node.
//
// A workspace is a namespace on the hub. In a workspace, a Plan applies to the member clusters that clusterName or
// clusterSelector selects, in the order that rollout defines. In the drover-plans namespace of a member, a Plan sets
// neither clusterName nor clusterSelector, and applies to the member itself. The agent runs these Plans whether or not
// the hub is reachable. Anyone who can create a Plan can do anything on the nodes that the Plan selects.
//
// Deleting a Plan ends its Jobs immediately, and uncordons the nodes that the Plan has cordoned. To let nodes in
// progress finish, set paused to true first.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:categories=drover,shortName=dplan
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.upgrade.image`
// +kubebuilder:printcolumn:name="Channel",type=string,JSONPath=`.spec.channel`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.spec.version`
// +kubebuilder:printcolumn:name="Clusters",type=string,JSONPath=`.status.clusters.summary`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes.summary`
// +kubebuilder:printcolumn:name="Complete",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Complete")].reason`
// +kubebuilder:printcolumn:name="Latest",type=string,priority=1,JSONPath=`.status.latestVersion`
// +kubebuilder:printcolumn:name="Applying",type=string,priority=1,JSONPath=`.status.applying[*].node`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes the name of a label",fieldPath=.metadata
type Plan struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name must be at most 63 characters long.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines the work, the nodes, their order and the time window.
	// +required
	Spec PlanSpec `json:"spec"`

	// status describes the progress of the plan.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for Drover", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status PlanStatus `json:"status,omitempty"`
}

// PlanList is a list of Plans.
//
// +kubebuilder:object:root=true
type PlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Plan `json:"items"`
}

// PlanSpec defines the work, the nodes, their order and the time window. Every field can be changed at any time. If an
// upgrade has already started on a node, it finishes before the change takes effect on that node.
//
// +kubebuilder:validation:XValidation:rule="has(self.version) || has(self.channel)",message="set version or channel"
type PlanSpec struct {
	PlanTarget  `json:",inline"`
	PlanPace    `json:",inline"`
	PlanRelease `json:",inline"`
	NodeWork    `json:",inline"`
}

// PlanTarget selects the members that a Plan applies to. A Plan with neither clusterName nor clusterSelector applies to
// its own cluster.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.clusterName) && has(self.clusterSelector))",message="set clusterName or clusterSelector, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.rollout) || has(self.clusterName) || has(self.clusterSelector)",message="rollout requires clusterName or clusterSelector"
type PlanTarget struct {
	// clusterName is the name of a Cluster in the same namespace. It must be 1 to 63 characters long. The Cluster does
	// not have to exist yet.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName,omitempty"`

	// clusterSelector selects Clusters in the same namespace by their labels, including Clusters that are created later.
	// The empty selector {} selects all of them. Anyone who can label a Cluster therefore decides which selectors match
	// it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn require values; Exists and DoesNotExist must not have values"
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// rollout defines the order of the members and how many of them are in progress at the same time. By default,
	// members are processed one at a time, ordered by name, and the first failure stops the rollout.
	// +optional
	// +structType=atomic
	Rollout *Rollout `json:"rollout,omitempty"`
}

// Rollout defines the order of members and how many of them are in progress at the same time.
type Rollout struct {
	// maxConcurrentClusters is the maximum number of members in progress at the same time. The valid range is 1 to
	// 10000. The default is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrentClusters int32 `json:"maxConcurrentClusters,omitempty"`

	// maxFailedClusters is the number of failed members that the rollout tolerates. After more failures, the rollout
	// stops: no work starts on further members, or on further nodes in members that are in progress. The rollout
	// continues when the value is raised, or when a change to the plan lets the failed members try again. The valid
	// range is 0 to 10000. The default is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailedClusters int32 `json:"maxFailedClusters,omitempty"`

	// waves are up to 16 groups of members, to which the plan is applied in order. A member belongs to the first wave
	// that selects it. Members that no wave selects come last, in a wave named "rest". A wave starts when every member
	// in the previous wave is complete or has failed within the limit of maxFailedClusters, at least one of these
	// members is complete, and the soak time has passed. A member that is disconnected, or whose plans are held by the
	// label plans.cluster.drover.dev/hold, does not delay a wave. The plan starts in that member when the member
	// reconnects or the label is removed. By default there is one wave with all members.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Waves []Wave `json:"waves,omitempty"`
}

// Wave is a group of members that can be in progress at the same time.
type Wave struct {
	// name is the name of the wave in the status. It must be 1 to 63 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`

	// clusterSelector selects the members that belong to this wave. By default it selects all of the plan's members
	// that no earlier wave selects. If a selector is invalid, the plan becomes Stalled with the reason InvalidSelector.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// soak is the time that must pass between the completion of this wave and the start of the next one, for example
	// "1h". The default is 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	Soak *metav1.Duration `json:"soak,omitempty"`
}

// PlanPace defines which nodes in a member the plan applies to, how many of them can be in progress at the same time,
// and when work can start. If these fields change, the plan does not run again on nodes that it has completed.
type PlanPace struct {
	// nodeSelector selects nodes by their labels, including nodes that join later. A node with the label
	// "plan.cluster.drover.dev/<plan>: disabled" is excluded. By default all nodes are selected.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn require values; Exists and DoesNotExist must not have values"
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// concurrency is the maximum number of nodes in a member that are in progress at the same time. It is either a
	// number of at least 1, or a percentage of the selected nodes, from "1%" to "100%". A percentage is rounded down,
	// but never below one node. The default is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 100000 : self.matches('^([1-9][0-9]?|100)%$')",message="concurrency must be a number from 1, or a percentage from 1% to 100%"
	Concurrency *intstr.IntOrString `json:"concurrency,omitempty"`

	// exclusive makes the plan mutually exclusive with other exclusive plans: while one of these plans has a node in
	// progress in a member, no other exclusive plan starts work on a node in that member. A node is never in progress
	// for two plans at the same time, whether or not they are exclusive. The default is false.
	// +optional
	Exclusive bool `json:"exclusive,omitempty"`

	// paused prevents the plan from starting work on further members or nodes, and from making further attempts. Nodes
	// whose upgrade has not started are released and uncordoned. An upgrade that is already running finishes. paused
	// defaults to false.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// window is the part of the week in which work on nodes and further attempts can start. Work that has started
	// continues after the window has closed. By default, work can start at any time. If a member also has a window of
	// its own, both windows must be open; see docs/spec/plan.md.
	// +optional
	// +structType=atomic
	Window *TimeWindow `json:"window,omitempty"`

	// jobActiveDeadlineSecs is the time limit of an attempt's Job, in seconds. When it is exceeded, the Job is
	// terminated and the attempt fails. 0 means no limit. The default is 900.
	// +optional
	// +kubebuilder:default=900
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	JobActiveDeadlineSecs *int64 `json:"jobActiveDeadlineSecs,omitempty"`

	// retries defines how many times, and after which delays, a failed attempt is retried. By default, it is retried
	// twice, after 30s and after 1m.
	// +optional
	// +structType=atomic
	Retries *PlanRetries `json:"retries,omitempty"`

	// postCompleteDelay is how long a node continues to count toward concurrency after the plan has completed on it,
	// for example "2m". The node is uncordoned immediately. The default is 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	PostCompleteDelay *metav1.Duration `json:"postCompleteDelay,omitempty"`
}

// PlanRetries defines how often a failed attempt is retried. Between attempts, the node is uncordoned if the plan
// cordoned it. A node without remaining attempts has failed, and no work starts on other nodes in the same member until
// the plan changes.
type PlanRetries struct {
	// limit is the number of attempts after the first one. The valid range is 0 to 20. The default is 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	Limit *int32 `json:"limit,omitempty"`

	// backoff is the delay before the second attempt. The delay doubles with each further attempt, up to one hour.
	// backoff defaults to 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	Backoff *metav1.Duration `json:"backoff,omitempty"`
}

// TimeWindow is a recurring period of the week. A window whose end time is earlier than its start time ends on the next
// day.
//
// +kubebuilder:validation:XValidation:rule="!has(self.startTime) || !has(self.endTime) || self.startTime != self.endTime",message="startTime and endTime must differ; for whole days leave both out"
type TimeWindow struct {
	// days are the days on which the window opens, written as Sun to Sat, Su to Sa, Sunday to Saturday or 0 to 6. Case
	// does not matter. By default the window opens every day.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Day `json:"days,omitempty"`

	// startTime is the time when the window opens, in the format "HH:MM". The default is "00:00".
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",message="must be a time from 00:00 to 23:59, as HH:MM"
	StartTime string `json:"startTime,omitempty"`

	// endTime is the time when the window closes, in the format "HH:MM". The default is "24:00".
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$')",message="must be a time from 00:00 to 24:00, as HH:MM"
	EndTime string `json:"endTime,omitempty"`

	// timeZone is the time zone of startTime and endTime. It is a name from the IANA time zone database, for example
	// "Europe/Berlin". "Local" is rejected because its meaning differs from machine to machine. A window that contains
	// a clock change is an hour shorter or longer on that day. timeZone defaults to "UTC".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	// +kubebuilder:validation:XValidation:rule="timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="timeZone must be a name from the IANA time zone database, such as Europe/Berlin or UTC"
	// +kubebuilder:validation:XValidation:rule="!self.lowerAscii().matches('^(local|localtime|posixrules|factory|posix|right)(/|$)')",message="timeZone must be a name from the IANA time zone database, such as Europe/Berlin or UTC: names such as Local depend on the machine"
	TimeZone string `json:"timeZone,omitempty"`
}

// Day is a day of the week.
// +kubebuilder:validation:XValidation:rule="self.matches('^(?i:[0-6]|su|sun|sunday|mo|mon|monday|tu|tue|tuesday|we|wed|wednesday|th|thu|thursday|fr|fri|friday|sa|sat|saturday)$')",message="must be a day of the week: Sun to Sat, Su to Sa, Sunday to Saturday or 0 to 6"
// +kubebuilder:validation:MaxLength=9
type Day string

// PlanRelease defines the version to install.
type PlanRelease struct {
	// version is the version to install, for example "v1.36.3+k3s1". Images without a tag use this version as their
	// tag. In the tag, "+" is replaced with "-".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`
	Version string `json:"version,omitempty"`

	// channel is an http or https URL. It must redirect to a URL whose last path element is the version, and the status
	// code must be 302, 303, 307 or 308. channel must be at most 1024 characters long. The channel is queried every 15
	// minutes, unless version is set. After any other response, the last known version stays in effect. The hub queries
	// the channels of Plans on the hub.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https?://[^\\s/]+.*$')`,message="must be an http or https URL, such as https://update.k3s.io/v1-release/channels/stable"
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Channel string `json:"channel,omitempty"`
}
