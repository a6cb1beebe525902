// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// patience is the number of failures before a set counts as Failed: a tunnel that moves fails one or two sends.
const patience = 3

// settleTime is how long after its start a store waits for agents to connect before it counts them as Away, as the Cluster controller does.
const settleTime = 25 * time.Second

// Times for controllers that write a summary.
const (
	// hold is how long a set may be Pending before that is worth a write.
	hold = time.Second
	// listenAgain is when to look again at agents that have not reported yet. Usually their report wakes the owner first.
	listenAgain = 5 * time.Second
)

// Stage is the progress of a set in one member.
type Stage int

// Stages, from the best to the one that needs attention first.
const (
	// Applied: the member has all of it.
	Applied Stage = iota
	// Away: the member is not connected and gets it when it is.
	Away
	// Unreported: the member's agent has not reported yet what it has, or has not connected again yet.
	Unreported
	// Pending: it is being delivered.
	Pending
	// Failed: it could not be applied, or not be sent.
	Failed
	// Refused: the agent takes no sets.
	Refused
)

// Outcome is the state of a set in one member.
type Outcome struct {
	Cluster string
	Stage   Stage
	// Reason of the condition Ready, for Failed and Refused.
	Reason string
	// Failures are the objects that failed, for Failed and Refused.
	Failures []v1.Failure
	// Namespaces, Short and Spent are the agent's report on the namespaces that the set is expanded for.
	Namespaces   int32
	Short, Spent []string
	// Since is when Replace was called with it, for Pending.
	Since time.Time
}

// Outcomes returns the outcomes of one ID in members, sorted by the members' names. A member in which no set is wanted counts as Pending.
func (d *Store) Outcomes(id string, members []types.NamespacedName) []Outcome {
	outcomes := make([]Outcome, 0, len(members))
	d.mu.Lock()
	for _, name := range members {
		o := Outcome{Stage: Pending}
		if m := d.members[name]; m != nil {
			o = m.outcomeLocked(id)
			if o.Stage == Away && !m.reported && time.Since(d.started) < settleTime {
				o.Stage = Unreported
			}
		}
		o.Cluster = name.Name
		for i := range o.Failures {
			o.Failures[i].Cluster = name.Name
		}
		outcomes = append(outcomes, o)
	}
	d.mu.Unlock()
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return outcomes
}

func (m *member) outcomeLocked(id string) Outcome {
	f, has := m.failed[id], m.has[id]
	switch {
	case m.wants[id].set == nil:
		return Outcome{Stage: Pending}
	case m.withheld:
		return Outcome{Stage: Refused, Reason: v1.ReasonAgentReadOnly, Failures: []v1.Failure{{Object: wholeSet, Message: m.withheldLocked(id)}}}
	case m.wants[id].set.unchanged:
		return Outcome{Stage: Unreported}
	case m.hasLocked(id):
		o := stateOutcome(has)
		o.Since = m.wants[id].since
		return o
	case !m.connected:
		return Outcome{Stage: Away}
	case m.refuses != "":
		return Outcome{Stage: Refused, Reason: m.refuses, Failures: []v1.Failure{{Object: wholeSet, Message: refusalText(m.refuses)}}}
	case f != nil && (f.refused || f.count >= patience):
		return Outcome{Stage: Failed, Reason: v1.ReasonDeliveryFailed, Failures: []v1.Failure{{Object: wholeSet, Message: "It could not be sent: " + f.message}}}
	case m.stream == nil || !m.stream.synced:
		return Outcome{Stage: Unreported}
	}
	return Outcome{Stage: Pending, Since: m.wants[id].since}
}

// withheldLocked describes the state of a set in a Cluster whose spec says ReadOnly.
func (m *member) withheldLocked(id string) string {
	const why = "spec.agent.profile of the Cluster is ReadOnly: nothing is delivered"
	switch f := m.failed[id]; {
	case f != nil:
		return why + ", and what is there could not be taken back: " + f.message
	case m.has[id] != nil && m.connected:
		return why + ", and what is there is being taken back"
	case m.has[id] != nil:
		return why + "; what is there is still in force and is taken back when the member connects"
	}
	return why
}

func refusalText(reason string) string {
	if reason == v1.ReasonAgentReadOnly {
		return "The agent has the profile ReadOnly and takes nothing; set spec.agent.profile of the Cluster to Full and apply its manifest in the member"
	}
	return "The agent is too old to take this; upgrade it"
}

