// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"slices"
	"strings"
	"unicode"

	v1 "github.com/drover-dev/drover/api/v1"
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
	// HostProgress is the part that the hub shows in the status of the Host. Its version is empty if there are no
	// instructions.
	v1.HostProgress
	// Owner is the owner of the instructions. It is nil if there are no instructions, or if the agent does not report
	// the owner.
	Owner *string `json:"owner,omitempty"`
	// Checkpoint is the latest checkpoint that the hub has sent.
	Checkpoint string    `json:"checkpoint,omitempty"`
	Phase      HostPhase `json:"phase,omitempty"`
	// Message explains why the instructions failed, or names the periodic instruction that is failing. It is at most
	// 512 bytes long.
	Message string `json:"message,omitempty"`
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
