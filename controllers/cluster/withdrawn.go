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

// removeLeft returns the command that removes what was delivered, and leaves the agent as it is. Namespaces stay, and a member need not have the kind
// Plan.
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

// writeWithdrawn names what is still in force in a member whose agent may remove nothing. Until the leader has reported, it stays as it was.
func writeWithdrawn(in *input, update *status.Update) {
	report := in.member.Report
	if report == nil || !report.Leader {
		return
	}
	conditions := &in.cluster.Status.Conditions
	if len(report.Left) == 0 {
		meta.RemoveStatusCondition(conditions, v1.ConditionWithdrawn)
		return
	}
	left := conditionValue{reason: v1.ReasonStillInForce, message: "The agent is ReadOnly and may not take back what was delivered before, which is still in force: " +
		strings.Join(report.Left, ", ") + ". Remove it with the kubeconfig of that cluster: " + removeLeft()}
	if meta.FindStatusCondition(*conditions, v1.ConditionWithdrawn) == nil {
		update.Event(status.Event{Warning: true, Reason: left.reason, Action: "Observe", Message: left.message})
	}
	set(in, v1.ConditionWithdrawn, left)
}
