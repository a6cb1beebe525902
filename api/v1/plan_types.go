// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Plan runs an image on nodes, one after the other or a few at once, with cordon and drain around it: an upgrade of
// Kubernetes or of the operating system, or anything else that is done node by node.
//
// In a workspace of the hub a Plan is for the members that clusterName or clusterSelector name, in the order that
// rollout says. In a member, in the namespace drover-plans, a Plan has neither and is for the member itself: the agent
// runs it, hub or no hub. Whoever may create a Plan can do anything on the nodes that it selects.
//
// Deleting a Plan ends its Jobs at once and uncordons what it cordoned. To let nodes that have begun finish, set paused
// first.
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
	// metadata is the standard object's metadata. The name is the user's choice, at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is done, on which nodes, in which order and when.
	// +required
	Spec PlanSpec `json:"spec"`

	// status says how far the plan is.
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

// PlanSpec says what is done, on which nodes, in which order and when. Every field can be changed at any time. Nodes
// whose upgrade has begun finish with what they began.
//
// +kubebuilder:validation:XValidation:rule="has(self.version) || has(self.channel)",message="set version or channel"
type PlanSpec struct {
	PlanTarget  `json:",inline"`
	PlanPace    `json:",inline"`
	PlanRelease `json:",inline"`
	NodeWork    `json:",inline"`
}

// PlanTarget says which members a Plan is for. With neither clusterName nor clusterSelector it is for the cluster that
// it lives in.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.clusterName) && has(self.clusterSelector))",message="set clusterName or clusterSelector, not both"
// +kubebuilder:validation:XValidation:rule="!has(self.rollout) || has(self.clusterName) || has(self.clusterSelector)",message="rollout needs clusterName or clusterSelector"
type PlanTarget struct {
	// clusterName names one Cluster in the same namespace. It need not exist yet. 1 to 63 characters.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`
	ClusterName string `json:"clusterName,omitempty"`

	// clusterSelector selects the Clusters of the same namespace by their labels, those that come later included.
	// The empty selector {} selects all of them. Whoever may label a Cluster decides what it is selected for.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values; Exists and DoesNotExist take none"
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// rollout says in which order the members are done, and how many at once. Default: one after the other by name, and
	// the first that fails stops the rest.
	// +optional
	// +structType=atomic
	Rollout *Rollout `json:"rollout,omitempty"`
}

// Rollout says in which order members are done.
type Rollout struct {
	// maxConcurrentClusters is how many members may be at work at once. 1 to 10000, default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrentClusters int32 `json:"maxConcurrentClusters,omitempty"`

	// maxFailedClusters is how many members may fail before the rollout stops: after more failures, no member starts and
	// those at work begin no further node. It continues when this is raised, or when a change of the plan lets the failed
	// members try again. 0 to 10000, default 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailedClusters int32 `json:"maxFailedClusters,omitempty"`

	// waves are done one after the other. A member belongs to the first wave that selects it; those that no wave selects
	// come last, as a wave named "rest". A wave begins when the members of the one before are complete, or failed within
	// maxFailedClusters, at least one of them is complete, and its soak is over. Members that are disconnected or hold
	// plans off do not delay a wave; they begin when they are back. At most 16. Default: one wave of all.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Waves []Wave `json:"waves,omitempty"`
}

// Wave is a group of members that may be at work at the same time.
type Wave struct {
	// name of the wave, as it is shown. 1 to 63 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`

	// clusterSelector selects the wave's members among those of the plan. Default: all that no earlier wave selects.
	// One that cannot be used makes the plan Stalled with InvalidSelector.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// soak is how long the wave must have been complete before the next one begins, for example "1h". Default: 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is no duration"
	Soak *metav1.Duration `json:"soak,omitempty"`
}

