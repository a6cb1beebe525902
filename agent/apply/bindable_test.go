// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"testing"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestOnlyARoleThatIsAsDroverMakesItIsBound(t *testing.T) {
	t.Parallel()
	problem := func(phase protocol.SetPhase) *protocol.SetObject {
		return &protocol.SetObject{Object: "ClusterRole drover:cluster:x", Phase: phase, Message: "the cause"}
	}
	for name, tt := range map[string]struct {
		role   roleState
		passes int
		phase  protocol.SetPhase // empty: it is bound
		away   bool
	}{
		"one that is there is bound": {roleState{brought: true, there: true}, 0, "", false},
		"one that is there and is applied again stays bound": {roleState{brought: true, there: true,
			problem: problem(protocol.SetFailed)}, 0, "", false},
		"one of another client is not, and a binding of it goes": {roleState{brought: true,
			problem: problem(protocol.SetConflict)}, 0, protocol.SetConflict, true},
		"one that another client keeps changing, too": {roleState{brought: true, there: true,
			problem: problem(protocol.SetFighting)}, 0, protocol.SetFighting, true},
		"one that cannot be applied is not, and a binding of it stays": {roleState{brought: true,
			problem: problem(protocol.SetFailed)}, 0, protocol.SetFailed, false},
		"one that is on its way is waited for": {roleState{brought: true}, patientPasses - 1,
			protocol.SetPending, false},
		"one that no set contains is waited for, and a binding goes": {roleState{}, 0, protocol.SetPending, true},
		"one that no set contains for long is missing": {roleState{}, patientPasses, protocol.SetRoleMissing,
			true},
		"one that a set contains and that is not there for long, too": {roleState{brought: true}, patientPasses,
			protocol.SetRoleMissing, false},
	} {
		t.Run(name, func(t *testing.T) {
			phase, message, away := tt.role.whyNotBound("drover:cluster:x", tt.passes)
			if phase != tt.phase || away != tt.away || (message == "") != (tt.phase == "") {
				t.Errorf("phase %q, removed %t, message %q; want phase %q, removed %t", phase, away, message, tt.phase, tt.away)
			}
		})
	}
}
