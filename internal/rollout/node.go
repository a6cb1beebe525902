// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Plan is a Plan in a member with its version and hash.
type Plan struct {
	Name, UID string
	// Generation of the spec: a change of it lets failed nodes try again.
	Generation int64
	Spec       v1.PlanSpec
	// Version as the function Version makes it.
	Version string
	// Hash as the function Hash makes it.
	Hash string
}

// Member is what is observed of the cluster whose nodes are worked on.
type Member struct {
	// Nodes are all nodes of the member, by name.
	Nodes []Node
	// Omitted counts nodes that are left out of Nodes.
	Omitted Omitted
	// Jobs are those of plans, of any plan and any state.
	Jobs []Job
	// Drains that this process began, by node.
	Drains map[string]Drain
	// Refused maps the nodes whose Job the API server refused to the reason. It counts while the node has no failure.
	Refused map[string]string
	// Hold is why the member takes part in no plan. Empty if it takes part.
	Hold string
	// Window of the member itself. Nil is always open.
	Window *Window
}

// Omitted counts nodes of a plan that are idle and ready, and that have the plan or begin after all others. A step
// depends on these counts only.
type Omitted struct {
	Total, Complete int
}

// Node is a node of a member.
type Node struct {
	Name string
	// Hostname is the label kubernetes.io/hostname, by which Jobs find the node. No plan is for a node without it.
	Hostname string
	Labels   map[string]string
	// Unschedulable reports whether it is cordoned.
	Unschedulable bool
	Ready         bool
	// Leaving reports whether it is being deleted.
	Leaving bool
	Taints  []corev1.Taint
	// OS is its operating system. Empty counts as Linux.
	OS string
	// Claims are the annotations of plans that are at work on it, by the plan's name.
	Claims map[string]Claim
}

// Claim records the plan for which a node is at work, and the progress of the node. It is the annotation
// v1.PlanLabel(plan) of the Node, as JSON.
type Claim struct {
	// UID of the Plan.
	UID string `json:"uid"`
	// Hash and Generation of the Plan with which the node began.
	Hash       string `json:"hash"`
	Generation int64  `json:"generation"`
	// Since when it is at work, all attempts included.
	Since time.Time `json:"since"`
	// Attempt tells Jobs apart: it is larger than that of any Job which the node has of the plan, of former versions too.
	// Spent is how many attempts have failed and count.
	Attempt int32 `json:"attempt"`
	Spent   int32 `json:"spent,omitempty"`
	// Prepared reports whether prepare is done and the node cordoned, for plans that do either.
	Prepared bool `json:"prepared,omitempty"`
	// Cordoned reports whether this plan cordoned the node.
	Cordoned bool `json:"cordoned,omitempty"`
	// Exclusive reports whether no other exclusive plan may be at work at the same time.
	Exclusive bool `json:"exclusive,omitempty"`
	// Failure of the last attempt, until the next one.
	Failure *Failure `json:"failure,omitempty"`
	// Done is when the node was complete, while its place stays taken.
	Done *time.Time `json:"done,omitempty"`
}

// tried returns the number of the attempt, from 1, that runs or failed last. Attempts that cost none are not counted.
func (c *Claim) tried() int32 {
	if c.Failure != nil {
		return max(c.Spent, 1)
	}
	return c.Spent + 1
}

// Failure is why an attempt failed.
type Failure struct {
	At time.Time `json:"at"`
	// Final reports whether there is no attempt left.
	Final bool `json:"final,omitempty"`
	// Reason as in v1.NodeFailure.
	Reason string `json:"reason"`
	// Message says more. At most 256 bytes, so that the annotation stays small.
	Message string `json:"message,omitempty"`
}

// JobKind is what a Job does.
type JobKind string

const (
	// Prepare runs the container prepare. Its Job is called prepare-<plan>-on-<node>-with-<hash>.
	Prepare JobKind = "prepare"
	// Upgrade runs the container upgrade. Its Job is called apply-<plan>-on-<node>-with-<hash>.
	Upgrade JobKind = "upgrade"
)

// Job is a Job of a plan. Labels on it say all but its state.
type Job struct {
	// Name of a Job that exists.
	Name string
	Kind JobKind
	// Plan and UID of the Plan.
	Plan, UID string
	// Node is the node's name.
	Node    string
	Hash    string
	Attempt int32
	State   JobState
	// Reason and Message of a failure.
	Reason, Message string
	// Waiting is why the pod of a Job that runs has not started, as far as that is known.
	Waiting string
	// Finished is when it succeeded or failed.
	Finished time.Time
	// Deleting reports whether it is being deleted: its pods may still run.
	Deleting bool
}

// JobState is the progress of a Job.
type JobState string

const (
	// Running means that it has not finished, even if no pod of it could start yet.
	Running JobState = "Running"
	// Succeeded means that its container exited with 0.
	Succeeded JobState = "Succeeded"
	// Failed means that Kubernetes will not retry it.
	Failed JobState = "Failed"
)

// Drain is the progress of the drain of a node.
type Drain struct {
	// Hash and Attempt of the claim that it was begun for.
	Hash    string
	Attempt int32
	// Done reports whether it has ended. Failed is then why it failed, empty if it succeeded.
	Done   bool
	Failed string
}

// Act is what a Step asks of its executor.
type Act string

const (
	// WriteNode is one write of the Node: Claim, Labels, Unschedulable.
	WriteNode Act = "WriteNode"
	// CreateJob makes Job.
	CreateJob Act = "CreateJob"
	// DeleteJob deletes Job with its pods, in the foreground.
	DeleteJob Act = "DeleteJob"
	// StartDrain begins to evict the node's pods.
	StartDrain Act = "StartDrain"
)

// Verb is the purpose of a Step, as it is shown to users.
type Verb string

// Verbs of steps. Begin to Upgrade are those of a node in their order.
const (
	VerbBegin    Verb = "begin"
	VerbPrepare  Verb = "prepare"
	VerbCordon   Verb = "cordon"
	VerbDrain    Verb = "drain"
	VerbUpgrade  Verb = "upgrade"
	VerbComplete Verb = "complete"
	VerbSettle   Verb = "settle"  // the place of a complete node is free
	VerbFail     Verb = "fail"    // the attempt failed
	VerbRetry    Verb = "retry"   // the next attempt begins
	VerbRestart  Verb = "restart" // the plan changed
	VerbRelease  Verb = "release" // the node is no longer wanted
	VerbDisown   Verb = "disown"  // a user uncordoned it
	VerbDate     Verb = "date"    // its claim had a time that lies ahead
	VerbClean    Verb = "clean"   // a Job is no longer needed
	VerbRecover  Verb = "recover" // a failed member is at work again
	VerbDoubt    Verb = "doubt"   // a member has done more than this hub knows of
	VerbYield    Verb = "yield"   // a member that the plan has left behind is idle, and waits until it is next
)

// Step is the next action.
type Step struct {
	Act  Act
	Verb Verb
	// Node by name.
	Node string
	// Claim that the node is to have; nil removes it. Of WriteNode, as the next two.
	Claim *Claim
	// Labels to set.
	Labels map[string]string
	// Unschedulable to set; nil leaves it.
	Unschedulable *bool
	// Job to make, without name and state, or to delete.
	Job Job
}

// Wait is why there is no step.
type Wait struct {
	// Reason as on the Plan's conditions.
	Reason string
	// Message has the details and what to do.
	Message string
	// Until is when to decide again at the latest. Zero means on the next change.
	Until time.Time
}

// Decision is a Step, or the reason to wait.
type Decision struct {
	Step *Step
	Wait Wait
}
