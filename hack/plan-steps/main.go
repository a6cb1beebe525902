// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command plan-steps prints all steps that a Plan would take on simulated members and nodes, and the time of each step.
package main

import (
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/rollout/simulation"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plan-steps FILE (a Plan with simulated clusters, see hack/plan-steps/testdata) | --version")
		os.Exit(2)
	}
	if info, found := debug.ReadBuildInfo(); found && os.Args[1] == "--version" {
		fmt.Println(info.Main.Version)
		return
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plan-steps:", err)
		os.Exit(1)
	}
}

func run(file string, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read scenario: %w", err)
	}
	var script simulation.Scenario
	if err := yaml.UnmarshalStrict(text, &script); err != nil {
		return fmt.Errorf("read scenario %s: %w", file, err)
	}
	return simulation.Print(script, out)
}
