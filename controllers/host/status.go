// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// verdict is what a status says of a Host as a whole.
type verdict struct {
	state   v1.HostState
	ready   bool
	reason  string
	message string
	stalled bool
}

// writeStatus writes what is known of the host into its status.
func writeStatus(in *input) {
	s, report := &in.host.Status, in.report()
	if report != nil {
		s.Machine, s.Plan, s.AgentVersion = machine(report.Machine), planStatus(report), in.state.Report.AgentVersion
	}
	switch {
	case in.state.Connected():
		s.LastSeen = nil
	case in.identity == nil:
		s.Machine, s.Plan, s.AgentVersion, s.LastSeen = nil, nil, "", nil
	case !in.state.LastSeen.IsZero():
		s.LastSeen = &metav1.Time{Time: in.state.LastSeen.Truncate(1e9)}
	}
	if in.identity != nil && in.settling && report == nil && s.State != "" && s.State != v1.HostWaitingToRegister {
		return // it stays as it was until agents had time to come back
	}
	v := decide(in)
	s.State = v.state
	if others := in.inUse(); !in.host.DeletionTimestamp.IsZero() && len(others) > 0 {
		v.message = strings.TrimPrefix(v.message+"; it is being deleted, which waits for what uses it: "+strings.Join(others, ", "), "; ")
	}
	status.Readiness{Ready: v.ready, Stalled: v.stalled, Reason: v.reason, Message: v.message}.Write(in.host.Generation, &s.ObservedGeneration, &s.Conditions)
}

// decide says how a Host is. It is pure.
func decide(in *input) verdict {
	secret := registration.RegistrationSecret(in.member).Name
	report := in.report()
	switch {
	case in.foreign:
		return verdict{v1.HostWaitingToRegister, false, v1.ReasonSecretConflict, "Secret " + secret + " is there and is not Drover's; rename or delete it", true}
	case in.err != nil:
		return verdict{orWaiting(in), false, v1.ReasonRegistrationFailed, protocol.Cut(in.err.Error(), 512), false}
	case in.identity == nil && !in.now.Before(in.token.Expires()):
		return verdict{v1.HostWaitingToRegister, false, v1.ReasonTokenExpired, "no agent joined before the token expired; delete Secret " + secret + " for a new one", true}
	case in.identity == nil && in.state.Refusal != nil && !in.state.Refusal.Unproven:
		return verdict{v1.HostWaitingToRegister, false, in.state.Refusal.Reason, in.state.Refusal.Message, false}
	case in.identity == nil:
		return verdict{v1.HostWaitingToRegister, false, v1.ReasonAwaitingAgent, "run the command in Secret " + secret + " on the machine, as root", false}
	case !in.state.Connected() && orWaiting(in) == v1.HostWaitingToRegister && in.state.LastSeen.IsZero():
		return verdict{v1.HostWaitingToRegister, false, v1.ReasonAwaitingReport, "the agent has joined and has not connected yet", false}
	case !in.state.Connected():
		return verdict{orWaiting(in), false, v1.ReasonTunnelLost, "the agent is not connected", false}
	case report == nil:
		return verdict{orWaiting(in), false, v1.ReasonAwaitingReport, "the agent has not reported yet", false}
	case in.invalid != "":
		return verdict{stateOf(report.Progress), false, v1.ReasonPlanInvalid, in.invalid, true}
	}
	v := ofProgress(report.Progress)
	if in.held != nil {
		return v // the condition RestoreConfirmed says what waits
	}
	if in.version != "" && report.Progress.Version != in.version && report.Progress.Phase != protocol.HostCleaning {
		v = verdict{v1.HostInstalling, false, v1.ReasonInstalling, "the plan is on its way to the host", false}
	}
	if in.call.Err != nil {
		v.ready, v.message = false, protocol.Cut("the agent does not take what the hub sends: "+in.call.Err.Error(), 512)
	}
	return v
}

// orWaiting is the state as it was, of a host that does not say.
func orWaiting(in *input) v1.HostState {
	if in.identity != nil && in.host.Status.State != "" {
		return in.host.Status.State
	}
	return v1.HostWaitingToRegister
}

func stateOf(p protocol.HostProgress) v1.HostState { return ofProgress(p).state }

// ofProgress says how a host is that has reported.
func ofProgress(p protocol.HostProgress) verdict {
	switch {
	case p.Version == "":
		return verdict{v1.HostAvailable, true, v1.ReasonHostAvailable, "the host has no plan", false}
	case p.Phase == protocol.HostInterrupted:
		return verdict{v1.HostInstalling, false, v1.ReasonInterrupted, problem(p), true}
	case p.Phase == protocol.HostFailed:
		return verdict{v1.HostInstalling, false, v1.ReasonInstructionFailed, problem(p), true}
	case p.Phase == protocol.HostCleaning:
		return verdict{v1.HostCleaning, false, v1.ReasonCleaning, fmt.Sprintf("%d of %d instructions done", p.Done, p.Total), false}
	case p.Phase != protocol.HostApplied:
		return verdict{v1.HostInstalling, false, v1.ReasonInstalling, fmt.Sprintf("%d of %d instructions done", p.Done, p.Total), false}
	case len(p.Failing) > 0:
		return verdict{v1.HostWaitingForKubernetes, false, v1.ReasonWaitingForKubernetes, "waiting for the probes " + strings.Join(p.Failing, ", "), false}
	}
	return verdict{v1.HostActive, true, v1.ReasonActive, p.Message, false}
}

func failed(phase protocol.HostPhase) bool {
	return phase == protocol.HostFailed || phase == protocol.HostInterrupted
}

// problem says why a plan failed.
func problem(p protocol.HostProgress) string {
	if p.Instruction == "" {
		return p.Message
	}
	return p.Instruction + ": " + p.Message
}

func setCondition(host *v1.Host, kind string, state metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&host.Status.Conditions, metav1.Condition{Type: kind, Status: state, Reason: reason, Message: message, ObservedGeneration: host.Generation})
}

func planStatus(report *protocol.HostReport) *v1.HostPlanStatus {
	p := report.Progress
	if p.Version == "" {
		return nil
	}
	return &v1.HostPlanStatus{Version: p.Version, Done: p.Done, Total: p.Total, Instruction: p.Instruction, Output: p.Output, Failing: p.Failing}
}

func machine(m protocol.HostMachine) *v1.HostMachine {
	return &v1.HostMachine{
		Hostname: m.Hostname, OS: m.OS, Architecture: m.Architecture, Kernel: m.Kernel, CPUs: m.CPUs, Memory: fmt.Sprintf("%dMi", m.MemoryMiB),
		Addresses: m.Addresses, Roles: m.Roles, Labels: m.Labels, Taints: m.Taints,
	}
}
