// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// build compiles our programs as "make build" does, under names that distinguish them from others in ps.
func (d *demo) build(ctx context.Context) (string, error) {
	version := d.version(ctx)
	for _, program := range []struct{ name, source string }{{manager, "."}, {agent, "./agent"}, {nodes, "./hack/demo/nodes"}} {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w -X main.version="+version,
			"-o", d.files.bin("drover-"+program.name), program.source)
		cmd.Dir = d.files.root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stderr = d.out // the first build downloads for minutes and prints what
		if err := cmd.Run(); err != nil {
			return "", fmt.Errorf("%s: %w: see above what the compiler says", program.name, err)
		}
	}
	return version, nil
}

// version is computed as in the Makefile, so that both ways to build give the same.
func (d *demo) version(ctx context.Context) string {
	if v := os.Getenv("VERSION"); v != "" {
		return v
	}
	cmd := exec.CommandContext(ctx, "git", "describe", "--tags", "--dirty")
	cmd.Dir = d.files.root
	described, _ := cmd.Output() // no tag, or no git: the default
	return cmp.Or(strings.TrimSpace(string(described)), "v0.1.0-dev")
}
