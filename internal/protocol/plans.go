// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// FeaturePlans in Report.Features means that the agent runs Plans and reports them on PathReport. It reports the
// member's PlanHold and, at most once per second, the status of each Plan from the hub's sets. Older agents have the
// feature "plans" and a separate stream.
const FeaturePlans = "plans/2"

// FeatureUpgradeChecks in Report.Features means that the agent checks the member before a Plan starts there, and that
// Plans in the member can have gates.
const FeatureUpgradeChecks = "upgrade-checks"

// PlanEvent is an event about Plans in a Line. Exactly one of its fields is set.
type PlanEvent struct {
	// Hold describes whether the member currently runs Plans. It is sent as the first event and after each change.
	Hold *PlanHold `json:"hold,omitempty"`
	// State is the state of a new or changed Plan.
	State *PlanState `json:"state,omitempty"`
	// Removed is the name of a removed Plan.
	Removed string `json:"removed,omitempty"`
	// Synced means that all existing Plans have been sent.
	Synced bool `json:"synced,omitempty"`
	// Stopped means that the replica is no longer the leader. No more changes follow until the replica becomes the
	// leader again.
	Stopped bool `json:"stopped,omitempty"`
}

// PlanHold describes whether a member currently runs Plans.
type PlanHold struct {
	// Reason explains why the member does not run Plans. It is empty if the member runs Plans. It is at most 512 bytes
	// long.
	Reason string `json:"reason,omitempty"`
}

// PlanState is the state of a Plan in the member.
type PlanState struct {
	// Name is the name of the Plan.
	Name string `json:"name"`
	// Status is the status of the Plan in the member. Its Revision identifies the Plan on the hub.
	Status v1.PlanStatus `json:"status"`
}

// Bound trims an event to its limits.
func (e *PlanEvent) Bound() {
	e.Removed = Cut(e.Removed, maxText)
	if e.Hold != nil {
		e.Hold.Reason = Cut(e.Hold.Reason, maxMessage)
	}
	if e.State != nil {
		e.State.Bound()
	}
}

// Bound trims a state to its limits, and removes the fields that only the hub sets.
func (s *PlanState) Bound() {
	s.Name = Cut(s.Name, maxText)
	st := &s.Status
	st.LatestVersion, st.LatestHash = Cut(st.LatestVersion, maxText), Cut(st.LatestHash, maxText)
	st.Revision = Cut(st.Revision, maxText)
	st.Clusters, st.Waves, st.Members = nil, nil, nil
	if n := st.Nodes; n != nil {
		total, complete := max(n.Total, 0), max(n.Complete, 0)
		st.Nodes = &v1.PlanCount{
			Total: total, Complete: complete, Applying: max(n.Applying, 0), Failed: max(n.Failed, 0), Held: max(n.Held, 0),
			LeftOut: max(n.LeftOut, 0), Summary: fmt.Sprintf("%d/%d", complete, total),
		}
	}
	st.Conditions = slices.Clone(st.Conditions[:min(len(st.Conditions), maxConditions)])
	for i := range st.Conditions {
		c := &st.Conditions[i]
		c.Type, c.Reason, c.Message = Cut(c.Type, maxText), Cut(c.Reason, maxText), Cut(c.Message, maxMessage)
		c.Status = metav1.ConditionStatus(Cut(string(c.Status), maxText))
	}
	st.Applying = applying(st.Applying)
	st.Failures = failures(st.Failures)
	if st.Gates != nil {
		st.Gates = &v1.GateStatus{Findings: findings(st.Gates.Findings)}
	}
}

// findings keeps only a few findings, which the schema of Plans accepts.
func findings(all []v1.UpgradeFinding) []v1.UpgradeFinding {
	var kept []v1.UpgradeFinding
	for _, f := range all[:min(len(all), v1.MaxMemberFindings)] {
		kept = append(kept, v1.UpgradeFinding{
			Check: Cut(printable(f.Check, ""), maxText), Object: Cut(printable(f.Object, ""), maxObject),
			Cause: Cut(printable(f.Cause, ""), maxObject), Remedy: Cut(printable(f.Remedy, ""), maxObject),
		})
	}
	return kept
}

// applying keeps only the entries that the schema of Plans accepts. An invalid entry in one member's report could
// prevent the hub from writing the status that covers all members.
func applying(all []v1.ApplyingNode) []v1.ApplyingNode {
	known := map[string]bool{}
	var kept []v1.ApplyingNode
	for _, a := range all {
		a.Cluster, a.Node = "", Cut(a.Node, maxMessage)
		if len(kept) == v1.MaxPlanNodes || known[a.Node] || !Dated(a.Since.Time) || !slices.Contains(stages(), a.Stage) {
			continue
		}
		known[a.Node] = true
		kept = append(kept, a)
	}
	return kept
}

func stages() []v1.NodeStage {
	return []v1.NodeStage{
		v1.StagePreparing, v1.StageCordoning, v1.StageDraining,
		v1.StageUpgrading, v1.StageSettling, v1.StageWaiting,
	}
}

// failures keeps only the failures that the schema of Plans accepts. An invalid failure in one member's report could
// prevent the hub from writing the status that covers all members.
func failures(all []v1.NodeFailure) []v1.NodeFailure {
	known := map[string]bool{}
	var kept []v1.NodeFailure
	for _, f := range all {
		f.Cluster, f.Node, f.Reason = "", Cut(f.Node, maxMessage), Cut(f.Reason, maxText)
		// an unprintable character would take six bytes in JSON
		f.Message, f.Log = Cut(printable(f.Message, "\n\t"), maxMessage), Cut(printable(f.Log, "\n\t"), maxLog)
		if len(kept) == v1.MaxPlanNodes || known[f.Node] || !Dated(f.At.Time) {
			continue
		}
		known[f.Node] = true
		kept = append(kept, f)
	}
	return kept
}

// lastYear is the latest year that is allowed in times from members. It is less than 9999, the last year that JSON can
// represent, so that durations can be added to a time.
const lastYear = 8999

// Dated reports whether a time can be written into a status. The zero time cannot be written, and neither can a time in
// the distant future. The year 9999 in one time zone may be the year 10000 in UTC, and the API server would then reject
// the whole status.
func Dated(t time.Time) bool {
	year := t.UTC().Year()
	return !t.IsZero() && year >= 1 && year <= lastYear
}

// Limits for a PlanState.
const (
	maxConditions = 8
	maxObject     = 256
	maxLog        = 1024 // in bytes; the schema limits a failure's log to the same number of characters
)
