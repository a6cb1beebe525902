// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Plan is a Plan in a member together with its version and hash.
type Plan struct {
	Name, UID string
	// Generation is the generation of the spec. When it changes, failed nodes are retried.
	Generation int64
	Spec       v1.PlanSpec
	// Version is the plan's version, as returned by the function Version.
	Version string
	// Hash is the plan's hash, as returned by the function Hash.
	Hash string
	// Revision is the plan's revision, as returned by the function Revision. It may be empty if no checks apply.
	Revision string
	// Refusal is the reason why the plan must not start in the member. It does not apply while a node is in
	// progress with the current hash, unless other nodes were selected then. If it is nil, the plan may start. See Guard.
	Refusal *Wait
	// probed is true if the Plan may be paused only because the member refuses it.
	probed bool
	// widened is true if the member has started the plan with another revision.
	widened bool
}

// Member is the observed state of a cluster and its nodes.
type Member struct {
	// Nodes lists all nodes of the member, sorted by name.
	Nodes []Node
	// Omitted contains the counts of nodes that are not in Nodes.
	Omitted Omitted
	// Jobs holds the Jobs of all plans, in any state.
	Jobs []Job
	// Drains holds the drains that this process started, by node.
	Drains map[string]Drain
	// Refused contains the API server's reason for rejecting a node's Job, by node. A reason applies until a failure
	// is recorded for the node.
	Refused map[string]string
	// Hold is the reason why the member does not run plans. It is empty if the member runs plans.
	Hold string
	// Window is the member's own time window. A nil window is always open.
	Window *Window
}

// Omitted counts nodes that are idle and ready, and that have completed the plan or start after all other nodes.
// These nodes affect a step only through their counts.
type Omitted struct {
	Total, Complete int
}

// Node is a node of a member.
type Node struct {
	Name string
	// Hostname is the value of the label kubernetes.io/hostname. Jobs use it to select the node. Plans ignore nodes
	// without this label.
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
	// Claims contains the claims of the plans that are in progress on the node, by plan name. They are stored as
	// annotations of the Node.
	Claims map[string]Claim
}

// Claim records that a plan is in progress on a node, and how far it has progressed. It is stored as JSON in the Node's
// v1.PlanLabel(plan) annotation.
type Claim struct {
	// UID is the UID of the Plan.
	UID string `json:"uid"`
	// Hash and Generation are the plan's hash and generation when the node started.
	Hash       string `json:"hash"`
	Generation int64  `json:"generation"`
	// Since is the time when work on the node started, before the first attempt.
	Since time.Time `json:"since"`
	// Attempt identifies the attempt that a Job belongs to. It is greater than the attempt of any earlier Job of the plan
	// on the node, including Jobs of earlier versions. Spent is the number of failed attempts that count toward the limit.
	Attempt int32 `json:"attempt"`
	Spent   int32 `json:"spent,omitempty"`
	// Prepared reports whether the node has been prepared and cordoned, as far as the plan requires it.
	Prepared bool `json:"prepared,omitempty"`
	// Cordoned reports whether this plan cordoned the node.
	Cordoned bool `json:"cordoned,omitempty"`
	// Exclusive reports whether the plan is exclusive. No other exclusive plan may be in progress at the same time.
	Exclusive bool `json:"exclusive,omitempty"`
	// Failure describes the failure of the latest attempt. It is removed when the next attempt starts.
	Failure *Failure `json:"failure,omitempty"`
	// Done is the time when the node completed the plan. It is set until the node releases its slot.
	Done *time.Time `json:"done,omitempty"`
}

// tried returns the number of the current attempt, or of the last failed attempt. The first attempt has the number 1.
// Attempts that do not use up a retry do not count.
func (c *Claim) tried() int32 {
	if c.Failure != nil {
		return max(c.Spent, 1)
	}
	return c.Spent + 1
}

