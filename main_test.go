// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os/exec"
	"strings"
	"testing"
)

func TestTheManagerPrintsItsVersion(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "run", "-ldflags", "-X main.version=v9.8.7", ".", "--version").Output()
	if err != nil || strings.TrimSpace(string(out)) != "v9.8.7" {
		t.Errorf("it prints %q: %v", out, err)
	}
}
