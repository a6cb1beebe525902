// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Pace specifies the order in which the members of a fleet start, how many of them start at the same time, and when
// they start. With the zero Pace, members start one after another until one of them fails.
type Pace struct {
	// Paused prevents more members from starting.
	Paused bool
	// Window is the time window in which members may start. A nil window is always open.
	Window *v1.TimeWindow
	// MaxConcurrent is the maximum number of members in which the plan is in progress at the same time. It is at least 1.
	MaxConcurrent int
	// MaxFailed is the number of members that may fail. If more members fail, no more members start.
	MaxFailed int
	// Waves start one after another. Members that are in none of these waves form the last wave.
	Waves []Wave
}

// Wave is a group of members that may apply the plan at the same time.
type Wave struct {
	Name string
	// Selector selects members that are in no earlier wave. A nil selector selects all such members.
	Selector *metav1.LabelSelector
	// Share is the percentage of the selected members that are in the wave, rounded up. The members are chosen by a
	// hash of their names, so that they are spread over all workspaces. 0 means all members.
	Share int
	// Soak is how long the wave must have been complete before the next wave may start.
	Soak time.Duration
	// NeedsApproval reports whether the wave may start only after a user has approved it.
	NeedsApproval bool
}

// PaceOf returns the pace that a Plan specifies.
func PaceOf(spec *v1.PlanSpec) Pace {
	p := Pace{Paused: spec.Paused, Window: spec.Window, MaxConcurrent: 1}
	r := spec.Rollout
	if r == nil {
		return p
	}
	p.MaxConcurrent, p.MaxFailed = max(int(r.MaxConcurrentClusters), 1), int(r.MaxFailedClusters)
	for _, w := range r.Waves {
		p.Waves = append(p.Waves, Wave{Name: w.Name, Selector: w.ClusterSelector, Soak: duration(w.Soak, 0),
			NeedsApproval: w.Approval == v1.ApprovalRequired})
	}
	return p
}

// PaceOfBaseline returns the pace that a Baseline specifies.
func PaceOfBaseline(spec *v1.BaselinePace) Pace {
	var plan v1.PlanSpec
	plan.Paused, plan.Rollout = spec.Paused, spec.Rollout
	return PaceOf(&plan)
}

// Status is the progress of a member according to the latest report of the member's agent.
type Status struct {
	// Revision is the revision that the report refers to. Hash is the hash of the work on each node.
	Revision, Hash string
	// Reason and Message come from the Complete condition.
	Reason, Message string
	// Busy reports whether the plan is in progress on any node.
	Busy bool
	// Counted reports whether the report contains counts of nodes. Complete is the number of nodes that have
	// completed the plan.
	Counted  bool
	Complete int
}

// StatusOf extracts the progress from the status of a member's Plan. It returns nil if there is none.
func StatusOf(s *v1.PlanStatus) *Status {
	if s == nil {
		return nil
	}
	out := &Status{Revision: s.Revision, Hash: s.LatestHash, Busy: len(s.Applying) > 0}
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionComplete); c != nil {
		out.Reason, out.Message = c.Reason, c.Message
	}
	if n := s.Nodes; n != nil {
		// stuck nodes are listed as applying but counted as failed, because they are making no progress
		out.Busy, out.Counted, out.Complete = n.Applying > 0, true, int(n.Complete)
	}
	return out
}

// Group counts members that belong together, for example the members of one workspace.
type Group struct {
	Members, Failed int
}

// HeldBack returns the groups in which no more members may start. The all result is true if no more members may start
// in any group. The allowed function returns how many of a number of members may fail.
//
// A group is held back if too many of its own members have failed. All groups are held back if too many members have
// failed even without counting the group with the most failures, so no single group can hold back the others. For each
// group, at most one more failure than allowed is counted, because the group is already held back at that point.
func HeldBack(groups map[string]Group, allowed func(members int) int) (held map[string]bool, all bool) {
	held = map[string]bool{}
	var members, failed, most int
	for name, g := range groups {
		limit := allowed(g.Members)
		if g.Failed > limit {
			held[name] = true
		}
		counted := min(g.Failed, limit+1)
		members, failed, most = members+g.Members, failed+counted, max(most, counted)
	}
	return held, failed-most > allowed(members)
}
