// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

// restoredFor is how long the status shows that a member was restored. A member's audit log covers about as much time,
// so users can look up the lost changes there.
const restoredFor = 24 * time.Hour

// clonesMessage explains that two clusters share an identity, and how to resolve this.
func clonesMessage(cluster string, c *members.Clones) string {
	return fmt.Sprintf("Two clusters have the identity of this Cluster, as when etcd or a machine was copied: "+
		"agent %s leads in one, agent %s in the other. The hub serves neither. What was delivered stays in force in both; "+
		"what is revoked from now on, or was since the copy was made, stays in force in the copy. "+
		"Stop the agent in the copy: kubectl -n %s scale deployment %s --replicas=0; "+
		"then remove there what was delivered: %s. Or delete Secret %s-agent: both are refused then, until the new manifest is applied in the one that stays",
		c.Agents[0], c.Agents[1], protocol.AgentNamespace, protocol.AgentName, removeLeft(), cluster)
}

// writeMaintained writes the Maintained condition. The condition is False while no replica of the agent is the leader,
// and is removed when a replica becomes the leader. It is not changed until an agent has sent a report.
func writeMaintained(in *input, update *status.Update) {
	report, conditions := in.member.Report, &in.cluster.Status.Conditions
	switch {
	case report == nil || in.member.ByNodeAgent():
		return
	case report.Leader:
		meta.RemoveStatusCondition(conditions, v1.ConditionMaintained)
		return
	case in.member.NoLeader.IsZero():
		return
	}
	vacant := conditionValue{reason: v1.ReasonNoLeader, message: fmt.Sprintf(
		"No replica of the agent has led since %s. Users are served, but nothing is delivered, repaired, or removed when it "+
			"expires. Find out what keeps the replicas from their Lease %s, such as API Priority and Fairness, or a webhook: "+
			"kubectl -n %s logs deployment/%s",
		in.member.NoLeader.UTC().Format(time.RFC3339), protocol.LeaderLease, protocol.AgentNamespace, protocol.AgentName)}
	if meta.FindStatusCondition(*conditions, v1.ConditionMaintained) == nil {
		update.Event(status.Event{Warning: true, Reason: vacant.reason, Action: "Observe", Message: vacant.message})
	}
	set(in, v1.ConditionMaintained, vacant)
}

// restored returns the time when the member was restored. It returns the zero time if the member was not restored, or
// if the restore happened more than restoredFor ago.
func (in *input) restored() time.Time {
	if report := in.member.Report; report != nil && in.now.Before(report.Restored.Add(restoredFor)) {
		return report.Restored
	}
	return time.Time{}
}

// continuousUntil returns the time when the Continuous condition will be removed, or the zero time if the condition is
// not set.
func (in *input) continuousUntil() time.Time {
	if c := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionContinuous); c != nil {
		return c.LastTransitionTime.Add(restoredFor)
	}
	return time.Time{}
}

// writeContinuous writes a condition that says that the member was restored to an earlier state and explains the
// consequences. It also reads the status, because an agent that was restarted after the restore no longer reports the
// restore.
func writeContinuous(in *input, update *status.Update) {
	conditions := &in.cluster.Status.Conditions
	was, at := meta.FindStatusCondition(*conditions, v1.ConditionContinuous), in.restored()
	if at.IsZero() {
		if was != nil && !in.now.Before(in.continuousUntil()) {
			meta.RemoveStatusCondition(conditions, v1.ConditionContinuous)
		}
		return
	}
	restored := conditionValue{reason: v1.ReasonMemberRestored, message: fmt.Sprintf(
		"At %s the agent noticed that its cluster's etcd had gone back to an earlier state. It has read everything again, and "+
			"the hub delivers what differs. Until that was done, rights that had been revoked since the backup were in force "+
			"again: see the audit log of the cluster for what they were used for",
		at.UTC().Format(time.RFC3339))}
	if was != nil && was.Message == restored.message {
		return
	}
	update.Event(status.Event{Warning: true, Reason: restored.reason, Action: "Observe", Message: restored.message})
	meta.RemoveStatusCondition(conditions, v1.ConditionContinuous) // start a new condition
	set(in, v1.ConditionContinuous, restored)
}