// wholeSet is the object of a failure that concerns all objects of a set.
const wholeSet = "set"

// Explain returns a failure as one sentence: the object, unless it concerns all, and why.
func Explain(f v1.Failure) string {
	if f.Object == wholeSet {
		return f.Message
	}
	return f.Object + ": " + f.Message
}

// stateOutcome converts the state that an agent reported.
func stateOutcome(s *protocol.SetState) Outcome {
	o := Outcome{Stage: Failed, Namespaces: s.Namespaces, Short: s.Short, Spent: s.Spent}
	switch s.Phase {
	case protocol.SetApplied:
		o.Stage = Applied
		return o
	case protocol.SetConflict:
		o.Reason = v1.ReasonConflict
	case protocol.SetFighting:
		o.Reason = v1.ReasonFighting
	case protocol.SetRoleMissing:
		o.Reason = v1.ReasonRoleMissing
	case protocol.SetFailed:
		o.Reason = v1.ReasonDeliveryFailed
	default: // pending, or expired by a clock that is ahead of the hub's
		o.Stage = Pending
		return o
	}
	for _, object := range s.Objects {
		o.Failures = append(o.Failures, v1.Failure{Object: object.Object, Message: object.Message})
	}
	if len(o.Failures) == 0 {
		o.Failures = []v1.Failure{{Object: wholeSet, Message: cmp.Or(s.Message, "The agent says "+string(s.Phase))}}
	}
	return o
}

// Summary is the outcome for all members.
type Summary struct {
	// Ready is the status of the condition Ready, with Reason and Message. Stalled reports whether a user must act.
	Ready   bool
	Reason  string
	Message string
	Stalled bool
	// Incomplete is the condition Complete: it is about all members, those that are away included.
	Incomplete Incomplete
	// Refused reports whether the hub itself does not deliver all of it.
	Refused bool
	// Unreported reports whether agents have not reported yet.
	Unreported bool
	// Since is the latest Since of the outcomes that are Pending, zero if none is.
	Since    time.Time
	Clusters v1.ClusterCount
	// Failures are the first ones, sorted by cluster and object.
	Failures []v1.Failure
}

// Incomplete is why a set is not in all members although Ready is True. The zero value means the same as Ready.
type Incomplete struct{ Reason, Message string }

// Summarize returns the summary of outcomes.
func Summarize(outcomes []Outcome) Summary {
	v := Summary{Clusters: v1.ClusterCount{Desired: int32(len(outcomes))}}
	counts := map[Stage]int{}
	var worst Outcome
	for _, o := range outcomes {
		counts[o.Stage]++
		if o.Stage >= Failed && rank(o.Reason) > rank(worst.Reason) {
			worst = o
		}
		v.Failures = append(v.Failures, o.Failures...)
		if o.Stage == Pending && o.Since.After(v.Since) {
			v.Since = o.Since
		}
	}
	v.Clusters.Applied, v.Clusters.Failed = int32(counts[Applied]), int32(counts[Failed]+counts[Refused])
	v.Clusters.Summary = fmt.Sprintf("%d/%d", v.Clusters.Applied, v.Clusters.Desired)
	v.Failures = firstFailures(v.Failures)
	v.Unreported = counts[Unreported] > 0
	switch {
	case worst.Reason != "":
		v.Reason, v.Stalled = worst.Reason, slices.Contains([]string{v1.ReasonRoleMissing, v1.ReasonConflict, v1.ReasonFighting}, worst.Reason)
		v.Message = fmt.Sprintf("%d of %d clusters do not have all of it. In cluster %s: %s",
			v.Clusters.Failed, v.Clusters.Desired, worst.Cluster, Explain(worst.Failures[0]))
	case counts[Pending]+counts[Unreported] > 0:
		v.Reason, v.Message = v1.ReasonDelivering, fmt.Sprintf("%s clusters have it; it is on its way to the others that are connected", v.Clusters.Summary)
	case counts[Away] > 0:
		v.Ready, v.Reason = true, v1.ReasonApplied
		if counts[Applied] == 0 {
			v.Reason = v1.ReasonMembersAway
		}
		v.Message = fmt.Sprintf("%s clusters have it; %d are not connected and get it when they are", v.Clusters.Summary, counts[Away])
		v.Incomplete = Incomplete{Reason: v1.ReasonMembersAway, Message: v.Message}
	case len(outcomes) == 0:
		v.Ready, v.Reason, v.Message = true, v1.ReasonNoClusters, "No cluster is selected at present"
	default:
		v.Ready, v.Reason, v.Message = true, v1.ReasonApplied, fmt.Sprintf("%s clusters have it", v.Clusters.Summary)
	}
	return v
}

