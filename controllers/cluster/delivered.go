// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
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

// writeDirectAccess writes the DirectAccess condition. It also emits an event when the condition becomes False for a
// new reason. If the spec does not enable direct access, it removes the condition.
func (r *Reconciler) writeDirectAccess(in *input, update *status.Update) {
	conditions := &in.cluster.Status.Conditions
	if !in.cluster.Spec.AuthorizedEndpoint.On() {
		meta.RemoveStatusCondition(conditions, v1.ConditionDirectAccess)
		return
	}
	outcome := delivery.Outcome{Stage: delivery.Pending}
	if r.Direct != nil {
		outcome = r.Direct(in.name)
	}
	now, known := decideDirectAccess(r.Direct != nil, outcome, in)
	if !known {
		return
	}
	before := meta.FindStatusCondition(*conditions, v1.ConditionDirectAccess)
	if !now.ok && (before == nil || before.Reason != now.reason) {
		update.Event(status.Event{Warning: true, Reason: now.reason, Action: "ServeDirectly", Message: now.message})
	}
	set(in, v1.ConditionDirectAccess, now) // must be last, because it changes the value of "before"
}

// decideDirectAccess returns the value of the DirectAccess condition. The known result is false while the member is
// disconnected, and while newer data is being sent to the member.
func decideDirectAccess(signIn bool, o delivery.Outcome, in *input) (v conditionValue, known bool) {
	cluster := in.cluster
	switch {
	case !signIn:
		return conditionValue{reason: v1.ReasonSignInOff, message: "Users do not sign in at the hub, and only tokens of its issuer are accepted there: set signIn.issuer in the hub's configuration"}, true
	case o.Stage == delivery.Failed || o.Stage == delivery.Refused:
		return undelivered(o, "The member does not get the data that its agent verifies tokens with"), true
	case o.Stage != delivery.Applied:
		return conditionValue{}, false
	case cluster.Spec.AuthorizedEndpoint.TLSSecretName == "" && cluster.Status.DirectAuthority == "":
		return conditionValue{reason: v1.ReasonCertificateMissing, message: "The agent has the data that it verifies tokens with, but has reported no certificate: it is older than the hub, or its log says what fails"}, true
	}
	if !cluster.Spec.AuthorizedEndpoint.ByAPIServer() {
		return conditionValue{ok: true, reason: v1.ReasonDirectAccess, message: "The agent serves users at port 6443 of its pods; whether the address of spec.authorizedEndpoint leads there is not known"}, true
	}
	if report := in.member.Report; report != nil && report.Deployment != nil && report.Deployment.Direct != "" {
		return conditionValue{reason: v1.ReasonDaemonSetMissing, message: "The member's API servers have no agent to ask about users' tokens:  " + report.Deployment.Direct + ". Apply " + manifestOf(in) + " in the member"}, true
	}
	return conditionValue{ok: true, reason: v1.ReasonDirectAccess, message: "Experimental: API servers of the member find keys and reviews of tokens at " + protocol.DirectAddress + "; whether they are set to ask there is not known"}, true
}

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
