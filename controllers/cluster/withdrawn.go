// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// removeLeft returns the command that removes all delivered objects except namespaces. The command does not remove the
// agent. It also works if the member does not serve the Plan kind.
func removeLeft() string {
	var resources []string
	for _, kind := range protocol.SetKinds() {
		if kind.Name != "Namespace" && kind.Name != "Plan" {
			resources = append(resources, kind.Resource)
		}
	}
	return "kubectl delete " + strings.Join(resources, ",") + " -A -l " + v1.LabelSet + " && kubectl -n " + protocol.AgentNamespace +
		" delete secrets --field-selector type=" + v1.Group + "/set"
}

// writeWithdrawn lists the objects that the agent is not allowed to remove and that therefore still exist in the
// member. The condition stays unchanged until the agent's leader has reported.
func writeWithdrawn(in *input, update *status.Update) {
	report := in.member.Report
	if report == nil || !report.Leader {
		return
	}
	conditions := &in.cluster.Status.Conditions
	var left conditionValue
	switch {
	case len(report.Left) == 0 && len(report.Unclaimed) == 0:
		meta.RemoveStatusCondition(conditions, v1.ConditionWithdrawn)
		return
	case len(report.Left) == 0:
		left = conditionValue{reason: v1.ReasonUnclaimedObjects, message: "The member has objects with the label " + v1.LabelSet +
			" that belong to nothing on the hub and that the agent has not made, as after a backup was restored there. The rights that they grant are in force: " +
			strings.Join(report.Unclaimed, ", ") + ". Delete them with the kubeconfig of that cluster"}
	default:
		left = stillInForce(report.Left)
	}
	before := meta.FindStatusCondition(*conditions, v1.ConditionWithdrawn)
	if before == nil || before.Reason != left.reason {
		update.Event(status.Event{Warning: true, Reason: left.reason, Action: "Observe", Message: left.message})
	}
	set(in, v1.ConditionWithdrawn, left)
}

func stillInForce(left []string) conditionValue {
	return conditionValue{
		reason: v1.ReasonStillInForce,
		message: "The agent is ReadOnly and may not remove objects that were delivered before, which are still in force: " +
			strings.Join(left, ", ") + ". Remove it with the kubeconfig of that cluster: " + removeLeft(),
	}
}
