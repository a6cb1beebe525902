// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

// State is how far a host is with its instructions.
type State int

// States of a host.
const (
	// None: it has no instructions, or does not have the newest yet.
	None State = iota
	// Running: its instructions run.
	Running
	// Unwell: they have succeeded, and a probe is not successful yet, or no longer.
	Unwell
	// Up: all is done, and works.
	Up
	// Failed: an instruction has failed, or was interrupted. It is not repeated.
	Failed
)

// Busy reports whether a host is on its way to being up.
func (s State) Busy() bool { return s == None || s == Running || s == Unwell }

// Host is how far a host is with its instructions. What the host's journal knows reaches those who decide in this form,
// whatever makes the cluster.
type Host struct {
	State State
	// Done counts the one-time instructions that have succeeded.
	Done int
	// Instruction is the ID of the instruction that runs or has failed, empty for none.
	Instruction string
	// Message says for people what the host is busy with, or what has failed. It is also there without instructions.
	Message string
	// Output is the last of what the failed instruction wrote.
	Output string
}

// OfHost returns how far a Host is with the instructions of a version, empty for none. What the Host says of another
// version is no news.
func OfHost(host *v1.Host, version string) Host {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	if ready == nil {
		return Host{}
	}
	p, reported := Host{Message: ready.Message}, host.Status.Plan
	if version == "" || reported == nil || reported.Version != version || host.Status.State == v1.HostCleaning {
		return p
	}
	p.Done, p.Instruction = int(reported.Done), reported.Instruction
	switch {
	case ready.Reason == v1.ReasonInstructionFailed, ready.Reason == v1.ReasonInterrupted:
		p.State, p.Output = Failed, reported.Output
	case ready.Reason == v1.ReasonPlanInvalid: // nothing of them runs
		p.State, p.Instruction = Failed, ""
	case host.Status.State == v1.HostActive:
		p.State = Up
	case host.Status.State == v1.HostWaitingForKubernetes:
		p.State = Unwell
	default:
		p.State = Running
	}
	return p
}
