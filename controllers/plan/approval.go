// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

// recordApprovals adds the times of approvals to the waves in the status, and returns the waves that have been approved
// since the status had the given waves. While the plan has a problem, its revision is unknown and cannot be approved.
// Earlier approvals that the spec still contains are kept, because they count again after the problem.
func (s *scope) recordApprovals(before []v1.WaveStatus, now metav1.Time) (approved []v1.WaveStatus) {
	for i := range s.plan.Status.Waves {
		w := &s.plan.Status.Waves[i]
		if w.Approval == nil {
			continue
		}
		was := s.approvedBefore(w.Name, before)
		switch {
		case s.problem != nil:
			w.Approval = &was
		case w.Approval.ApprovedBy == "":
		case was.Revision == w.Approval.Revision:
			w.Approval.ApprovedAt = was.ApprovedAt
		default:
			w.Approval.ApprovedAt = &now
			approved = append(approved, *w)
		}
	}
	return approved
}

// approvedBefore returns the approval of a wave in the status, if it is an approval that the spec contains.
func (s *scope) approvedBefore(wave string, before []v1.WaveStatus) v1.WaveApproval {
	for _, b := range before {
		if was := b.Approval; b.Name == wave && was != nil && was.ApprovedBy != "" &&
			rollout.ApprovedBy(wave, was.Revision, s.plan.Spec.Approvals) == was.ApprovedBy {
			return *was
		}
	}
	return v1.WaveApproval{}
}
