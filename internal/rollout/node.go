// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Plan is a Plan in a member, together with its version and hash.
type Plan struct {
	Name, UID string
	// Generation is the generation of the spec. When it changes, failed nodes are retried.
	Generation int64
	Spec       v1.PlanSpec
	// Version is the version, as returned by the function Version.
	Version string
	// Hash is the plan's hash, as computed by the function Hash.
	Hash string
}

// Member is the observed state of a cluster and its nodes.
type Member struct {
	// Nodes are all nodes of the member, by name.
	Nodes []Node
	// Omitted counts the nodes that Nodes leaves out.
	Omitted Omitted
	// Jobs holds the Jobs of all plans, in any state.
	Jobs []Job
	// Drains holds the drains that this process started, by node.
	Drains map[string]Drain
	// Refused holds the reason why the API server rejected a node's Job, by node. A reason applies as long as the node
	// has no failure.
	Refused map[string]string
	// Hold is the reason why the member does not take part in any plan. It is empty if the member takes part.
	Hold string
	// Window is the member's own window. A nil window is always open.
	Window *Window
}

// Omitted counts nodes of a plan that are idle and ready, and that have completed the plan or start after all others.
// These nodes affect a step only through the counts.
type Omitted struct {
	Total, Complete int
}

// Node is a node of a member.
type Node struct {
	Name string
	// Hostname is the label kubernetes.io/hostname, which Jobs use to select the node. Plans ignore nodes without this
	// label.
	Hostname string
	Labels   map[string]string
	// Unschedulable reports whether the node is cordoned.
	Unschedulable bool
	Ready         bool
	// Leaving reports whether the node is being deleted.
	Leaving bool
	Taints  []corev1.Taint
	// OS is the node's operating system. An empty value counts as Linux.
	OS string
	// Claims holds the claims of the plans that are in progress on the node, by plan name. They are annotations of the
	// Node.
	Claims map[string]Claim
}

// Claim records that a plan is in progress on a node, and records the node's progress. It is the annotation
// v1.PlanLabel(plan) of the Node, as JSON.
type Claim struct {
	// UID is the UID of the Plan.
	UID string `json:"uid"`
	// Hash and Generation are the hash and the generation of the Plan with which the node started.
	Hash       string `json:"hash"`
	Generation int64  `json:"generation"`
	// Since is when the work started, before the first attempt.
	Since time.Time `json:"since"`
	// Attempt distinguishes Jobs. It is greater than the attempt of any Job of the plan on the node, including Jobs of
	// earlier versions. Spent is the number of failed attempts that count.
	Attempt int32 `json:"attempt"`
	Spent   int32 `json:"spent,omitempty"`
	// Prepared reports whether the node has been prepared and cordoned, as far as the plan requires it.
	Prepared bool `json:"prepared,omitempty"`
	// Cordoned reports whether this plan cordoned the node.
	Cordoned bool `json:"cordoned,omitempty"`
	// Exclusive reports whether no other exclusive plan may be in progress at the same time.
	Exclusive bool `json:"exclusive,omitempty"`
	// Failure is the failure of the last attempt, until the next one starts.
	Failure *Failure `json:"failure,omitempty"`
	// Done is the time when the node completed the plan. It is set while the node keeps its slot.
	Done *time.Time `json:"done,omitempty"`
}

// tried returns the number of the attempt that is running or has most recently failed, counted from 1. Attempts that do
// not use up a retry do not count.
func (c *Claim) tried() int32 {
	if c.Failure != nil {
		return max(c.Spent, 1)
	}
	return c.Spent + 1
}

// Failure describes a failed attempt.
type Failure struct {
	At time.Time `json:"at"`
	// Final reports whether no attempts are left.
	Final bool `json:"final,omitempty"`
	// Reason is a reason as in v1.NodeFailure.
	Reason string `json:"reason"`
	// Message holds the details. It is at most 256 bytes long, so that the annotation stays small.
	Message string `json:"message,omitempty"`
}

// JobKind is the purpose of a Job.
type JobKind string

