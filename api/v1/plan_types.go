// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Plan runs a container image on nodes, either one node at a time or several in parallel. It can cordon and drain each
// node before the image runs. Use a Plan to upgrade Kubernetes or the operating system, or for any other work that is
// done node by node.
//
// A Plan in a workspace, which is a namespace on the hub, applies to the member clusters that clusterName or
// clusterSelector selects, in the order that rollout defines. A Plan in the drover-plans namespace of a member sets
// neither of these fields and applies to the member itself. The agent runs such a Plan even while the hub is
// unreachable. Anyone who can create a Plan has full control of the nodes that the Plan selects.
//
// Deleting a Plan terminates its Jobs immediately and uncordons the nodes that the Plan has cordoned. To let running
// upgrades finish, set paused to true first.
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

	// spec defines the work to do, the members and nodes to do it on, and when to do it.
	// +required
	Spec PlanSpec `json:"spec"`

	// status describes the progress of the plan.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for Drover", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status PlanStatus `json:"status,omitzero"`
}

// PlanList is a list of Plans.
//
// +kubebuilder:object:root=true
type PlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Plan `json:"items"`
}

// PlanSpec defines the work to do, the members and nodes to do it on, and when to do it. Every field can be changed at
// any time. If an upgrade is already running on a node, it finishes before the change takes effect on that node.
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
	// Anyone who can change a Cluster's labels can make a selector match it. The empty selector {} selects all Clusters in
	// the namespace.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn require values; Exists and DoesNotExist must not have values"
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// rollout defines the order in which the plan is applied to the members, and how many members it is applied to at the
	// same time. By default, the plan is applied to one member at a time, in order of name, and the first failure stops
	// the rollout.
	// +optional
	// +structType=atomic
	Rollout *Rollout `json:"rollout,omitempty"`

	// approvals lists the approvals of waves that require approval. Adding or changing an entry requires the "approve"
	// verb on the Plan. "kubectl drover plan approve" adds entries. Anyone who can update the Plan can remove them. At
	// most 32 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=wave
	// +kubebuilder:validation:MaxItems=32
	Approvals []Approval `json:"approvals,omitempty"`

	// overrides lists the upgrade checks whose findings are ignored. Adding or changing an entry on the hub requires the
	// "override" verb on the Plan. "kubectl drover plan override" adds entries. Anyone who can update the Plan can remove
	// them. At most 32 are allowed.
	// +optional
	// +listType=map
	// +listMapKey=check
	// +kubebuilder:validation:MaxItems=32
	Overrides []Override `json:"overrides,omitempty"`
}

// Rollout defines the order in which a Plan is applied to members, and how many members it is applied to at the same
// time.
type Rollout struct {
	// maxConcurrentClusters is the maximum number of members that the plan is applied to at the same time. The valid range
	// is 1 to 10000. The default is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxConcurrentClusters int32 `json:"maxConcurrentClusters,omitempty"`

	// maxFailedClusters is the number of failed members that the rollout tolerates. If more members fail, the rollout
	// stops: no work starts in other members, or on other nodes of members in which the plan has started. The rollout
	// continues when this value is raised, or when the plan is changed and the failed members try again. The valid range
	// is 0 to 10000. The default is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxFailedClusters int32 `json:"maxFailedClusters,omitempty"`

	// waves lists up to 16 groups of members. The plan is applied to the groups in order. A member belongs to the first
	// wave that selects it. Members that no wave selects belong to a final wave named "rest". The next wave starts once
	// every member of the current wave has completed the plan or has failed, and the soak time has passed since the last
	// member completed it. At least one member must have completed it, and no more than maxFailedClusters members may have
	// failed. A wave does not wait for disconnected members, or for members whose plans are on hold because of the label
	// plans.cluster.drover.dev/hold. In such a member, the plan starts when the member reconnects or the label is removed.
	// By default, all members are in one wave.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Waves []Wave `json:"waves,omitempty"`
}

// Wave is a group of members in a rollout.
type Wave struct {
	// name is the name of the wave in the status. It must be 1 to 63 characters long.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Name string `json:"name"`

	// clusterSelector selects the members in this wave by the labels of their Clusters. By default, the wave contains all
	// of the plan's members that no earlier wave selects. If a selector is invalid, the plan becomes Stalled with the
	// reason InvalidSelector.
	// +optional
	ClusterSelector *metav1.LabelSelector `json:"clusterSelector,omitempty"`

	// soak is the time to wait between the completion of this wave and the start of the next one, for example "1h". The
	// default is 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	Soak *metav1.Duration `json:"soak,omitempty"`

	// approval determines whether a user must approve the wave before it starts. With Required, no work starts in this
	// wave or any later wave until spec.approvals contains an approval of the current revision in status.waves. The
	// default is None.
	// +optional
	Approval ApprovalPolicy `json:"approval,omitempty"`
}

