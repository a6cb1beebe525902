// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// kubectl runs the demo's kubectl in the root of the source tree and returns its output. The error contains its
// standard error.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, d.files.bin("kubectl"), args...)
	cmd.Dir = d.files.root
	// The discovery cache must be removed together with the demo, because the next demo may use the same ports.
	cmd.Env = append(minimalEnvironment(), "KUBECACHEDIR="+d.files.file("kube-cache"), "KUBERC=off")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}
