// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"slices"
	"strings"
	"unicode"
)

// HostPhase is the progress of instructions on their host.
type HostPhase string

// Phases of instructions.
const (
	// HostApplying means that files are being written or that instructions are running.
	HostApplying HostPhase = "Applying"
	// HostApplied means that all files are written and all instructions have succeeded.
	HostApplied HostPhase = "Applied"
	// HostFailed means that a file could not be written or an instruction failed. The agent retries files, but not
	// instructions.
	HostFailed HostPhase = "Failed"
	// HostCleaning means that the instructions have been removed and the cleaning instructions are running.
	HostCleaning HostPhase = "Cleaning"
	// HostInterrupted means that an instruction was killed, either by another process or because its machine stopped.
	// It is unknown how far the instruction got, so it is not run again.
	HostInterrupted HostPhase = "Interrupted"
)

// Limits for a HostProgress.
const (
	maxHostOutput  = 2 << 10
	maxHostFailing = 8
)

// HostProgress describes a host's progress with its instructions.
type HostProgress struct {
	// Version is the version that the hub assigned to the instructions. It is empty if there are no instructions.
	Version string `json:"version,omitempty"`
	// Owner is the owner of the instructions. It is nil if there are no instructions, or if the agent does not report
	// the owner.
	Owner *string `json:"owner,omitempty"`
	// Checkpoint is the latest checkpoint that the hub has sent.
	Checkpoint string    `json:"checkpoint,omitempty"`
	Phase      HostPhase `json:"phase,omitempty"`
	// Done is the number of completed one-time instructions. Total is the number of all one-time instructions.
	Done  int32 `json:"done"`
	Total int32 `json:"total"`
	// Instruction is the ID of the instruction that is running or has failed.
	Instruction string `json:"instruction,omitempty"`
	// Message explains why the instructions failed, or names the periodic instruction that is failing. It is at most
	// 512 bytes long.
	Message string `json:"message,omitempty"`
	// Output is the end of the failed instruction's output. The instructions' secrets are removed. Output is at most 2
	// KiB long.
	Output string `json:"output,omitempty"`
	// Failing lists the names of failing probes. There are at most 8.
	Failing []string `json:"failing,omitempty"`
}

// Bound trims a progress report to its limits.
func (p *HostProgress) Bound() {
	p.Version, p.Checkpoint = Cut(p.Version, maxText), Cut(p.Checkpoint, maxText)
	p.Instruction = Cut(printable(p.Instruction, ""), maxText)
	p.Phase = HostPhase(Cut(string(p.Phase), maxText))
	p.Message, p.Output = Cut(printable(p.Message, ""), maxMessage), Cut(printable(p.Output, "\n\t"), maxHostOutput)
	if p.Owner != nil {
		p.Owner = new(Cut(printable(*p.Owner, ""), maxHostText))
	}
	p.Done, p.Total = max(p.Done, 0), max(p.Total, 0)
	p.Failing = slices.Clone(p.Failing[:min(len(p.Failing), maxHostFailing)])
	for i := range p.Failing {
		p.Failing[i] = Cut(printable(p.Failing[i], ""), maxText)
	}
}

// printable removes unprintable runes from a text, except the given ones.
func printable(text, besides string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || strings.ContainsRune(besides, r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, ""))
}