// PlanPace defines which nodes in a member the plan applies to, how many of them it can be applied to at the same time,
// and when work can start. Changing these fields does not make the plan run again on nodes that have completed it.
type PlanPace struct {
	// nodeSelector selects nodes by their labels, including nodes that join later. A node with the label
	// "plan.cluster.drover.dev/<plan>: disabled" is excluded. By default, all nodes are selected.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist'])",message="operator must be In, NotIn, Exists or DoesNotExist"
	// +kubebuilder:validation:XValidation:rule="!has(self.matchExpressions) || self.matchExpressions.all(e, (e.operator in ['In', 'NotIn']) == (has(e.values) && size(e.values) > 0))",message="In and NotIn require values; Exists and DoesNotExist must not have values"
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// concurrency is the maximum number of nodes in a member on which the plan is in progress at the same time. It is
	// either a number of at least 1, or a percentage of the selected nodes, from "1%" to "100%". A percentage is rounded
	// down, but never below one node. The default is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 && self <= 100000 : self.matches('^([1-9][0-9]?|100)%$')",message="concurrency must be a number of at least 1, or a percentage from 1% to 100%"
	Concurrency *intstr.IntOrString `json:"concurrency,omitempty"`

	// exclusive prevents the plan from running in a member at the same time as other exclusive plans. While one exclusive
	// plan is working on a node, the others do not start work on any node in that member. Two plans never work on the same
	// node at the same time, whether or not they are exclusive. The default is false.
	// +optional
	Exclusive bool `json:"exclusive,omitempty"`

	// paused prevents the plan from starting work on more members or nodes, and from retrying failed attempts. Nodes on
	// which the upgrade container has not started yet are released and uncordoned. Upgrades that are already running
	// finish. paused defaults to false.
	// +optional
	Paused bool `json:"paused,omitempty"`

	// gates defines the conditions under which the plan starts in a member. By default, upgrades of Kubernetes start only
	// if they are safe.
	// +optional
	// +structType=atomic
	Gates *PlanGates `json:"gates,omitempty"`

	// window is the part of the week during which work on nodes can start and failed attempts can be retried. Work that
	// has already started continues after the window closes. If a member also has a window of its own, both windows must
	// be open; see docs/spec/plan.md. By default, work can start at any time.
	// +optional
	// +structType=atomic
	Window *TimeWindow `json:"window,omitempty"`

	// jobActiveDeadlineSecs is the time limit for the Job of each attempt, in seconds. A Job that exceeds the limit is
	// terminated, and the attempt fails. 0 means no limit. The default is 900.
	// +optional
	// +kubebuilder:default=900
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	JobActiveDeadlineSecs *int64 `json:"jobActiveDeadlineSecs,omitempty"`

	// retries defines how many times a failed attempt is retried, and how long to wait before each retry. By default, a
	// failed attempt is retried twice: after 30s, and then after 1m.
	// +optional
	// +structType=atomic
	Retries *PlanRetries `json:"retries,omitempty"`

	// postCompleteDelay is how long a node continues to count toward concurrency after it has completed the plan, for
	// example "2m". The node is uncordoned immediately. The default is 0s.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:Pattern=`^([0-9]+([.][0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration, for example 30s or 10m"
	PostCompleteDelay *metav1.Duration `json:"postCompleteDelay,omitempty"`
}

// PlanRetries defines how many times a failed attempt is retried. If the plan cordoned the node, the node is uncordoned
// between attempts. When no attempts remain, the node has failed, and no work starts on other nodes in the same member
// until the plan changes.
type PlanRetries struct {
	// limit is the maximum number of retries after the first attempt. The valid range is 0 to 20. The default is 2.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	Limit *int32 `json:"limit,omitempty"`

	// backoff is the delay before the first retry. The delay doubles with each retry, up to one hour. backoff defaults to
	// 30s.
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
// +kubebuilder:validation:XValidation:rule="!has(self.startTime) || !has(self.endTime) || self.startTime != self.endTime",message="startTime and endTime must differ: to include whole days, omit both"
type TimeWindow struct {
	// days lists the days on which the window opens. Each day can be a name (Sunday), an abbreviation (Sun or Su) or a
	// number from 0 (Sunday) to 6. Case does not matter. By default, the window opens every day.
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
	// "Europe/Berlin". "Local" is rejected, because its meaning depends on the machine. If daylight saving time starts or
	// ends during a window, the window is an hour shorter or longer on that day. timeZone defaults to "UTC".
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
	// version is the version to install, for example "v1.36.3+k3s1". It is also used as the tag of images that are
	// specified without a tag. In the tag, "+" is replaced with "-".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_][A-Za-z0-9_.+-]*$`
	Version string `json:"version,omitempty"`

	// channel is an http or https URL that redirects to a URL whose last path element is the version to install. The
	// status code must be 302, 303, 307 or 308. After any other response, the last known version remains in effect. The
	// channel is queried every 15 minutes: by the hub if the Plan is on the hub, and by the agent otherwise. It is not
	// queried if version is set. channel must be at most 1024 characters long.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches('^https?://[^\\s/]+.*$')`,message="must be an http or https URL, such as https://update.k3s.io/v1-release/channels/stable"
	// +kubebuilder:validation:XValidation:rule="!self.matches(r'[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}]')",message="must not contain line breaks or other control characters"
	Channel string `json:"channel,omitempty"`
}
