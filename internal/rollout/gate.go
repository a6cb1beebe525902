// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// ApprovedBy returns the user who has approved a revision for a wave, or "" if no user has. Approvals of other
// revisions do not count.
func ApprovedBy(wave, revision string, approvals []v1.Approval) string {
	for _, a := range approvals {
		if revision != "" && a.Wave == wave && a.Revision == revision {
			return a.ApprovedBy
		}
	}
	return ""
}

// RecordApprovals adds the times of approvals to the waves of a status, and returns the waves that have been approved
// since the status had the waves before. If the current revision is not known, it cannot be approved. Earlier approvals
// that the spec still contains are then kept, because they count again when the revision is known.
func RecordApprovals(
	waves, before []v1.WaveStatus, approvals []v1.Approval, known bool, now time.Time,
) []v1.WaveStatus {
	var approved []v1.WaveStatus
	for i := range waves {
		w := &waves[i]
		if w.Approval == nil {
			continue
		}
		was := approvedBefore(w.Name, before, approvals)
		switch {
		case !known:
			w.Approval = &was
		case w.Approval.ApprovedBy == "":
		case was.Revision == w.Approval.Revision:
			w.Approval.ApprovedAt = was.ApprovedAt
		default:
			w.Approval.ApprovedAt = new(metav1.NewTime(now))
			approved = append(approved, *w)
		}
	}
	return approved
}

// approvedBefore returns the approval of a wave in the status, if it is an approval that the spec contains.
func approvedBefore(wave string, before []v1.WaveStatus, approvals []v1.Approval) v1.WaveApproval {
	for _, b := range before {
		if was := b.Approval; b.Name == wave && was != nil && was.ApprovedBy != "" &&
			ApprovedBy(wave, was.Revision, approvals) == was.ApprovedBy {
			return *was
		}
	}
	return v1.WaveApproval{}
}

// closedGate returns the first wave that needs an approval and has none. It returns the number of waves if there is no
// such wave. No work starts in that wave or any later wave, even if the later waves are approved.
func (f *Fleet) closedGate() int {
	for i, w := range f.plan.Pace.Waves {
		if w.NeedsApproval && ApprovedBy(w.Name, f.plan.ApprovalRevision, f.plan.Approvals) == "" {
			return i
		}
	}
	return len(f.waves)
}

// approvalOf returns the status of a wave's approval, or nil if the wave does not need one.
func (f *Fleet) approvalOf(i int) *v1.WaveApproval {
	if i >= len(f.plan.Pace.Waves) || !f.plan.Pace.Waves[i].NeedsApproval {
		return nil
	}
	revision := f.plan.ApprovalRevision
	return &v1.WaveApproval{Revision: revision, ApprovedBy: ApprovedBy(f.waves[i].name, revision, f.plan.Approvals)}
}

// unapproved reports whether a member belongs to a wave in which no work may start.
func (f *Fleet) unapproved(c *Cluster) bool {
	if f.gate == len(f.waves) {
		return false
	}
	i, found := slices.BinarySearchFunc(f.clusters, c.Name, func(c Cluster, name string) int {
		return cmp.Compare(c.Name, name)
	})
	return found && f.of[i] >= f.gate
}

// slotUnapproved reports whether a member occupies a slot in which no work may start.
func (f *Fleet) slotUnapproved() bool {
	for i := range f.clusters {
		if c := &f.clusters[i]; f.of[i] >= f.gate && f.current(c) && f.takes(c) {
			return true
		}
	}
	return false
}

// awaitApproval returns the reason to wait for an approval. It returns the zero value if no member would start or
// continue.
func (f *Fleet) awaitApproval() Wait {
	waiting := 0
	for i := range f.clusters {
		c := &f.clusters[i]
		switch {
		case f.of[i] < f.gate:
		case f.current(c) && c.Claim.Complete == nil && c.Claim.Failed == nil,
			!f.current(c) && c.Away == "" && f.held(c) == "":
			waiting++
		}
	}
	if waiting == 0 {
		return Wait{}
	}
	kind, name := "plan", f.plan.Name
	if f.plan.Baseline != "" {
		kind, name = "baseline", f.plan.Baseline
	}
	return Wait{Reason: v1.ReasonAwaitingApproval, Message: fmt.Sprintf(
		"wave %s requires approval before %s can continue: review the %s and run \"kubectl drover %[3]s approve %[4]s\", "+
			"or add the approval of revision %[5]s to spec.approvals",
		f.waves[f.gate].name, Clusters(waiting), kind, name, f.plan.ApprovalRevision)}
}
