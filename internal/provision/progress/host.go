// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
)

// State is a host's progress with its instructions.
type State int

// States of a host.
const (
	// None: the host has no instructions, or does not have the latest version yet.
	None State = iota
	// Running: the host is carrying out its instructions.
	Running
	// Unwell: the one-time instructions have succeeded, but a probe fails, or has not succeeded yet.
	Unwell
	// Up: the one-time instructions and the probes have succeeded.
	Up
	// Failed: an instruction has failed or was interrupted. It is not retried.
	Failed
)

// Busy reports whether a host is on its way to being up.
func (s State) Busy() bool { return s == None || s == Running || s == Unwell }

// Host is a host's progress with its instructions. The controllers see the content of the host's journal in this form,
// regardless of the tool that creates the cluster.
type Host struct {
	State State
	// Done counts the one-time instructions that have succeeded.
	Done int
	// Instruction is the ID of the instruction that is running or has failed. It is empty if there is none.
	Instruction string
	// Message describes the host's current action or failure. It is also set without instructions.
	Message string
	// Output is the end of the failed instruction's output.
	Output string
}

// OfHost returns the progress of a Host with one version of its instructions. The version is empty for a Host without
// instructions. A status for another version is ignored.
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
	case ready.Reason == v1.ReasonPlanInvalid: // no instruction is running
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
