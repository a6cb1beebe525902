// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// The nodes that hub and member may have.
const (
	realNodes      = "real"
	simulatedNodes = "simulated"
)

// chooseNodes returns which nodes the demo has, and a remark on why it has no real ones. wanted is what the user asks
// for and kept what the demo that is there has: both may be "". fault is why this machine cannot run real nodes.
func chooseNodes(wanted, kept string, fault error) (chosen, remark string, err error) {
	switch wanted {
	case "", realNodes, simulatedNodes:
	default:
		return "", "", fmt.Errorf("nodes %q: write %s or %s", wanted, realNodes, simulatedNodes)
	}
	if kept != "" && wanted != "" && kept != wanted {
		return "", "", fmt.Errorf("the demo that is there has %s nodes: run \"make demo-down\" first", kept)
	}
	if kept != "" {
		wanted = kept
	}
	switch {
	case wanted == simulatedNodes:
		return simulatedNodes, "", nil
	case fault == nil:
		return realNodes, "", nil
	case wanted == realNodes:
		return "", "", fault
	}
	return simulatedNodes, "the nodes are simulated: " + fault.Error(), nil
}