const (
	// Prepare runs the prepare container. Its Job is named prepare-<plan>-on-<node>-with-<hash>.
	Prepare JobKind = "prepare"
	// Upgrade runs the upgrade container. Its Job is named apply-<plan>-on-<node>-with-<hash>.
	Upgrade JobKind = "upgrade"
)

// Job is a Job of a plan. Everything except its state is also stored in its labels.
type Job struct {
	// Name is the name of an existing Job.
	Name string
	Kind JobKind
	// Plan and UID identify the Plan.
	Plan, UID string
	// Node is the name of the node.
	Node    string
	Hash    string
	Attempt int32
	State   JobState
	// Reason and Message describe a failure.
	Reason, Message string
	// Waiting is why the pod of a running Job has not started, as far as this is known.
	Waiting string
	// Finished is when the Job succeeded or failed.
	Finished time.Time
	// Deleting reports whether the Job is being deleted. Its pods may still run.
	Deleting bool
}

// JobState is the progress of a Job.
type JobState string

const (
	// Running means that the Job has not finished, even if none of its pods could start yet.
	Running JobState = "Running"
	// Succeeded means that the container exited with status 0.
	Succeeded JobState = "Succeeded"
	// Failed means that Kubernetes will not retry it.
	Failed JobState = "Failed"
)

// Drain is the progress of the drain of a node.
type Drain struct {
	// Hash and Attempt are copied from the claim for which the drain was started.
	Hash    string
	Attempt int32
	// Done reports whether the drain has ended. Failed is the reason why the drain failed. It is empty if the drain
	// succeeded.
	Done   bool
	Failed string
}

// Act is the action that a Step requires.
type Act string

const (
	// WriteNode writes Claim, Labels and Unschedulable to the Node in a single write.
	WriteNode Act = "WriteNode"
	// CreateJob creates Job.
	CreateJob Act = "CreateJob"
	// DeleteJob deletes Job and its pods, with foreground deletion.
	DeleteJob Act = "DeleteJob"
	// StartDrain starts to evict the node's pods.
	StartDrain Act = "StartDrain"
)

// Verb is the purpose of a Step, as shown to users.
type Verb string

// Verbs of steps. VerbBegin to VerbUpgrade are the steps of a node, in order.
const (
	VerbBegin    Verb = "begin"
	VerbPrepare  Verb = "prepare"
	VerbCordon   Verb = "cordon"
	VerbDrain    Verb = "drain"
	VerbUpgrade  Verb = "upgrade"
	VerbComplete Verb = "complete"
	VerbSettle   Verb = "settle"  // a complete node frees its slot
	VerbFail     Verb = "fail"    // the attempt failed
	VerbRetry    Verb = "retry"   // the next attempt starts
	VerbRestart  Verb = "restart" // the plan changed
	VerbRelease  Verb = "release" // the node is no longer selected
	VerbDisown   Verb = "disown"  // a user uncordoned it
	VerbDate     Verb = "date"    // the claim had a time in the future
	VerbClean    Verb = "clean"   // a Job is no longer needed
	VerbRecover  Verb = "recover" // a failed member is in progress again
	VerbDoubt    Verb = "doubt"   // a member has progressed further than this hub knows
	VerbYield    Verb = "yield"   // a member with an outdated revision of the plan is idle and waits for its turn
)

// Step is the next action.
type Step struct {
	Act  Act
	Verb Verb
	// Node is the name of the node.
	Node string
	// Claim is the node's new claim. If it is nil, the claim is removed. Only WriteNode uses Claim, Labels and
	// Unschedulable.
	Claim *Claim
	// Labels holds the labels to set.
	Labels map[string]string
	// Unschedulable is the value to set. If it is nil, the value is not changed.
	Unschedulable *bool
	// Job is the Job to create, without name and state, or to delete.
	Job Job
}

// Wait is the reason why there is no step.
type Wait struct {
	// Reason is one of the reasons in the Plan's conditions.
	Reason string
	// Message holds the details and explains how to fix the problem.
	Message string
	// Until is the latest time for the next decision. If it is zero, the decision changes only with the observed state.
	Until time.Time
}

// Decision is a Step, or the reason to wait.
type Decision struct {
	Step *Step
	Wait Wait
}