// PlanPace says which nodes of a member are done, how many at once and when. Changing it does not run the plan again on
// complete nodes.
type PlanPace struct {
	// nodeSelector selects nodes by their labels, those that come later included. A node with the label
	// "plan.cluster.drover.dev/<plan>: disabled" is left out. Default: all nodes.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn need values; Exists and DoesNotExist take none"
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// concurrency is how many nodes of one member may be at work at once: a number from 1, or a percentage of the selected
	// nodes from "1%" to "100%", rounded down and at least one. Default 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 100000 : self.matches('^([1-9][0-9]?|100)%$')",message="concurrency must be a number from 1, or a percentage from 1% to 100%"
	Concurrency *intstr.IntOrString `json:"concurrency,omitempty"`

	// exclusive plans exclude each other: while a node of a member is at work for one of them, no other one begins a node
	// in that member. A node is never at work for two plans at once, exclusive or not. Default: false.
	// +optional
	Exclusive bool `json:"exclusive,omitempty"`

	// paused begins nothing new: no member, no node, no further attempt. Nodes that have not begun their upgrade are
	// released and uncordoned; an upgrade that runs finishes. Default: false.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// window is when nodes and further attempts may begin. What has begun finishes, also after the window has closed.
	// Default: at any time. A member may have a window of its own beside it, see docs/spec/plan.md; then both must be
	// open.
	// +optional
	// +structType=atomic
	Window *TimeWindow `json:"window,omitempty"`

	// jobActiveDeadlineSecs is the time in seconds after which an attempt's Job is ended and has failed. 0 means no limit.
	// Default 900.
	// +optional
	// +kubebuilder:default=900
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	JobActiveDeadlineSecs *int64 `json:"jobActiveDeadlineSecs,omitempty"`

	// retries says how often an attempt that failed is made again. Default: twice, after 30s and 1m.
	// +optional
	// +structType=atomic
	Retries *PlanRetries `json:"retries,omitempty"`

	// postCompleteDelay is how long a complete node still counts towards concurrency, for example "2m". The node is
	// uncordoned at once. Default: 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is no duration"
	PostCompleteDelay *metav1.Duration `json:"postCompleteDelay,omitempty"`
}

// PlanRetries says how often an attempt is made again. Between attempts the node is uncordoned, if the plan cordoned
// it. A node that has no attempt left has failed: no further node of its member begins until the plan changes.
type PlanRetries struct {
	// limit is the number of attempts after the first. 0 to 20, default 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	Limit *int32 `json:"limit,omitempty"`

	// backoff is the wait before the second attempt. It doubles with each, up to one hour. Default 30s.
	// +optional
	// +kubebuilder:default="30s"
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="is no duration"
	Backoff *metav1.Duration `json:"backoff,omitempty"`
}

// TimeWindow is a part of the week. One that ends before it starts ends on the next day; days are those on which it
// starts.
//
// +kubebuilder:validation:XValidation:rule="!has(self.startTime) || !has(self.endTime) || self.startTime != self.endTime",message="startTime and endTime must differ; for whole days leave both out"
type TimeWindow struct {
	// days on which the window starts: Sun to Sat, Su to Sa, Sunday to Saturday or 0 to 6, in upper or lower case.
	// Default: every day.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	Days []Day `json:"days,omitempty"`

	// startTime is when it opens, "HH:MM". Default "00:00".
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^([01][0-9]|2[0-3]):[0-5][0-9]$')",message="must be a time from 00:00 to 23:59, as HH:MM"
	StartTime string `json:"startTime,omitempty"`

	// endTime is when it closes, "HH:MM", that minute no longer included. Default "24:00".
	// +optional
	// +kubebuilder:validation:MaxLength=5
	// +kubebuilder:validation:XValidation:rule="self.matches('^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$')",message="must be a time from 00:00 to 24:00, as HH:MM"
	EndTime string `json:"endTime,omitempty"`

	// timeZone is a name of the IANA time zone database, for example "Europe/Berlin", and not "Local", which differs
	// from machine to machine. Times are those of its clocks: where they are put forward or back, the window is an hour
	// shorter or longer if that hour is in it. Default "UTC".
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9_+/-]*$`
	// +kubebuilder:validation:XValidation:rule="timestamp('2000-01-01T00:00:00Z').getHours(self) >= 0",message="timeZone is not in the time zone database"
	// +kubebuilder:validation:XValidation:rule="!self.lowerAscii().matches('^(local|localtime|posixrules|factory|posix|right)(/|$)')",message="timeZone must be in the time zone database, such as Europe/Berlin or UTC: the clock of a machine differs from the next one's"
	TimeZone string `json:"timeZone,omitempty"`
}

// Day is a day of the week.
// +kubebuilder:validation:XValidation:rule="self.matches('^(?i:[0-6]|su|sun|sunday|mo|mon|monday|tu|tue|tuesday|we|wed|wednesday|th|thu|thursday|fr|fri|friday|sa|sat|saturday)$')",message="must be a day of the week: Sun to Sat, Su to Sa, Sunday to Saturday or 0 to 6"
// +kubebuilder:validation:MaxLength=9
type Day string

// PlanRelease says which version the nodes get.
type PlanRelease struct {
	// version to install, for example "v1.36.3+k3s1". It is the tag of images that have none, with "+" replaced by "-".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`
	Version string `json:"version,omitempty"`

	// channel is an https or http URL that answers 302, 303, 307 or 308 to a place whose last path element is the version.
	// It is asked every 15 minutes, and not while version is set. After any other response the version that was found last
	// stays. At most 1024 characters. For members of a hub the hub asks.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https?://[^\\s/]+.*$')`,message="must be an http or https URL, such as https://update.k3s.io/v1-release/channels/stable"
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Channel string `json:"channel,omitempty"`
}
