// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"io"
	"time"
)

// Print runs a scenario and writes each step with its time, and then the outcome, to out.
func Print(s Scenario, out io.Writer) error {
	simulation, err := New(s)
	if err != nil {
		return err
	}
	start, steps := simulation.Now, 0
	simulation.Observe = func(l Event) error {
		steps++
		_, err := fmt.Fprintf(out, "%s  %-10s  %-12s %-14s %-9s %s\n", l.At.UTC().Format(time.RFC3339),
			"+"+l.At.Sub(start).String(), l.Cluster, l.Node, l.Verb, l.Note)
		return err
	}
	wait, err := simulation.Run()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s\n%d steps in %s\n", wait.Reason, wait.Message, steps,
		simulation.Now.Sub(start).Round(time.Second))
	return err
}
