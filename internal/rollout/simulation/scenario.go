// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs a Plan on simulated members and nodes, using the same planner as for real members and nodes.
package simulation

import (
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Scenario is a Plan together with the members and nodes on which it runs.
type Scenario struct {
	// Plan is the plan to run. If it has neither clusterName nor clusterSelector, it runs on the first cluster in
	// Clusters.
	Plan v1.Plan `json:"plan"`
	// Latest is the version that the channel returns if the plan specifies no version.
	Latest string `json:"latest,omitempty"`
	// Start is the time when the plan starts.
	Start metav1.Time `json:"start"`
	// Durations are the durations for nodes that specify none of their own.
	Durations Durations `json:"durations"`
	// Clusters are the clusters of the workspace.
	Clusters []Cluster `json:"clusters"`
}

// Durations are the durations of a node's steps. The defaults are 10s, 30s and 1m.
type Durations struct {
	Prepare *metav1.Duration `json:"prepare,omitempty"`
	Drain   *metav1.Duration `json:"drain,omitempty"`
	Upgrade *metav1.Duration `json:"upgrade,omitempty"`
}

// Cluster is a simulated member.
type Cluster struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Away is the reason why the hub cannot deliver plans to the member.
	Away string `json:"away,omitempty"`
	// Hold is the reason why the member does not run plans.
	Hold string `json:"hold,omitempty"`
	// Window is the member's own time window, such as "Sat,Sun 02:00-06:00 Europe/Berlin".
	Window string `json:"window,omitempty"`
	// Unsafe lists the times when the member cannot be upgraded safely. If it is empty, the member is not checked.
	Unsafe []Period `json:"unsafe,omitempty"`
	Nodes  []Node   `json:"nodes"`
}

// Period is a period of time. From and Until are measured from the start of the scenario.
type Period struct {
	From  metav1.Duration `json:"from"`
	Until metav1.Duration `json:"until"`
}

// Node is a simulated node.
type Node struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	NotReady      bool              `json:"notReady,omitempty"`
	// Fails is the number of attempts to upgrade the node that fail before one succeeds.
	Fails int32 `json:"fails,omitempty"`
	// Hangs makes the upgrade exceed its deadline instead of failing.
	Hangs     bool      `json:"hangs,omitempty"`
	Durations Durations `json:"durations"`
}

func firstSet(own, otherwise *metav1.Duration, last time.Duration) time.Duration {
	for _, d := range []*metav1.Duration{own, otherwise} {
		if d != nil {
			return d.Duration
		}
	}
	return last
}

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
