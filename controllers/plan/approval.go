// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// recordApprovals adds the times of approvals to the waves in the status, and returns the waves that have been approved
// since the status had the given waves. While the plan has a problem, its revision is unknown and cannot be approved.
func (s *scope) recordApprovals(before []v1.WaveStatus, now metav1.Time) (approved []v1.WaveStatus) {
	for i := range s.plan.Status.Waves {
		w := &s.plan.Status.Waves[i]
		if w.Approval != nil && s.problem != nil {
			w.Approval = &v1.WaveApproval{}
		}
		if w.Approval == nil || w.Approval.ApprovedBy == "" {
			continue
		}
		at := slices.IndexFunc(before, func(b v1.WaveStatus) bool {
			return b.Name == w.Name && b.Approval != nil && b.Approval.Revision == w.Approval.Revision &&
				b.Approval.ApprovedBy == w.Approval.ApprovedBy
		})
		if at >= 0 {
			w.Approval.ApprovedAt = before[at].Approval.ApprovedAt
			continue
		}
		w.Approval.ApprovedAt = &now
		approved = append(approved, *w)
	}
	return approved
}