// Failure describes a failed attempt.
type Failure struct {
	At time.Time `json:"at"`
	// Final is true if no attempts are left.
	Final bool `json:"final,omitempty"`
	// Reason is a reason as in v1.NodeFailure.
	Reason string `json:"reason"`
	// Message contains details. It is at most 256 bytes long, so that the annotation stays small.
	Message string `json:"message,omitempty"`
}

// JobKind is the purpose of a Job.
type JobKind string

const (
	// Prepare is the Job of the prepare container. It is named prepare-<plan>-on-<node>-with-<hash>.
	Prepare JobKind = "prepare"
	// Upgrade is the Job of the upgrade container. It is named apply-<plan>-on-<node>-with-<hash>.
	Upgrade JobKind = "upgrade"
)

// Job is a Job of a plan. Everything except the Job's state is also stored in its labels.
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
	// Reason and Message describe why the Job failed.
	Reason, Message string
	// Waiting is the reason why the pod of a running Job has not started, if the reason is known.
	Waiting string
	// Finished is when the Job succeeded or failed.
	Finished time.Time
	// Deleting reports whether the Job is being deleted. Its pods may still run.
	Deleting bool
}

// JobState is the progress of a Job.
type JobState string

const (
	// Running means that the Job has not finished, even if none of its pods has started yet.
	Running JobState = "Running"
	// Succeeded means that the container exited with status 0.
	Succeeded JobState = "Succeeded"
	// Failed means that Kubernetes will not retry the Job.
	Failed JobState = "Failed"
)

// Drain is the progress of draining a node.
type Drain struct {
	// Hash and Attempt are copied from the claim for which the drain was started.
	Hash    string
	Attempt int32
	// Done reports whether the drain has ended. Failed is the reason why the drain failed, or empty if it succeeded.
	Done   bool
	Failed string
}

// Act is the action that a Step performs.
type Act string

const (
	// WriteNode means that Claim, Labels and Unschedulable are written to the Node in a single request.
	WriteNode Act = "WriteNode"
	// CreateJob means that Job is created.
	CreateJob Act = "CreateJob"
	// DeleteJob means that the Job named in the Job field is deleted together with its pods, using foreground propagation.
	DeleteJob Act = "DeleteJob"
	// StartDrain means that the eviction of the node's pods starts.
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
	VerbDisown   Verb = "disown"  // a user uncordoned the node
	VerbDate     Verb = "date"    // the claim contained a time in the future
	VerbClean    Verb = "clean"   // a Job is no longer needed
	VerbRecover  Verb = "recover" // a failed member is in progress again or has completed
	VerbDoubt    Verb = "doubt"   // a member has progressed further than the hub knew
	VerbRefuse   Verb = "refuse"  // a member's upgrade checks keep the plan from starting, and it gives up its slot
	VerbYield    Verb = "yield"   // an idle member with an outdated revision of the plan gives up its slot
)

// Step is the next step of a plan in a member.
type Step struct {
	Act  Act
	Verb Verb
	// Node is the name of the node.
	Node string
	// Claim is the node's new claim. If it is nil, the claim is removed. Claim, Labels and Unschedulable are used
	// only by WriteNode.
	Claim *Claim
	// Labels contains the labels to set.
	Labels map[string]string
	// Unschedulable is the new value of the node's field. If it is nil, the field is not changed.
	Unschedulable *bool
	// Job is the Job to create or to delete. A Job to create has neither name nor state.
	Job Job
}

// Wait is the reason why there is no step.
type Wait struct {
	// Reason is one of the reasons in the Plan's conditions.
	Reason string
	// Message contains details and explains how to solve the problem.
	Message string
	// Until is the deadline for the next decision. If it is zero, the decision changes only when the observed state
	// changes.
	Until time.Time
	// Unchecked is true if the plan would start now, but the member has to be checked first.
	Unchecked bool
}

// Decision is a Step, or the reason to wait.
type Decision struct {
	Step *Step
	Wait Wait
}
