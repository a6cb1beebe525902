// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// patience is the number of failures before a set counts as Failed: a tunnel that moves fails one or two sends.
const patience = 3

// settleTime is how long after its start a store waits for agents to connect before it counts them as Away, as the
// Cluster controller does.
const settleTime = 25 * time.Second

// fewSends is the number of sends in progress from which on a member is busy.
const fewSends = 8

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
	// Busy reports whether many other sets are being sent to the member.
	Busy bool
}

// Outcomes returns the outcomes of one ID in members, sorted by the members' names. A member in which no set is wanted
// counts as Pending.
func (d *Store) Outcomes(id string, members []types.NamespacedName) []Outcome {
	outcomes := make([]Outcome, 0, len(members))
	d.mu.Lock()
	for _, name := range members {
		o := Outcome{Stage: Pending}
		if m := d.members[name]; m != nil {
			o = m.outcome(id)
			o.Busy = len(m.sends) > fewSends
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

// Remains counts, for a set that is to be Absent, the members that still have it, those that are away, take no sets or
// wait for a confirmation and may have it, and those whose agents have not reported yet.
func (d *Store) Remains(id string, members []types.NamespacedName) (held, away, unreported int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range members {
		m := d.members[name]
		switch {
		case (m == nil || !m.connected && !m.reported) && time.Since(d.started) < settleTime:
			unreported++
		case m != nil && m.lacks(id):
		case m == nil, !m.connected, m.refuses != "", m.hold.Holds(id, m.wants[id] != nil):
			away++
		case !m.takes():
			unreported++
		case m.has[id] != nil, m.sends[id] != nil:
			held++
		}
	}
	return held, away, unreported
}

func (m *member) outcome(id string) Outcome {
	f, has := m.failed[id], m.has[id]
	switch {
	case m.entry(id).set == nil:
		return Outcome{Stage: Pending}
	case m.withheld:
		return Outcome{Stage: Refused, Reason: v1.ReasonAgentReadOnly, Failures: []v1.Failure{{Object: wholeSet, Message: m.whyWithheld(id)}}}
	case excess(m.entry(id).set):
		return excessOutcome(m.name.Namespace)
	case unchanged(m.entry(id).set):
		return Outcome{Stage: Unreported}
	case m.hasWanted(id):
		o := stateOutcome(has)
		o.Since = m.entry(id).since
		return o
	case !m.connected:
		return Outcome{Stage: Away}
	case m.hold.Waits():
		return unconfirmedOutcome()
	case m.refuses != "":
		return Outcome{Stage: Refused, Reason: m.refuses, Failures: []v1.Failure{{Object: wholeSet, Message: refusalText(m.refuses)}}}
	case f != nil && (f.refused || f.count >= patience):
		return Outcome{Stage: Failed, Reason: v1.ReasonDeliveryFailed, Failures: []v1.Failure{{Object: wholeSet, Message: "It could not be sent: " + f.message}}}
	case !m.synced && m.leaderless:
		return Outcome{Stage: Failed, Reason: v1.ReasonNoLeader, Failures: []v1.Failure{{Object: wholeSet,
			Message: "No replica of the agent leads, so nothing is delivered; see the condition " +
				v1.ConditionMaintained + " of the Cluster"}}}
	case !m.synced:
		return Outcome{Stage: Unreported}
	}
	return Outcome{Stage: Pending, Since: m.entry(id).since}
}

// excessOutcome is the outcome of a set that is not kept.
func excessOutcome(workspace string) Outcome {
	return Outcome{Stage: Failed, Reason: v1.ReasonDeliveryFailed, Failures: []v1.Failure{{Object: wholeSet, Message: fmt.Sprintf(
		"The hub does not deliver it: what workspace %s delivers in pieces of more than %d KiB has more than %d MiB; name fewer or smaller Secrets in its plans and projects",
		workspace, largeSet>>10, maxLarge>>20)}}}
}

// whyWithheld describes the state of a set in a Cluster whose spec says ReadOnly.
func (m *member) whyWithheld(id string) string {
	const why = "spec.agent.profile of the Cluster is ReadOnly: nothing is delivered"
	switch f := m.failed[id]; {
	case f != nil:
		return why + ", and what is there could not be taken back: " + f.message
	case m.has[id] != nil && m.hold.Waits():
		return why + withheldUnconfirmed
	case m.has[id] != nil && m.connected:
		return why + ", and what is there is being taken back"
	case m.has[id] != nil:
		return why + "; what is there is still in force and is taken back when the member connects"
	}
	return why
}

func refusalText(reason string) string {
	switch reason {
	case v1.ReasonAgentReadOnly:
		return "The agent has the profile ReadOnly and takes nothing; set spec.agent.profile of the Cluster to Full and apply its manifest in the member"
	case v1.ReasonIdentityMismatch:
		return "Two clusters have the identity of this Cluster, so the hub changes nothing in either; " +
			"see its condition Ready"
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
