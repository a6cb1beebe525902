// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// maxAheadNamed is the maximum number of members that a message names.
const maxAheadNamed = 5

// Ahead records that a member was ahead of the hub, because the hub was restored to an earlier state.
type Ahead struct {
	// Found is the revision that the member had completed.
	Found string `json:"found"`
	// Plan is the revision that the hub would otherwise have delivered to the member.
	Plan string `json:"plan"`
}

// ahead reports whether a member whose claim is complete has nodes with a revision that this hub has never delivered to
// the member. A revision does not count if its hash is the hash of the current plan or the hash in the Cluster's label.
// For a member that is applying the plan, the result is false, because such a member may still report an earlier
// revision.
func (f *Fleet) ahead(c *Cluster) bool {
	s := c.Status
	if c.Claim == nil || c.Claim.Complete == nil || s == nil || !s.Counted {
		return false
	}
	if s.Revision == f.plan.Revision {
		// The member compared its nodes with the plan's current revision. No node has this revision, even though the claim is
		// complete.
		return f.current(c) && !f.plan.Pace.Paused && s.Reason == v1.ReasonPaused && s.Complete == 0
	}
	if s.Complete == 0 || s.Revision == "" || s.Revision == c.Claim.Revision ||
		s.Hash == f.plan.Hash || s.Hash == c.Labels[v1.PlanLabel(f.plan.Name)] {
		return false
	}
	return f.current(c) || s.Reason == v1.ReasonComplete
}

// unlooked reports whether a member's claim is complete but the member reports a different revision. Such a member
// first receives the plan with paused set, and then reports how many of its nodes have completed the plan.
func (f *Fleet) unlooked(c *Cluster) bool {
	return f.current(c) && c.Claim.Complete != nil && c.Status != nil && c.Status.Revision != f.plan.Revision
}

// halted returns the reason to wait for a user's decision if any member is ahead. Changing the plan is such a decision.
func (f *Fleet) halted() Wait {
	var names []string
	for i := range f.clusters {
		c := &f.clusters[i]
		if f.of[i] >= 0 && c.Claim != nil && c.Claim.Ahead != nil && c.Claim.Ahead.Plan == f.plan.Revision {
			names = append(names, c.Name)
		}
	}
	if len(names) == 0 || f.plan.Resume == f.plan.Revision {
		return Wait{}
	}
	which := strings.Join(names[:min(len(names), maxAheadNamed)], ", ")
	if more := len(names) - maxAheadNamed; more > 0 {
		which += fmt.Sprintf(" and %d more", more)
	}
	return Wait{Reason: v1.ReasonMemberAhead, Message: fmt.Sprintf(
		"%s completed another revision of this plan, which this hub did not give: %s. "+
			"The hub may have been restored from an older backup. Apply the plan that you want now; "+
			"or, to run this one there again, wave by wave, annotate it %s=%s",
		Clusters(len(names)), which, v1.AnnotationResume, f.plan.Revision)}
}

// asked returns the reason to wait if members with a claim have not reported the state of the plan yet. No member
// starts until all of them have reported, because they may be ahead.
func (f *Fleet) asked() Wait {
	n := 0
	for i := range f.clusters {
		if c := &f.clusters[i]; f.of[i] >= 0 && c.Claim != nil && c.Unreported && c.Away == "" {
			n++
		}
	}
	if n == 0 {
		return Wait{}
	}
	return Wait{Reason: v1.ReasonApplying, Message: Clusters(n) + " asked for the state of the plan"}
}
