// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"os/exec"
	"strings"
	"testing"
)

// TestTheManagerPrintsItsVersion is not a test of package main, which would link the whole manager a second time.
func TestTheManagerPrintsItsVersion(t *testing.T) {
	command := exec.CommandContext(t.Context(), "go", "run", "-ldflags", "-s -w -X main.version=v9.8.7", ".", "--version")
	command.Dir = root(t)
	out, err := command.Output()
	if err != nil || strings.TrimSpace(string(out)) != "v9.8.7" {
		t.Errorf("it prints %q: %v", out, err)
	}
}