// Delay returns how long to wait before a summary is written, 0 for now: a summary that is about to change is not written. observed reports
// whether the status is about the present generation.
func (v Summary) Delay(observed bool, now time.Time) time.Duration {
	if v.Unreported && observed {
		return listenAgain
	}
	return max(0, v.Since.Add(hold).Sub(now))
}

// Urgent reports whether the summary may have changed because of the hub, and not only because of members. observed is as for Delay, was is the
// count in the status.
func (v Summary) Urgent(observed bool, was *v1.ClusterCount) bool {
	return !observed || v.Refused || was == nil || was.Desired != v.Clusters.Desired
}

// Refuse replaces the summary by the reason why an object is not, or not all of it, delivered to that number of members.
func (v *Summary) Refuse(members int, reason, message string, stalled bool) {
	v.Ready, v.Reason, v.Message, v.Stalled, v.Refused, v.Unreported, v.Since, v.Incomplete = false, reason, message, stalled, true, false, time.Time{}, Incomplete{}
	if v.Clusters.Desired == 0 {
		v.Clusters = v1.ClusterCount{Desired: int32(members), Summary: fmt.Sprintf("0/%d", members)}
	}
}

// Expire replaces the summary by the expiry of a binding. held, away and unreported are the counts of Remains. While there are unreported
// members the status does not change, so that a manager that starts changes none.
func (v *Summary) Expire(message string, held, away, unreported int) {
	*v = Summary{Ready: true, Reason: v1.ReasonExpired, Message: message, Refused: true, Unreported: unreported > 0, Clusters: v1.ClusterCount{Summary: "0/0"}}
	switch {
	case held+unreported > 0:
		held += unreported
		v.Incomplete = Incomplete{Reason: v1.ReasonDelivering, Message: fmt.Sprintf("It is being taken away in %d clusters", held)}
	case away > 0:
		v.Incomplete = Incomplete{Reason: v1.ReasonMembersAway, Message: fmt.Sprintf("%d clusters are not connected: their agents take it away by their own clocks", away)}
	}
}

// Write writes a summary into conditions, and reports whether its reason is worth an event. ReasonDelivering never is.
func (v Summary) Write(conditions *[]metav1.Condition, generation int64, now time.Time) (news bool) {
	was := meta.FindStatusCondition(*conditions, v1.ConditionReady)
	news = (was == nil || was.Reason != v.Reason) && v.Reason != v1.ReasonDelivering
	set := func(kind string, is bool, reason, message string) {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now)}
		if is {
			c.Status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(conditions, c)
	}
	set(v1.ConditionReady, v.Ready, v.Reason, v.Message)
	if whole := v.Incomplete; whole.Reason != "" {
		set(v1.ConditionComplete, false, whole.Reason, whole.Message)
	} else {
		set(v1.ConditionComplete, v.Ready, v.Reason, v.Message)
	}
	if meta.RemoveStatusCondition(conditions, v1.ConditionStalled); v.Stalled {
		set(v1.ConditionStalled, true, v.Reason, v.Message)
	}
	return news
}

// rank orders reasons by urgency.
func rank(reason string) int {
	return 1 + slices.Index([]string{v1.ReasonAgentReadOnly, v1.ReasonAgentTooOld, v1.ReasonRoleMissing, v1.ReasonDeliveryFailed, v1.ReasonConflict, v1.ReasonFighting}, reason)
}

// firstFailures returns the first failures by cluster and object, one for each object.
func firstFailures(all []v1.Failure) []v1.Failure {
	slices.SortStableFunc(all, func(a, b v1.Failure) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Object, b.Object))
	})
	all = slices.CompactFunc(all, func(a, b v1.Failure) bool { return a.Cluster == b.Cluster && a.Object == b.Object })
	return slices.Clip(all[:min(len(all), v1.MaxFailures)])
}
