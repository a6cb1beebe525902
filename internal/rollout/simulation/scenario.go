// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simulation runs a Plan on simulated members and nodes, with the planner that runs it on real ones.
package simulation

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Scenario is a Plan, and the members and nodes to run it on.
type Scenario struct {
	// Plan to run. Without clusterName and clusterSelector it runs on the first of Clusters.
	Plan v1.Plan `json:"plan"`
	// Latest is the version that the channel answers with, for a plan without a version.
	Latest string `json:"latest,omitempty"`
	// Start is when it begins.
	Start metav1.Time `json:"start"`
	// Durations of what nodes do, where they have none of their own.
	Durations Durations `json:"durations"`
	// Clusters of the workspace.
	Clusters []Cluster `json:"clusters"`
}

// Durations of what a node does. Default: 10s, 30s and 1m.
type Durations struct {
	Prepare *metav1.Duration `json:"prepare,omitempty"`
	Drain   *metav1.Duration `json:"drain,omitempty"`
	Upgrade *metav1.Duration `json:"upgrade,omitempty"`
}

// Cluster is a simulated member.
type Cluster struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	// Away says why the hub cannot give it anything.
	Away string `json:"away,omitempty"`
	// Hold says why it takes part in no plan.
	Hold string `json:"hold,omitempty"`
	// Window of its own, such as "Sat,Sun 02:00-06:00 Europe/Berlin".
	Window string `json:"window,omitempty"`
	Nodes  []Node `json:"nodes"`
}

// Node is a simulated node.
type Node struct {
	Name          string            `json:"name"`
	Labels        map[string]string `json:"labels,omitempty"`
	Unschedulable bool              `json:"unschedulable,omitempty"`
	NotReady      bool              `json:"notReady,omitempty"`
	// Fails is how many attempts of its upgrade fail before one succeeds.
	Fails int32 `json:"fails,omitempty"`
	// Hangs lets its upgrade run into the deadline instead of failing.
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
