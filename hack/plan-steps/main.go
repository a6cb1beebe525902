// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command plan-steps prints all steps that a Plan would take on simulated members and nodes, with their times.
package main

import (
	"fmt"
	"io"
	"os"
	"time"
	_ "time/tzdata" // windows have zones, and machines may have none

	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/rollout/rehearsal"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: plan-steps FILE (a Plan with simulated clusters, see hack/plan-steps/testdata)")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plan-steps:", err)
		os.Exit(1)
	}
}

func run(file string, out io.Writer) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read script: %w", err)
	}
	var script rehearsal.Script
	if err := yaml.UnmarshalStrict(text, &script); err != nil {
		return fmt.Errorf("read script %s: %w", file, err)
	}
	play, err := rehearsal.New(script)
	if err != nil {
		return err
	}
	start, steps := play.Now, 0
	play.Observe = func(l rehearsal.Line) error {
		steps++
		_, err := fmt.Fprintf(out, "%s  %-10s  %-12s %-14s %-9s %s\n", l.At.UTC().Format("2006-01-02 15:04:05"), "+"+l.At.Sub(start).String(), l.Cluster, l.Node, l.Verb, l.Note)
		return err
	}
	why, err := play.Run()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s\n%d steps in %s\n", why.Reason, why.Message, steps, play.Now.Sub(start).Round(time.Second))
	return err
}
