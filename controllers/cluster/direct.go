// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/status"
)

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
