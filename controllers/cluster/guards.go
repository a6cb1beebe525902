// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/status"
)

// tellGuards writes the condition GuardsApplied, and an event when the guards fail or are there again.
func tellGuards(in *input, guards delivery.Outcome, update *status.Update) {
	conditions := &in.cluster.Status.Conditions
	before := meta.FindStatusCondition(*conditions, v1.ConditionGuardsApplied)
	now, known := judgeGuards(guards)
	if guards.Stage == delivery.Refused && guards.Reason == v1.ReasonAgentReadOnly {
		meta.RemoveStatusCondition(conditions, v1.ConditionGuardsApplied) // nothing is delivered there, so there is nothing to guard
		return
	}
	if !known {
		return
	}
	if first := before == nil; first && !now.ok || !first && before.Reason != now.reason {
		update.Event(status.Event{Warning: !now.ok, Reason: now.reason, Action: "Guard", Message: now.message})
	}
	set(in, v1.ConditionGuardsApplied, now) // last: it changes what before points to
}

// judgeGuards is the condition GuardsApplied, and whether it can be told. What is on its way, or in a member that is away, is not known.
func judgeGuards(o delivery.Outcome) (v verdict, known bool) {
	switch o.Stage {
	case delivery.Applied:
		return verdict{ok: true, reason: v1.ReasonGuardsApplied, message: "The policies that guard projects are in force in the member"}, true
	case delivery.Failed, delivery.Refused:
		v = verdict{reason: o.Reason, message: "The policies that guard projects are not all in force in the member"}
		if len(o.Failures) > 0 {
			v.message += ". " + delivery.Explain(o.Failures[0])
		}
		return v, true
	}
	return verdict{}, false
}

// guarded is how the guards are in a member. Without a delivery store nothing is known.
func (r *Reconciler) guarded(in *input) delivery.Outcome {
	if r.Guards == nil {
		return delivery.Outcome{Stage: delivery.Pending}
	}
	return r.Guards(in.name)
}
