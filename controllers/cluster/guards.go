// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/status"
)

// writeGuardsApplied writes the GuardsApplied condition. It emits an event when the guards can no longer be applied,
// and when they are applied again.
func writeGuardsApplied(in *input, guards delivery.Outcome, update *status.Update) {
	conditions := &in.cluster.Status.Conditions
	before := meta.FindStatusCondition(*conditions, v1.ConditionGuardsApplied)
	now, known := decideGuards(guards)
	if guards.Stage == delivery.Refused && guards.Reason == v1.ReasonAgentReadOnly {
		// no objects are delivered to this member, so no guards are needed
		meta.RemoveStatusCondition(conditions, v1.ConditionGuardsApplied)
		return
	}
	if !known {
		return
	}
	if first := before == nil; first && !now.ok || !first && before.Reason != now.reason {
		update.Event(status.Event{Warning: !now.ok, Reason: now.reason, Action: "Guard", Message: now.message})
	}
	set(in, v1.ConditionGuardsApplied, now) // must be last, because it changes the value of "before"
}

// decideGuards returns the value of the GuardsApplied condition. The known result is false while the member is
// disconnected, and while guards are being sent to the member.
func decideGuards(o delivery.Outcome) (v conditionValue, known bool) {
	switch o.Stage {
	case delivery.Applied:
		return conditionValue{ok: true, reason: v1.ReasonGuardsApplied, message: "The policies that guard projects are in force in the member"}, true
	case delivery.Failed, delivery.Refused:
		return undelivered(o, "The policies that guard projects are not all in force in the member"), true
	}
	return conditionValue{}, false
}

// undelivered returns the condition value for a set that could not be delivered to the member.
func undelivered(o delivery.Outcome, message string) conditionValue {
	if len(o.Failures) > 0 {
		message += ". " + delivery.Explain(o.Failures[0])
	}
	return conditionValue{reason: o.Reason, message: message}
}

// guarded returns the outcome of delivering the guards to a member. The outcome is unknown if no delivery store exists.
func (r *Reconciler) guarded(in *input) delivery.Outcome {
	if r.Guards == nil {
		return delivery.Outcome{Stage: delivery.Pending}
	}
	return r.Guards(in.name)
}
