// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestProgressIsOfTheHostsCurrentInstructions(t *testing.T) {
	t.Parallel()
	running := Host{State: Running, Done: 2, Instruction: "i"}
	failed := Host{State: Failed, Done: 2, Instruction: "i", Output: "no space"}
	for name, tt := range map[string]struct {
		version string
		reason  string
		state   v1.HostState
		want    Host
	}{
		"no instructions":   {"", v1.ReasonHostAvailable, v1.HostAvailable, Host{}},
		"another version":   {"v1", v1.ReasonInstructionFailed, v1.HostInstalling, Host{}},
		"it is cleaned":     {"v2", v1.ReasonInstalling, v1.HostCleaning, Host{}},
		"they run":          {"v2", v1.ReasonInstalling, v1.HostInstalling, running},
		"a probe fails":     {"v2", "", v1.HostWaitingForKubernetes, Host{State: Unwell, Done: 2, Instruction: "i"}},
		"all is done":       {"v2", v1.ReasonActive, v1.HostActive, Host{State: Up, Done: 2, Instruction: "i"}},
		"one has failed":    {"v2", v1.ReasonInstructionFailed, v1.HostInstalling, failed},
		"one was killed":    {"v2", v1.ReasonInterrupted, v1.HostInstalling, failed},
		"they are not read": {"v2", v1.ReasonInstructionsInvalid, v1.HostInstalling, Host{State: Failed, Done: 2}},
	} {
		host := &v1.Host{Status: v1.HostStatus{
			State: tt.state, Progress: &v1.HostProgress{Version: "v2", Done: 2, Instruction: "i", Output: "no space"},
			Conditions: []metav1.Condition{{Type: v1.ConditionReady, Reason: tt.reason, Message: "why"}},
		}}
		tt.want.Message = "why"
		if got := OfHost(host, tt.version); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
	if got := OfHost(&v1.Host{}, "v2"); got != (Host{}) {
		t.Errorf("a Host without a status: got %+v, want nothing", got)
	}
}
