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

// patience is how often sending may fail before it is told: a tunnel that moves fails one or two.
const patience = 3

// settleTime is how long after its start a store waits for agents to come back before it calls them away, as the Cluster controller does.
const settleTime = 25 * time.Second

// Times for those who write down a verdict.
const (
	// hold is how long what was handed over may be on its way before that is worth a write.
	hold = time.Second
	// listenAgain is when to look again at what agents have not told yet. They are not waited for: what they tell wakes the owner.
	listenAgain = 5 * time.Second
)

// Stage is how far a set is in one member.
type Stage int

// Stages, from the best to what a person looks at first.
const (
	// Applied: the member has all of it.
	Applied Stage = iota
	// Away: the member is not connected and gets it when it is.
	Away
	// Unreported: the member's agent is about to tell what it has, or to come back.
	Unreported
	// Pending: it is on its way.
	Pending
	// Failed: it could not be applied, or not be sent.
	Failed
	// Refused: the agent takes none.
	Refused
)

// Outcome is how a set is in one member.
type Outcome struct {
	Cluster string
	Stage   Stage
	// Reason of the condition Ready, for Failed and Refused.
	Reason string
	// Failures name what is not as it should be, for Failed and Refused.
	Failures []v1.Failure
	// Namespaces, Short and Spent are what the agent says of the namespaces that the set is expanded for.
	Namespaces   int32
	Short, Spent []string
	// Since is when it was handed over, for Pending.
	Since time.Time
}

// Outcomes says how sets of one ID are in members, in the order of the members' names. A member for which nothing is wanted counts as Pending.
func (d *Store) Outcomes(id string, members []types.NamespacedName) []Outcome {
	outcomes := make([]Outcome, 0, len(members))
	d.mu.Lock()
	for _, name := range members {
		o := Outcome{Stage: Pending}
		if m := d.members[name]; m != nil {
			o = m.outcomeLocked(id)
			if o.Stage == Away && !m.heard && time.Since(d.started) < settleTime {
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

// withheldLocked says how it stands with a set of a Cluster whose spec says ReadOnly.
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

// wholeSet is the object of a failure that is of all objects of a set.
const wholeSet = "set"

// Explain is a failure in one sentence: of which object, unless it is of all, and why.
func Explain(f v1.Failure) string {
	if f.Object == wholeSet {
		return f.Message
	}
	return f.Object + ": " + f.Message
}

// stateOutcome is what an agent's word means.
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

// Summary is what outcomes come to.
type Summary struct {
	// Ready is the status of the condition Ready, with Reason and Message; Stalled is whether a person must act.
	Ready   bool
	Reason  string
	Message string
	Stalled bool
	// Incomplete is the condition Complete: it speaks of all members, those that are away included.
	Incomplete Incomplete
	// Refused is whether the hub itself delivers nothing, or not all of it.
	Refused bool
	// Unreported is whether it is too early to say: what agents have is about to be told.
	Unreported bool
	// Since is when the last of what is on its way was handed over, zero if nothing is.
	Since    time.Time
	Clusters v1.ClusterCount
	// Failures are the first, in the order of clusters and objects.
	Failures []v1.Failure
}

// Incomplete is why a set is not in all members although Ready is True. The zero value stands for the status, reason and message of Ready.
type Incomplete struct{ Reason, Message string }

// Summarize sums up.
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

// Early is for how long a verdict should not be written down yet, 0 if it should: what it says will be other in an instant. observed is whether
// the status says something of the object as it is now.
func (v Summary) Early(observed bool, now time.Time) time.Duration {
	if v.Unreported && observed {
		return listenAgain
	}
	return max(0, v.Since.Add(hold).Sub(now))
}

// Urgent is whether a verdict may have other news than what members say of the same as before. observed is as for Early, was is what the status counts.
func (v Summary) Urgent(observed bool, was *v1.ClusterCount) bool {
	return !observed || v.Refused || was == nil || was.Desired != v.Clusters.Desired
}

// Refuse replaces what a verdict says by what keeps an object from being delivered, or some of it, to as many members.
func (v *Summary) Refuse(members int, reason, message string, stalled bool) {
	v.Ready, v.Reason, v.Message, v.Stalled, v.Refused, v.Unreported, v.Since, v.Incomplete = false, reason, message, stalled, true, false, time.Time{}, Incomplete{}
	if v.Clusters.Desired == 0 {
		v.Clusters = v1.ClusterCount{Desired: int32(members), Summary: fmt.Sprintf("0/%d", members)}
	}
}

// Expire replaces what a verdict says by the end of a binding, which is nothing to wait for. held is how many members still have it, away how
// many cannot be asked. While unreported ones are about to tell what they have it is too early to say: a manager that starts changes no status.
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

// Write writes a verdict into conditions, and returns whether its reason is news that is worth an event: that all is under way is none.
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

// rank orders reasons by how soon a person should look.
func rank(reason string) int {
	return 1 + slices.Index([]string{v1.ReasonAgentReadOnly, v1.ReasonAgentTooOld, v1.ReasonRoleMissing, v1.ReasonDeliveryFailed, v1.ReasonConflict, v1.ReasonFighting}, reason)
}

// firstFailures are the first by cluster and object, one for each object.
func firstFailures(all []v1.Failure) []v1.Failure {
	slices.SortStableFunc(all, func(a, b v1.Failure) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Object, b.Object))
	})
	all = slices.CompactFunc(all, func(a, b v1.Failure) bool { return a.Cluster == b.Cluster && a.Object == b.Object })
	return slices.Clip(all[:min(len(all), v1.MaxFailures)])
}
