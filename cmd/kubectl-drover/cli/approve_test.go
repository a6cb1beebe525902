// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestAnApprovalReplacesItsPredecessorAndRemovesApprovalsOfFormerWaves(t *testing.T) {
	var approvals []v1.Approval
	g := Gated{Approvals: &approvals, Names: []string{"canary", "prod", "rest"}}
	for _, wave := range []string{"former", "canary", "prod", "rest"} {
		approvals = append(approvals, v1.Approval{Wave: wave, Revision: "1"})
	}
	setApproval(g, v1.Approval{Wave: "prod", Revision: "2"})
	var got []string
	for _, a := range approvals {
		got = append(got, a.Wave+" "+a.Revision)
	}
	if want := []string{"canary 1", "rest 1", "prod 2"}; !slices.Equal(got, want) {
		t.Errorf("the approvals are %v, want %v", got, want)
	}
}
