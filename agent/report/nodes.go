// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// nodeNumbers holds the values that a nodeTally needs from a node.
type nodeNumbers struct {
	ready        bool
	distribution string // one of a few constants, or empty
	capacity     amounts
	allocatable  amounts
}

// nodeTally counts nodes and sums their resources.
type nodeTally struct {
	tally[*corev1.Node, nodeNumbers]
	total, ready          int32 // guarded by tally.mu, as are the fields below
	capacity, allocatable amounts
	distributions         map[string]int64
}

func newNodeTally(seen func()) *nodeTally {
	t := &nodeTally{distributions: make(map[string]int64)}
	t.count = t.add
	t.begin(readNode, seen)
	return t
}

func (t *nodeTally) add(n nodeNumbers, sign int64) {
	t.total += int32(sign)
	if n.ready {
		t.ready += int32(sign)
	}
	t.capacity.add(n.capacity, sign)
	t.allocatable.add(n.allocatable, sign)
	t.distributions[n.distribution] += sign
}

// nodes returns the report's section about nodes, and the most common distribution of the nodes.
func (t *nodeTally) nodes() (protocol.Nodes, string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	distribution, most := "", int64(0)
	for name, n := range t.distributions {
		if n > most || n == most && name > distribution {
			distribution, most = name, n
		}
	}
	return protocol.Nodes{
		Total: t.total, Ready: t.ready,
		Capacity: t.capacity.strings(), Allocatable: t.allocatable.strings(),
	}, distribution
}

func readNode(node *corev1.Node) nodeNumbers {
	return nodeNumbers{
		ready:        nodeReady(node.Status.Conditions),
		distribution: nodeDistribution(node),
		capacity:     amountsOf(node.Status.Capacity, maxOfNode),
		allocatable:  amountsOf(node.Status.Allocatable, maxOfNode),
	}
}

func nodeReady(conditions []corev1.NodeCondition) bool {
	for i := range conditions {
		if conditions[i].Type == corev1.NodeReady {
			return conditions[i].Status == corev1.ConditionTrue
		}
	}
	return false
}
