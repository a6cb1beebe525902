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

// patience is the number of failures after which a set counts as Failed. It is greater than two because one or two
// sends may fail while an agent's tunnel moves to another replica.
const patience = 3

// settleTime is how long a store waits for agents to connect after it has started. After that, members without a
// connected agent count as Away. The Cluster controller waits for the same time.
const settleTime = 25 * time.Second

// fewSends is the number of sends in progress above which a member counts as busy.
const fewSends = 8

// Stage is the progress of a set in one member.
type Stage int

// Stages, ordered from the best to the most urgent.
const (
	// Applied means that the agent has applied the whole set.
	Applied Stage = iota
	// Away means that the member is not connected and will get the set when it connects.
	Away
	// Unreported means that the member's agent has not reported its sets yet, or has not reconnected yet. If an agent
	// stays silent for longer than settleTime, its set is Pending instead. Otherwise, a single agent could delay an
	// owner's status forever.
	Unreported
	// Pending means that the set is being delivered.
	Pending
	// Failed means that the set could not be sent or could not be applied.
	Failed
	// Refused means that the agent accepts no sets, or that the hub sends it none.
	Refused
)

// Outcome is the state of a set in one member.
type Outcome struct {
	Cluster string
	Stage   Stage
	// Reason is the reason in the Ready condition. It is set for Failed and Refused.
	Reason string
	// Failures lists the objects that failed. It is set for Failed and Refused.
	Failures []v1.Failure
	// Namespaces, Short and Spent are copied from the agent's report about the namespaces for which the set is
	// expanded.
	Namespaces   int32
	Short, Spent []string
	// Reported is the agent's last report about any version of the set. It is nil if the agent has reported none. It is
	// shared and must not be changed. Known is true if the agent has reported its sets since the store started, and
	// Available is true if the set can be sent now.
	Reported         *protocol.SetState
	Known, Available bool
	// Since is the time when an owner first declared the set with its current content.
	Since time.Time
	// Busy is true while many other sets are being sent to the member.
	Busy bool
}

// Outcomes returns the state of a set in each of the given members, sorted by the names of the members. A member in
// which no owner requires the set counts as Pending.
func (d *Store) Outcomes(id string, members []types.NamespacedName) []Outcome {
	outcomes := make([]Outcome, 0, len(members))
	g := d.lock()
	for _, name := range members {
		o := Outcome{Stage: Pending}
		if m := g.members[name]; m != nil {
			o = m.outcome(id)
			o.Busy, o.Reported, o.Known = len(m.sends) > fewSends, m.has[id], m.reported
			o.Available = m.takes() && !m.withheld && !m.hold.Waits() && m.accepts(id)
			switch {
			case o.Stage == Away && !m.reported && time.Since(g.started) < settleTime:
				o.Stage = Unreported
			case o.Stage == Unreported && !m.synced && min(time.Since(g.started), time.Since(m.silent)) >= settleTime:
				o.Stage = Pending
			}
		}
		o.Cluster = name.Name
		for i := range o.Failures {
			o.Failures[i].Cluster = name.Name
		}
		outcomes = append(outcomes, o)
	}
	d.unlock()
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Cluster, b.Cluster) })
	return outcomes
}

