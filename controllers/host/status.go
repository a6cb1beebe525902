// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// writeStatus writes the facts about the host to the Host's status.
func writeStatus(in *input) {
	s, report := &in.host.Status, in.report()
	if report != nil && in.state.Clones == nil {
		// if two machines share an identity, it is unknown which of them sent the report
		s.Machine, s.Progress = machine(report.Machine), shown(&report.Progress)
		s.AgentVersion, s.ReportedTo = in.state.Report.AgentVersion, in.term
	}
	switch {
	case in.state.Connected():
		s.LastSeen = nil
	case in.identity == nil:
		s.Machine, s.Progress, s.AgentVersion, s.ReportedTo, s.LastSeen = nil, nil, "", "", nil
	case !in.state.LastSeen.IsZero():
		s.LastSeen = &metav1.Time{Time: in.state.LastSeen.Truncate(1e9)}
	}
	if in.identity != nil && in.settling && report == nil && s.State != "" && s.State != v1.HostWaitingToRegister {
		return // the status stays unchanged until agents have had time to reconnect
	}
	state, v := decide(in)
	s.State = state
	if others := in.inUse(); !in.host.DeletionTimestamp.IsZero() && len(others) > 0 {
		v.Message = strings.TrimPrefix(v.Message+"; it is being deleted, which waits for its users: "+strings.Join(others, ", "), "; ")
	}
	if in.foreign && in.identity != nil {
		v.Message = strings.TrimPrefix(v.Message+"; Secret "+registration.RegistrationSecret(in.member).Name+" is there and is not Drover's: run no command from it, and delete it", "; ")
	}
	v.Write(in.host.Generation, &s.ObservedGeneration, &s.Conditions)
}

// decide returns the state and the readiness of a Host. It has no side effects.
func decide(in *input) (v1.HostState, status.Readiness) {
	secret := registration.RegistrationSecret(in.member).Name
	report := in.report()
	switch {
	case in.foreign && in.identity == nil: // an agent that has joined needs no token
		return v1.HostWaitingToRegister, status.Readiness{Stalled: true, Reason: v1.ReasonSecretConflict, Message: "Secret " + secret +
			" is there and is not Drover's: run no command from it; delete it, and Drover makes one with a join token"}
	case in.err != nil && !contended(in.err):
		return orWaiting(in), status.Readiness{Reason: v1.ReasonRegistrationFailed, Message: protocol.Cut(in.err.Error(), 512)}
	case in.identity == nil && !in.now.Before(in.token.Expires()):
		return v1.HostWaitingToRegister, status.Readiness{Stalled: true, Reason: v1.ReasonTokenExpired, Message: "no agent joined before the token expired; delete Secret " + secret + " for a new one"}
	case in.identity == nil && in.state.Refusal != nil && !in.state.Refusal.Unproven:
		return v1.HostWaitingToRegister, status.Readiness{Reason: in.state.Refusal.Reason, Message: in.state.Refusal.Message}
	case in.identity == nil:
		return v1.HostWaitingToRegister, status.Readiness{Reason: v1.ReasonAwaitingAgent, Message: "run the command in Secret " + secret + " on the machine, as root"}
	case in.state.Clones != nil:
		return orWaiting(in), status.Readiness{Stalled: true, Reason: v1.ReasonIdentityMismatch, Message: fmt.Sprintf(
			"two machines have the identity of this Host, as when a disk was copied: their agents are %s. Neither is given "+
				"anything. Stop the agent on the copy, remove its configuration there, and join the copy as a Host of its own",
			strings.Join(in.state.Clones.Agents, " and "))}
	case !in.state.Connected() && orWaiting(in) == v1.HostWaitingToRegister && in.state.LastSeen.IsZero():
		return v1.HostWaitingToRegister, status.Readiness{Reason: v1.ReasonAwaitingReport, Message: "the agent has joined and has not connected yet"}
	case !in.state.Connected():
		return orWaiting(in), status.Readiness{Reason: v1.ReasonTunnelLost, Message: "the agent is not connected"}
	case report == nil:
		return orWaiting(in), status.Readiness{Reason: v1.ReasonAwaitingReport, Message: "the agent has not reported yet"}
	case in.invalid != "":
		return stateOf(report.Progress), status.Readiness{
			Stalled: true, Reason: v1.ReasonInstructionsInvalid, Message: in.invalid,
		}
	}
	state, v := ofProgress(report.Progress)
	if in.held != nil {
		return state, v // the RestoreConfirmed condition lists the changes
	}
	if in.version != "" && report.Progress.Version != in.version && report.Progress.Phase != protocol.HostCleaning {
		state, v = v1.HostInstalling, status.Readiness{Reason: v1.ReasonInstalling, Message: "the instructions are on their way to the host"}
	}
	if in.call.Err != nil {
		v.Ready, v.Message = false, protocol.Cut("the agent refuses what the hub sends:  "+in.call.Err.Error(), 512)
	}
	return state, v
}

