// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

// State describes how far a host has carried out its instructions.
type State int

// States of a host.
const (
	// None means that the host has no instructions, or has not received their latest version.
	None State = iota
	// Running means that the host is carrying out its instructions.
	Running
	// Unwell means that the one-time instructions have succeeded, but a probe has failed or has not succeeded yet.
	Unwell
	// Up means that the one-time instructions and the probes have succeeded.
	Up
	// Failed means that an instruction has failed or was interrupted. The instruction is not retried.
	Failed
)

// Busy reports whether a host is not up yet and has not failed.
func (s State) Busy() bool { return s == None || s == Running || s == Unwell }

// Host is the progress of a host with its instructions. It summarizes the host's journal for controllers, independently
// of the tool that creates the cluster.
type Host struct {
	State State
	// Done counts the one-time instructions that have succeeded.
	Done int
	// Instruction is the ID of the running or failed instruction. It is empty if there is no such instruction.
	Instruction string
	// Message describes what the host is doing or why it has failed. It may be set even if the host has no
	// instructions.
	Message string
	// Output is the end of the failed instruction's output.
	Output string
}

// OfHost returns the progress of a Host with the given version of its instructions. version is empty for a Host without
// instructions. It ignores a status that describes a different version.
func OfHost(host *v1.Host, version string) Host {
	ready := meta.FindStatusCondition(host.Status.Conditions, v1.ConditionReady)
	if ready == nil {
		return Host{}
	}
	p, reported := Host{Message: ready.Message}, host.Status.Progress
	if version == "" || reported == nil || reported.Version != version || host.Status.State == v1.HostCleaning {
		return p
	}
	p.Done, p.Instruction = int(reported.Done), reported.Instruction
	switch {
	case ready.Reason == v1.ReasonInstructionFailed, ready.Reason == v1.ReasonInterrupted:
		p.State, p.Output = Failed, reported.Output
	case ready.Reason == v1.ReasonInstructionsInvalid: // no instruction is running
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