// Remains counts the members that may still have a set that should be Absent. held counts the members that have the
// set. away counts the members that may have it but are not connected, accept no sets or are waiting for confirmation.
// unreported counts the members whose agents have not reported yet.
func (d *Store) Remains(id string, members []types.NamespacedName) (held, away, unreported int) {
	g := d.lock()
	defer d.unlock()
	for _, name := range members {
		m := g.members[name]
		switch {
		case (m == nil || !m.connected && !m.reported) && time.Since(g.started) < settleTime:
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
		return refusedOutcome(v1.ReasonAgentReadOnly, m.whyWithheld(id))
	case excess(m.entry(id).set):
		return excessOutcome(m.name.Namespace)
	case m.connected && !m.accepts(id):
		return refusedOutcome(v1.ReasonAgentTooOld, refusalText(v1.ReasonAgentTooOld))
	case m.hasWanted(id):
		o := stateOutcome(has)
		if o.Since = m.entry(id).since; o.Stage == Pending && !m.connected {
			o.Stage = Away
		}
		return o
	case !m.connected:
		return Outcome{Stage: Away, Since: m.entry(id).since}
	case unchanged(m.entry(id).set) && m.refuses == "" && (m.synced || !m.leaderless):
		return Outcome{Stage: Unreported}
	case m.hold.Waits():
		return unconfirmedOutcome()
	case m.refuses != "":
		return refusedOutcome(m.refuses, refusalText(m.refuses))
	case f != nil && (f.refused || f.count >= patience):
		return failedOutcome(v1.ReasonDeliveryFailed, "It could not be sent: "+f.message)
	case !m.synced && m.leaderless:
		return failedOutcome(v1.ReasonNoLeader, "No replica of the agent leads, so nothing is delivered; see the condition "+
			v1.ConditionMaintained+" of the Cluster")
	case !m.synced:
		return Outcome{Stage: Unreported}
	}
	return Outcome{Stage: Pending, Since: m.entry(id).since}
}

func refusedOutcome(reason, message string) Outcome {
	return Outcome{Stage: Refused, Reason: reason, Failures: []v1.Failure{{Object: wholeSet, Message: message}}}
}

func failedOutcome(reason, message string) Outcome {
	return Outcome{Stage: Failed, Reason: reason, Failures: []v1.Failure{{Object: wholeSet, Message: message}}}
}

// excessOutcome returns the outcome of a set whose content the store does not keep.
func excessOutcome(workspace string) Outcome {
	return failedOutcome(v1.ReasonDeliveryFailed, fmt.Sprintf(
		"The hub does not deliver it, because the sets of workspace %s that are larger than %d KiB exceed %d MiB in total; "+
			"use fewer or smaller Baselines, or Secrets of plans and projects", workspace, largeSet>>10, maxLarge>>20))
}

// whyWithheld describes the state of a set in a Cluster with the ReadOnly profile.
func (m *member) whyWithheld(id string) string {
	const why = "spec.agent.profile of the Cluster is ReadOnly, so nothing is delivered"
	switch f := m.failed[id]; {
	case f != nil:
		return why + "; removing the existing objects failed: " + f.message
	case m.has[id] != nil && m.hold.Waits():
		return why + withheldUnconfirmed
	case m.has[id] != nil && m.connected:
		return why + "; the existing objects are being removed"
	case m.has[id] != nil:
		return why + "; the existing objects stay in force until the member connects, and are removed then"
	}
	return why
}

func refusalText(reason string) string {
	switch reason {
	case v1.ReasonAgentReadOnly:
		return "The agent has the ReadOnly profile and accepts nothing; set spec.agent.profile of the Cluster to Full " +
			"and apply its manifest in the member"
	case v1.ReasonIdentityMismatch:
		return "Two clusters have the identity of this Cluster, so the hub changes neither of them; " +
			"see its condition Ready"
	}
	return "The agent is too old to accept this; upgrade it"
}

// wholeSet is the object name for a failure that affects all objects of a set.
const wholeSet = "set"

// Explain describes a failure in one sentence. The sentence contains the reason. It also names the object, unless the
// failure affects all objects.
func Explain(f v1.Failure) string {
	if f.Object == wholeSet {
		return f.Message
	}
	return f.Object + ": " + f.Message
}

// stateOutcome converts the state that an agent reported into an outcome.
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
	case protocol.SetUnhealthy:
		o.Reason = v1.ReasonUnhealthy
	case protocol.SetForbidden:
		o.Reason = v1.ReasonForbidden
	case protocol.SetDrifted:
		o.Reason = v1.ReasonDrifted
	default: // pending, progressing, or expired according to a clock that is ahead of the hub's clock
		o.Stage = Pending
		return o
	}
	for _, object := range s.Objects {
		o.Failures = append(o.Failures, v1.Failure{Object: object.Object, Message: object.Message})
	}
	if len(o.Failures) == 0 {
		o.Failures = []v1.Failure{{Object: wholeSet, Message: cmp.Or(s.Message, "The agent reports "+string(s.Phase))}}
	}
	return o
}
