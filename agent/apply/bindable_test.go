// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

func TestOnlyAnUnchangedRoleOfDroverIsBound(t *testing.T) {
	t.Parallel()
	problem := func(phase protocol.SetPhase) *protocol.SetObject {
		return &protocol.SetObject{Object: "ClusterRole drover:cluster:x", Phase: phase, Message: "the cause"}
	}
	for name, tt := range map[string]struct {
		role   roleState
		passes int
		phase  protocol.SetPhase // empty if the role is bound
		away   bool
	}{
		"a role that exists is bound": {roleState{brought: true, there: true}, 0, "", false},
		"a role that is being applied again stays bound": {roleState{brought: true, there: true,
			problem: problem(protocol.SetFailed)}, 0, "", false},
		"a role of another client is not bound, and its binding is removed": {roleState{brought: true,
			problem: problem(protocol.SetConflict)}, 0, protocol.SetConflict, true},
		"a role that another client keeps changing is not bound either": {roleState{brought: true, there: true,
			problem: problem(protocol.SetFighting)}, 0, protocol.SetFighting, true},
		"a role that cannot be applied is not bound, but its binding stays": {roleState{brought: true,
			problem: problem(protocol.SetFailed)}, 0, protocol.SetFailed, false},
		"a role that a set contains is waited for": {roleState{brought: true}, patientPasses - 1,
			protocol.SetPending, false},
		"a role that no set contains is waited for, and its binding is removed": {roleState{}, 0, protocol.SetPending, true},
		"a role that no set contains for long is missing": {roleState{}, patientPasses, protocol.SetRoleMissing,
			true},
		"a role that a set contains but that stays absent is missing too": {roleState{brought: true}, patientPasses,
			protocol.SetRoleMissing, false},
	} {
		t.Run(name, func(t *testing.T) {
			phase, message, away := tt.role.whyNotBound("drover:cluster:x", tt.passes)
			if phase != tt.phase || away != tt.away || (message == "") != (tt.phase == "") {
				t.Errorf("got phase %q, removed %t, message %q; want phase %q, removed %t", phase, away, message, tt.phase, tt.away)
			}
		})
	}
}

func TestARoleRemainsOnlyForABaselineThatIsBeingRemoved(t *testing.T) {
	t.Parallel()
	const role = "drover:cluster:x"
	bound := []*unstructured.Unstructured{{Object: map[string]any{"kind": kindClusterRoleBinding,
		"roleRef": map[string]any{"kind": kindClusterRole, "name": role}}}}
	for name, tt := range map[string]struct {
		content  set.Content
		deleting bool
		want     bool
	}{
		"a Baseline that is being removed": {set.Content{Objects: bound, Baseline: &set.BaselineContent{}}, true, true},
		"a Baseline that stays, so that its role can be revoked": {
			set.Content{Objects: bound, Baseline: &set.BaselineContent{}}, false, false},
		"a binding that is being removed": {set.Content{Objects: bound}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			roles, s := newRoleSets(), &localSet{id: "s", content: tt.content, deleting: tt.deleting}
			roles.follow(s)
			if got := roles.last[role]["s"]; got != tt.want {
				t.Errorf("got that the role remains for it: %t, want %t", got, tt.want)
			}
			if got, want := roles.neededBy(map[string]bool{"s": true}, true)[role], tt.content.Baseline != nil; got != want {
				t.Errorf("got that the role remains at first: %t, want %t", got, want)
			}
			if roles.forget(s); len(roles.last) > 0 {
				t.Errorf("got %v after the set is gone, want no roles that remain", roles.last)
			}
		})
	}
}
