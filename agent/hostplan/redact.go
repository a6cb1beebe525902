// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hostplan

import (
	"slices"
	"strings"
	"unicode"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	redacted = "<secret>"
	// shortestVariable and shortestWord are the lengths from which values of variables, and words of files, count as secrets. Shorter ones would be
	// found in any text.
	shortestVariable = 4
	shortestWord     = 12
	// reportedLines and reportedBytes bound what is reported of an instruction's output.
	reportedLines = 20
	reportedBytes = 2 << 10
)

// secretsOf returns what must not be reported of a plan: the values of its variables, and the words of files that not all users may read. The longest
// are first, so that none is hidden by a part of it.
func secretsOf(plan *protocol.HostPlan) []string {
	var secrets []string
	for _, instruction := range slices.Concat(plan.Instructions, plan.Periodic, plan.Clean) {
		for _, value := range instruction.Env {
			for line := range strings.Lines(value) {
				if line = strings.TrimSpace(line); len(line) >= shortestVariable {
					secrets = append(secrets, line)
				}
			}
		}
	}
	for _, file := range plan.Files {
		if modeOf(file)&0o004 != 0 {
			continue
		}
		for _, word := range strings.FieldsFunc(string(file.Content), func(r rune) bool { return unicode.IsSpace(r) || strings.ContainsRune(`"'=,:`, r) }) {
			if len(word) >= shortestWord {
				secrets = append(secrets, word)
			}
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(secrets)
}

// report returns the last lines of an output, without secrets and without what a terminal would obey.
func report(output string, secrets []string) string {
	for _, secret := range secrets {
		output = strings.ReplaceAll(output, secret, redacted)
	}
	output = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(output, ""))
	lines := strings.Split(strings.TrimSpace(output), "\n")
	text := strings.Join(lines[max(0, len(lines)-reportedLines):], "\n")
	return strings.ToValidUTF8(text[max(0, len(text)-reportedBytes):], "")
}
