// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"slices"
	"strings"
	"unicode"
)

// HostPhase is how far instructions are on their host.
type HostPhase string

// Phases of instructions.
const (
	// HostApplying means that files are written or instructions run.
	HostApplying HostPhase = "Applying"
	// HostApplied means that all files are written and all instructions have succeeded.
	HostApplied HostPhase = "Applied"
	// HostFailed means that a file could not be written or an instruction failed. Files are tried again, instructions are
	// not.
	HostFailed HostPhase = "Failed"
	// HostCleaning means that the instructions were taken away, and the cleaning instructions run.
	HostCleaning HostPhase = "Cleaning"
	// HostInterrupted means that an instruction was killed with its machine or by something else on it, so that it is
	// unknown how far it is. It is not run again.
	HostInterrupted HostPhase = "Interrupted"
)

// Bounds of a HostProgress.
const (
	maxHostOutput  = 2 << 10
	maxHostFailing = 8
)

// HostProgress is how far the host is with its instructions.
type HostProgress struct {
	// Version of the instructions, which the hub has given with them. Empty without instructions.
	Version string `json:"version,omitempty"`
	// Owner of the instructions. Nil without instructions, and from an agent that does not report it.
	Owner *string `json:"owner,omitempty"`
	// Checkpoint is the latest that the hub has sent.
	Checkpoint string    `json:"checkpoint,omitempty"`
	Phase      HostPhase `json:"phase,omitempty"`
	// Done and Total count the one-time instructions.
	Done  int32 `json:"done"`
	Total int32 `json:"total"`
	// Instruction that runs, or has failed, by its ID.
	Instruction string `json:"instruction,omitempty"`
	// Message says why they failed, or which periodic instruction fails. At most 512 bytes.
	Message string `json:"message,omitempty"`
	// Output is the last of what the instruction wrote that has failed, at most 2 KiB, without the instructions' secrets.
	Output string `json:"output,omitempty"`
	// Failing are the names of probes that are not successful. At most 8.
	Failing []string `json:"failing,omitempty"`
}

// Bound cuts what a host reports to size.
func (p *HostProgress) Bound() {
	p.Version, p.Checkpoint, p.Instruction = Cut(p.Version, maxText), Cut(p.Checkpoint, maxText), Cut(printable(p.Instruction, ""), maxText)
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

// printable returns the printable runes of a text, and those that are allowed besides.
func printable(text, besides string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || strings.ContainsRune(besides, r) {
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, ""))
}
