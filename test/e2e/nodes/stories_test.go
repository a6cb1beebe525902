// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package nodes tests an operator's typical tasks, called stories, on real nodes.
//
// Everything runs in pods that are created by manifests.
package nodes

import (
	"testing"
	"time"
)

func TestAnOperatorsLife(t *testing.T) {
	o := newOperator(t)
	t.Cleanup(func() {
		if t.Failed() {
			o.lookAround(t)
		}
	})
	for _, story := range []struct {
		name string
		tell func(*operator, *testing.T)
	}{
		{"a hub is deployed by an overlay", (*operator).deploysTheHub},
		{"two clusters are imported, each by the one command that the hub gives", (*operator).importsClusters},
		{"a user with a binding works in real pods through the hub", (*operator).worksInPods},
		{"a project's quota, limits, Secret and pod security are felt by its pods", (*operator).sharesAProject},
		{"a project's network isolation is felt by its pods and by those of another project", (*operator).isolatesAProject},
		{"a binding ends when it expires", (*operator).lendsARole},
		{"a plan changes a file on each node and drains pods as their budget allows", (*operator).changesNodes},
		{"the manager is updated while users read, and no request fails", (*operator).updatesTheHub},
		{"a member that is cut off comes back by itself", (*operator).losesAMember},
		{"the agents get a new image in stages while users read, and no request fails", (*operator).updatesTheAgents},
		{"node agents serve a member while its agent is away or the network of its pods is broken", (*operator).getsNodeAgents},
		{"a node dies in the middle of a plan, which goes on when the node is back", (*operator).losesANode},
		{"clusters and hub are removed, and nothing is left", (*operator).removesAll},
	} {
		o.transcript.heading(story.name)
		start := time.Now()
		if !t.Run(story.name, func(t *testing.T) { story.tell(o, t) }) {
			break // each goes on where the one before ended
		}
		o.transcript.note("The story took %s.", time.Since(start).Round(time.Second))
	}
}
