// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "fmt"

// The kinds of nodes that the hub and the member may have.
const (
	realNodes      = "real"
	simulatedNodes = "simulated"
)

// chooseNodes returns the kind of nodes for the demo, and a remark if the nodes cannot be real. The parameter wanted is
// the kind that the user has requested, and kept is the kind that an existing demo has. Either of them may be "". fault
// explains why this machine cannot run real nodes.
func chooseNodes(wanted, kept string, fault error) (chosen, remark string, err error) {
	switch wanted {
	case "", realNodes, simulatedNodes:
	default:
		return "", "", fmt.Errorf("nodes %q: want %s or %s", wanted, realNodes, simulatedNodes)
	}
	if kept != "" && wanted != "" && kept != wanted {
		return "", "", fmt.Errorf("the existing demo has %s nodes: run \"make demo-down\" first", kept)
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
