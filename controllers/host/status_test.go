// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	now := time.Now()
	joined := func(in *input) { in.identity = &registration.AgentIdentity{} }
	reports := func(p protocol.HostProgress) func(*input) {
		return func(in *input) {
			joined(in)
			in.version = p.Version
			in.state = members.State{Peers: []members.Peer{{}}, Report: &protocol.Report{Host: &protocol.HostReport{Progress: p}}}
		}
	}
	for name, tt := range map[string]struct {
		given   func(*input)
		state   v1.HostState
		ready   bool
		reason  string
		message string
		stalled bool
	}{
		"no agent has joined": {func(*input) {}, v1.HostWaitingToRegister, false, v1.ReasonAwaitingAgent, "Secret m-host-join", false},
		"the token expired": {func(in *input) { in.now = now.Add(25 * time.Hour) }, v1.HostWaitingToRegister, false, v1.ReasonTokenExpired,
			"delete Secret m-host-join", true},
		"a foreign Secret":           {func(in *input) { in.foreign = true }, v1.HostWaitingToRegister, false, v1.ReasonSecretConflict, "not Drover's", true},
		"the Secret is not there":    {func(in *input) { in.err = errors.New("no room") }, v1.HostWaitingToRegister, false, v1.ReasonRegistrationFailed, "no room", false},
		"an agent that is not there": {joined, v1.HostWaitingToRegister, false, v1.ReasonAwaitingReport, "not connected yet", false},
		"an agent that is lost while it installs": {func(in *input) { joined(in); in.host.Status.State = v1.HostInstalling }, v1.HostInstalling, false,
			v1.ReasonTunnelLost, "not connected", false},
		"an agent that has not reported": {func(in *input) { joined(in); in.state = members.State{Peers: []members.Peer{{}}} }, v1.HostWaitingToRegister, false,
			v1.ReasonAwaitingReport, "", false},
		"no instructions":  {reports(protocol.HostProgress{}), v1.HostAvailable, true, v1.ReasonHostAvailable, "no instructions", false},
		"instructions run": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1", Done: 1, Total: 3}, Phase: protocol.HostApplying}), v1.HostInstalling, false, v1.ReasonInstalling, "1 of 3", false},
		"an instruction failed": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1", Instruction: "a"}, Phase: protocol.HostFailed, Message: "exit code 3"}), v1.HostInstalling, false,
			v1.ReasonInstructionFailed, "a: exit code 3", true},
		"an instruction was interrupted": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1", Instruction: "a"}, Phase: protocol.HostInterrupted}), v1.HostInstalling, false,
			v1.ReasonInterrupted, "a: ", true},
		"a probe fails": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1", Failing: []string{"api"}}, Phase: protocol.HostApplied}), v1.HostWaitingForKubernetes, false,
			v1.ReasonWaitingForKubernetes, "api", false},
		"all is well": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1"}, Phase: protocol.HostApplied}), v1.HostActive, true, v1.ReasonActive, "", false},
		"two machines have its identity": {func(in *input) {
			reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1"}, Phase: protocol.HostApplied})(in)
			in.host.Status.State, in.state.Clones = v1.HostActive, &members.Clones{Agents: []string{"a/1", "b/2"}}
		}, v1.HostActive, false, v1.ReasonIdentityMismatch, "a/1 and b/2", true},
		"it cleans": {reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1", Total: 2}, Phase: protocol.HostCleaning}), v1.HostCleaning, false, v1.ReasonCleaning, "0 of 2", false},
		"instructions that have not arrived": {func(in *input) {
			reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1"}, Phase: protocol.HostApplied})(in)
			in.version = "2"
		},
			v1.HostInstalling, false, v1.ReasonInstalling, "on their way", false},
		"instructions that cannot be read": {func(in *input) {
			reports(protocol.HostProgress{HostProgress: v1.HostProgress{Version: "1"}, Phase: protocol.HostApplied})(in)
			in.version, in.invalid = "2", "no ID"
		},
			v1.HostActive, false, v1.ReasonInstructionsInvalid, "no ID", true},
		"an agent that refuses": {func(in *input) {
			reports(protocol.HostProgress{})(in)
			in.version, in.call.Err = "2", errors.New("the agent answers 409")
		}, v1.HostInstalling, false, v1.ReasonInstalling, "409", false},
		"an agent that may not join": {func(in *input) { in.state.Refusal = &members.Rejection{Reason: v1.ReasonTokenUsed, Message: "used"} }, v1.HostWaitingToRegister, false,
			v1.ReasonTokenUsed, "used", false},
		"a stranger shows nothing": {func(in *input) {
			in.state.Refusal = &members.Rejection{Reason: v1.ReasonTokenUsed, Message: "evil", Unproven: true}
		},
			v1.HostWaitingToRegister, false, v1.ReasonAwaitingAgent, "run the command", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "w", Name: "m"}}
			in := &input{host: host, member: Member(types.NamespacedName{Namespace: "w", Name: "m"}), now: now, token: registration.Token{Created: now, TTL: 24 * time.Hour}}
			tt.given(in)
			state, got := decide(in)
			if state != tt.state || got.Ready != tt.ready || got.Reason != tt.reason || got.Stalled != tt.stalled || !strings.Contains(got.Message, tt.message) {
				t.Errorf("got %s, %+v, want %+v", state, got, tt)
			}
		})
	}
}
