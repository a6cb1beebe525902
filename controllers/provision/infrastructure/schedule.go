// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package infrastructure

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/schedule"
	"github.com/drover-dev/drover/internal/status"
)

// setScheduled sets a condition that is True if the snapshot schedule can be parsed. Whether snapshots succeed is shown
// by the EtcdSnapshots. The condition does not affect the cluster's readiness, because a cluster without snapshots
// still works.
func setScheduled(object *infrav1.DroverCluster, update *status.Update) {
	text, conditions := object.Spec.Etcd.Schedule, &object.Status.Conditions
	if text == "" {
		meta.RemoveStatusCondition(conditions, infrav1.ConditionEtcdScheduled)
		return
	}
	condition := metav1.Condition{Type: infrav1.ConditionEtcdScheduled, Status: metav1.ConditionTrue, Reason: infrav1.ReasonScheduled, Message: "the schedule is valid; to check whether snapshots succeed, see the latest EtcdSnapshot", ObservedGeneration: object.Generation}
	if _, err := schedule.Parse(text); err != nil {
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, infrav1.ReasonScheduleInvalid, "no etcd snapshots are scheduled: spec.etcd.schedule: "+err.Error()
	}
	before := meta.FindStatusCondition(*conditions, condition.Type)
	if condition.Status == metav1.ConditionFalse && (before == nil || before.Message != condition.Message) {
		update.Event(status.Event{Warning: true, Reason: condition.Reason, Action: "Schedule", Message: protocol.Cut(condition.Message, 512)})
	}
	meta.SetStatusCondition(conditions, condition)
}
