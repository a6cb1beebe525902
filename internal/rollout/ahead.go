// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// maxAheadNamed is how many members a message names.
const maxAheadNamed = 5

// Ahead says that a member had done more than its hub knew of: the hub was restored from an older state.
type Ahead struct {
	// Found is the revision that the member had completed.
	Found string `json:"found"`
	// Plan is the revision that the hub would have given it instead.
	Plan string `json:"plan"`
}

// ahead says whether nodes of a member that is complete, as its claim says, have done a revision that this hub never gave it. Work that the plan
// as it is now does as well, or as the Cluster's label says, does not count. Of a member that is at work nothing can be said: it may speak of
// what it was given before.
func (f *Fleet) ahead(c *Cluster) bool {
	s := c.Status
	if c.Claim == nil || c.Claim.Complete == nil || s == nil || s.Nodes == nil {
		return false
	}
	reason := reasonOf(s)
	if s.Revision == f.plan.Revision {
		// It was looked at, and has nothing of what the claim says.
		return f.current(c) && !f.plan.Spec.Paused && reason == v1.ReasonPaused && s.Nodes.Complete == 0
	}
	if s.Nodes.Complete == 0 || s.Revision == "" || s.Revision == c.Claim.Revision ||
		s.LatestHash == f.plan.Hash || s.LatestHash == c.Labels[v1.PlanLabel(f.plan.Name)] {
		return false
	}
	return f.current(c) || reason == v1.ReasonComplete
}

// unlooked says whether a member is complete by its claim and speaks of another revision: it is given the plan paused first, and says then
// whether its nodes have it.
func (f *Fleet) unlooked(c *Cluster) bool {
	return f.current(c) && c.Claim.Complete != nil && c.Status != nil && c.Status.Revision != f.plan.Revision
}

// halted is why a plan does not go on before a person says so. A plan that has been changed since has had its word.
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
		"%s completed another revision of this plan, which this hub did not give: %s. The hub may have been restored from an older backup. "+
			"Apply the plan as it should be now; or, to run this one there again, wave by wave, annotate it %s=%s",
		Clusters(len(names)), which, v1.AnnotationResume, f.plan.Revision)}
}

// asked is how many members that have the plan are about to say how it is there. Until they have, none begins: they may be ahead.
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
	return Wait{Reason: v1.ReasonApplying, Message: Clusters(n) + " asked how the plan is there"}
}
