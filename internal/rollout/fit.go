// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Tolerations returns the tolerations of a plan's pods. The pods also run on cordoned nodes.
func Tolerations(work *v1.NodeWork) []corev1.Toleration {
	return append([]corev1.Toleration{{
		Key: corev1.TaintNodeUnschedulable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule,
	}}, work.Tolerations...)
}

// runsPods reports whether a node can run the plan's pods at all. The pods mount the node's root file system and share
// its process namespace, which works only on Linux.
func (n *Node) runsPods() bool { return n.OS == "" || n.OS == string(corev1.Linux) }

// taint returns a taint that prevents the plan's pods from running on a node, or "" if there is none. The result has
// the format "key=value:effect". Taints do not count if the node is not ready, because the node's condition has already
// been checked, and these taints disappear shortly after the condition changes.
func (v *view) taint(n *Node) string {
	for i := range n.Taints {
		taint := &n.Taints[i]
		ready := taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable
		if taint.Effect != corev1.TaintEffectPreferNoSchedule && !ready && !v.tolerates(taint) {
			return taint.ToString()
		}
	}
	return ""
}

func (v *view) tolerates(taint *corev1.Taint) bool {
	return slices.ContainsFunc(v.tolerations, func(t corev1.Toleration) bool { return matches(&t, taint) })
}

// matches reports whether a toleration tolerates a taint, according to the scheduler's rules. The equivalent function
// in the Kubernetes API requires a logger.
func matches(t *corev1.Toleration, taint *corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case corev1.TolerationOpEqual, "":
		return t.Value == taint.Value
	case corev1.TolerationOpLt, corev1.TolerationOpGt:
		bound, errBound := strconv.ParseInt(t.Value, 10, 64)
		value, errValue := strconv.ParseInt(taint.Value, 10, 64)
		if errBound != nil || errValue != nil {
			return false
		}
		return t.Operator == corev1.TolerationOpLt && value < bound || t.Operator == corev1.TolerationOpGt && value > bound
	}
	return false
}

// untolerated returns a message that names the taint that prevents a node from starting, and explains how to solve
// the problem.
func (v *view) untolerated(t *tally) string {
	what := "node " + t.first.taintedNode + " has"
	if t.tainted > 1 {
		what = fmt.Sprintf("%d nodes have taints that the plan does not tolerate, node %s", t.tainted, t.first.taintedNode)
	}
	return fmt.Sprintf("%s the taint %s: add it to spec.tolerations of the plan, remove it, or label the node %s=disabled",
		what, t.first.taint, v.label)
}

// foreignNodes returns a message that names the selected nodes that cannot run the plan's pods. It returns "" if
// there are none.
func (t *tally) foreignNodes() string {
	switch t.foreign {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("node %s is left out: it runs %s, and the pods of plans need Linux",
			t.first.foreignNode, t.first.foreignOS)
	}
	return fmt.Sprintf("%d nodes are left out: node %s runs %s, and the pods of plans need Linux",
		t.foreign, t.first.foreignNode, t.first.foreignOS)
}
