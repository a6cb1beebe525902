// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/status"
)

func TestRestoreIsReported(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 60 {
		many = append(many, fmt.Sprintf("crtb/%02d", i))
	}
	var difference *checkpoint.Difference
	known := true
	r := &Reconciler{Sets: Sets{Unconfirmed: func(types.NamespacedName) (*checkpoint.Difference, bool) { return difference, known }}}
	in := &input{cluster: &v1.Cluster{}, name: types.NamespacedName{Namespace: "team-a", Name: "prod"}}
	state := &in.cluster.Status
	write := func() { r.writeUnconfirmed(in, status.Begin(in.cluster)) }

	if write(); state.Restore != nil {
		t.Errorf("without a difference the status is %+v", state)
	}
	difference = &checkpoint.Difference{Checkpoint: "lease/1/a/2", Add: many, Remove: []string{"project/web"}}
	write()
	condition := meta.FindStatusCondition(state.Conditions, v1.ConditionRestoreConfirmed)
	if condition == nil || condition.Status != "False" || condition.Reason != v1.ReasonHubRestored {
		t.Fatalf("the condition is %+v", condition)
	}
	if r := state.Restore; len(r.Add) != 50 || len(r.Change) != 0 || r.Remove[0] != "project/web" || r.Checkpoint != "lease/1/a/2" || r.Summary != "60 to add, 0 to change, 1 to remove" {
		t.Errorf("the status is %+v", r)
	}
	hidden := state.Restore.Digest
	difference = &checkpoint.Difference{Checkpoint: "lease/1/a/2", Add: append(many[:59:59], "crtb/zz-admin"), Remove: []string{"project/web"}}
	if write(); len(hidden) != 64 || state.Restore.Digest == hidden {
		t.Errorf("the digest was %s and is %s after a set that is not named became another", hidden, state.Restore.Digest)
	}
	known, difference = false, nil
	if write(); state.Restore == nil {
		t.Error("it is dropped while it is not known")
	}
	known = true
	if write(); state.Restore != nil || meta.FindStatusCondition(state.Conditions, v1.ConditionRestoreConfirmed) != nil {
		t.Errorf("after the confirmation the status is %+v", state)
	}
}
