// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

func TestObjectsStillInForceAreReportedUntilTheyAreGone(t *testing.T) {
	in := &input{cluster: &v1.Cluster{}}
	told := func(report *protocol.Report) *metav1.Condition {
		in.member = members.State{Report: report}
		writeWithdrawn(in, status.Begin(in.cluster))
		return meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionWithdrawn)
	}
	leader := func(left ...string) *protocol.Report {
		return &protocol.Report{Leader: true, Remnants: protocol.Remnants{Left: left}}
	}
	if c := told(leader()); c != nil {
		t.Errorf("nothing is left: %+v", c)
	}
	c := told(leader("crtb.alice", "project.web"))
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonStillInForce || !strings.Contains(c.Message, "crtb.alice, project.web") {
		t.Fatalf("the condition is %+v, want StillInForce with both sets", c)
	}
	for name, report := range map[string]*protocol.Report{"no report": nil, "one that does not lead": {}} {
		if told(report) == nil {
			t.Errorf("%s takes it away", name)
		}
	}
	if c := told(leader()); c != nil {
		t.Errorf("it is gone: %+v", c)
	}
	unclaimed := &protocol.Report{Leader: true, Remnants: protocol.Remnants{Unclaimed: []string{"RoleBinding web/drover:x"}}}
	if c := told(unclaimed); c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonUnclaimedObjects || !strings.Contains(c.Message, "RoleBinding web/drover:x") {
		t.Errorf("the condition is %+v, want UnclaimedObjects with the object", c)
	}
	unclaimed.Left = []string{"crtb.alice"}
	if c := told(unclaimed); c == nil || c.Reason != v1.ReasonStillInForce {
		t.Errorf("the condition is %+v, want StillInForce: what a person must remove first", c)
	}
}
