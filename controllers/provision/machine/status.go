// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"net/netip"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// maxAddresses is the maximum number of addresses in a machine's status. The schema defines the same limit.
const maxAddresses = 32

func provisioned(machine *infrav1.DroverMachine) bool {
	return machine.Status.Initialization.Provisioned != nil && *machine.Status.Initialization.Provisioned
}

// isLost reports whether a Host's agent is disconnected.
func isLost(host *v1.Host) bool {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	return ready != nil && ready.Reason == v1.ReasonTunnelLost
}

func readyMessage(host *v1.Host) string {
	if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); ready != nil {
		return ready.Message
	}
	return "its status is not known yet"
}

// ofHost derives a machine's readiness from the Host that the machine has claimed. It has no side effects.
func ofHost(machine *infrav1.DroverMachine, host *v1.Host) status.Readiness {
	reason := ""
	if ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady); ready != nil {
		reason = ready.Reason
	}
	say := func(reason, format string) status.Readiness {
		return status.Readiness{Reason: reason, Message: fmt.Sprintf(format, host.Name, readyMessage(host))}
	}
	switch {
	case !host.DeletionTimestamp.IsZero():
		return say(infrav1.ReasonHostGone, "Host %s is being deleted: %s")
	case isLost(host):
		return say(infrav1.ReasonHostLost, "Host %s: %s")
	case provisioned(machine) && isAtWork(host):
		return status.Readiness{Ready: true, Reason: infrav1.ReasonProvisioned, Message: "Host " + host.Name + " has carried out the bootstrap"}
	case reason == v1.ReasonInstructionFailed, reason == v1.ReasonInterrupted, reason == v1.ReasonInstructionsInvalid:
		return say(infrav1.ReasonBootstrapFailed, "Host %s: %s")
	case host.Status.State == v1.HostActive:
		return status.Readiness{Ready: true, Reason: infrav1.ReasonProvisioned, Message: "Host " + host.Name + " has carried out the bootstrap"}
	case provisioned(machine) && (host.Status.State == v1.HostAvailable || host.Status.State == v1.HostCleaning):
		return say(infrav1.ReasonHostGone, "the instructions of Host %s were deleted, and it is cleaned: %s")
	}
	return say(infrav1.ReasonBootstrapping, "Host %s: %s")
}

// writeStatus writes the readiness to the status, together with facts from the Host's report.
func writeStatus(in *input, v status.Readiness) {
	machine := in.machine
	if v.Reason == infrav1.ReasonProvisioned && !provisioned(machine) {
		done := true
		machine.Status.Initialization.Provisioned = &done
		in.update.Event(status.Event{Reason: infrav1.ReasonProvisioned, Action: "Bootstrap", Message: protocol.Cut(v.Message, 512)})
	}
	if in.host != nil && machine.Status.HostName == in.host.Name {
		machine.Status.Addresses = addresses(in.host)
		machine.Status.FailureDomain = in.host.Labels[in.domainLabel]
	}
	v.Write(machine.Generation, &machine.Status.ObservedGeneration, &machine.Status.Conditions)
	setTasksSucceeded(machine)
}

func setPaused(machine *infrav1.DroverMachine, paused bool) {
	if !paused {
		meta.RemoveStatusCondition(&machine.Status.Conditions, infrav1.ConditionPaused)
		return
	}
	meta.SetStatusCondition(&machine.Status.Conditions, metav1.Condition{
		Type: infrav1.ConditionPaused, Status: metav1.ConditionTrue, Reason: infrav1.ReasonPaused, Message: "Cluster API has paused the cluster or the machine", ObservedGeneration: machine.Generation,
	})
}

// addresses returns a Host's addresses in the format that the Cluster API contract requires. The address in the spec
// comes first, followed by the reported addresses. Invalid addresses are omitted, because a machine can report any
// text.
func addresses(host *v1.Host) []infrav1.MachineAddress {
	if host.Status.Machine == nil {
		return nil
	}
	var out []infrav1.MachineAddress
	seen := map[netip.Addr]bool{}
	if name := host.Status.Machine.Hostname; name != "" && len(name) <= 253 {
		out = append(out, infrav1.MachineAddress{Type: "Hostname", Address: name})
	}
	for _, text := range append([]string{host.Spec.InternalAddress}, host.Status.Machine.Addresses...) {
		if address, err := netip.ParseAddr(text); err == nil && !seen[address] && len(out) < maxAddresses {
			seen[address] = true
			out = append(out, infrav1.MachineAddress{Type: "InternalIP", Address: address.String()})
		}
	}
	return out
}