// contended reports whether a write failed because another client wrote first. Such a failure is not shown as a
// problem, because the Host is reconciled again.
func contended(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// orWaiting returns the state of a host that does not report its state: the previous state in the status if there is
// one, or Waiting.
func orWaiting(in *input) v1.HostState {
	if in.identity != nil && in.host.Status.State != "" {
		return in.host.Status.State
	}
	return v1.HostWaitingToRegister
}

func stateOf(p protocol.HostProgress) v1.HostState {
	state, _ := ofProgress(p)
	return state
}

// ofProgress derives the state and the readiness of a host from the progress that the host has reported.
func ofProgress(p protocol.HostProgress) (v1.HostState, status.Readiness) {
	switch {
	case p.Version == "":
		return v1.HostAvailable, status.Readiness{Ready: true, Reason: v1.ReasonHostAvailable, Message: "the host has no instructions"}
	case p.Phase == protocol.HostInterrupted:
		return v1.HostInstalling, status.Readiness{Stalled: true, Reason: v1.ReasonInterrupted, Message: problem(p)}
	case p.Phase == protocol.HostFailed:
		return v1.HostInstalling, status.Readiness{Stalled: true, Reason: v1.ReasonInstructionFailed, Message: problem(p)}
	case p.Phase == protocol.HostCleaning:
		return v1.HostCleaning, status.Readiness{Reason: v1.ReasonCleaning, Message: fmt.Sprintf("%d of %d instructions done", p.Done, p.Total)}
	case p.Phase != protocol.HostApplied:
		return v1.HostInstalling, status.Readiness{Reason: v1.ReasonInstalling, Message: fmt.Sprintf("%d of %d instructions done", p.Done, p.Total)}
	case len(p.Failing) > 0:
		return v1.HostWaitingForKubernetes, status.Readiness{Reason: v1.ReasonWaitingForKubernetes, Message: "waiting for the probes " + strings.Join(p.Failing, ", ")}
	}
	return v1.HostActive, status.Readiness{Ready: true, Reason: v1.ReasonActive, Message: p.Message}
}

func failed(phase protocol.HostPhase) bool {
	return phase == protocol.HostFailed || phase == protocol.HostInterrupted
}

// problem explains why instructions failed.
func problem(p protocol.HostProgress) string {
	if p.Instruction == "" {
		return p.Message
	}
	return p.Instruction + ": " + p.Message
}

// shown returns the part of a report that is copied to the Host's status, or nil if the host has no instructions.
func shown(p *protocol.HostProgress) *v1.HostProgress {
	if p.Version == "" {
		return nil
	}
	return p.DeepCopy()
}

func machine(m protocol.HostMachine) *v1.HostMachine {
	return &v1.HostMachine{HostProperties: m.HostProperties, Memory: fmt.Sprintf("%dMi", m.MemoryMiB)}
}
