// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// deployed describes the progress of sending a Deployment to the agent. It is zero if there is nothing to send.
type deployed struct {
	members.Call
	digest string // digest of the desired Deployment; empty if it is not needed
	// want is the Deployment that results from the spec and the hub's settings. The own field is the Deployment that
	// results only from a change to the spec, or nil if the spec has not changed. observeAgent sets both fields.
	want registration.Deployment
	own  *registration.Deployment
	// waiting is true if the agent is waiting for its turn to receive want.
	waiting bool
}

// userAlone reports whether the desired Deployment results only from a change to the spec. In that case, the agent
// keeps its current version of the hub's part.
func (d deployed) userAlone() bool { return d.own != nil && d.own.Digest == d.want.Digest }

// refused is true if the agent has permanently refused this Deployment.
func (d deployed) refused() bool {
	answer := (*members.ResponseError)(nil)
	return errors.As(d.Err, &answer) && answer.Code == http.StatusUnprocessableEntity
}

// profileDiffers reports whether the agent was installed with a profile other than spec.agent.profile. In that case, an
// administrator has to apply the manifest. The agent cannot do so: its ClusterRole contains the profile's rights, and
// the agent cannot change its own ClusterRole.
func (in *input) profileDiffers() bool {
	return cmp.Or(in.member.Report.Profile, string(v1.ProfileFull)) != string(in.cluster.Spec.Agent.Profile)
}

// deploy sends a connected agent the Deployment that results from the spec, unless the agent already has that
// Deployment or has rolled it back before. The settings are sent first, because an agent that cannot store them should
// not be restarted. An agent with an unsupported protocol version also receives its Deployment, because the Deployment
// may replace it with a compatible agent. An agent with another profile does not, because an old agent would accept the
// Deployment and serve all users with the rights of the wrong profile. Changes that the hub makes for all agents wait
// for this agent's turn. Changes to the spec do not wait.
func (r *Reconciler) deploy(in *input) error {
	report := in.member.Report
	if report == nil || report.Deployment == nil || report.Deployment.Unmanaged {
		return nil
	}
	want, err := r.manifests.Deployment(r.manifestInput(in))
	if err != nil {
		return err
	}
	d := report.Deployment
	announcing := in.announced.Running || !in.announced.At.IsZero()
	settled := announcing || in.profileDiffers() || d.Digest == want.Digest || d.Failed == want.Digest
	if !settled && !r.mayUpgrade(in) {
		in.deployed.waiting = !in.deployed.userAlone()
		if in.deployed.own == nil {
			return nil
		}
		want = *in.deployed.own
		settled = d.Digest == want.Digest || d.Failed == want.Digest
	}
	if in.deployed.digest = want.Digest; !settled {
		in.deployed.Call = r.Members.StartDeployment(in.name, want.Digest, want.JSON)
	}
	return nil
}

// writeAgentUpToDate writes the AgentUpToDate condition. If the new value cannot be determined, it leaves the condition
// unchanged.
func writeAgentUpToDate(in *input, update *status.Update) {
	before := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionAgentUpToDate)
	now, known := decideAgent(in, before)
	if !known {
		return
	}
	failed := slices.Contains([]string{v1.ReasonAgentRolledBack, v1.ReasonAgentRejected, v1.ReasonAgentProfileDiffers, v1.ReasonAgentNotReady, v1.ReasonNodeAgentsMissing}, now.Reason)
	changed := before != nil && before.Reason != now.Reason
	if failed && (changed || before == nil) || changed && now.Reason == v1.ReasonAgentUpdated {
		update.Event(status.Event{Warning: failed, Reason: now.Reason, Action: "UpdateAgent", Message: now.Message})
	}
	now.Type, now.ObservedGeneration, now.LastTransitionTime = v1.ConditionAgentUpToDate, in.cluster.Generation, metav1.NewTime(in.now)
	// This must come last, because it changes the condition that "before" points to.
	meta.SetStatusCondition(&in.cluster.Status.Conditions, now)
}

// decideAgent returns the AgentUpToDate condition. The known result is false if the state of the agent cannot be
// determined at the moment. decideAgent has no side effects.
func decideAgent(in *input, before *metav1.Condition) (c metav1.Condition, known bool) {
	report := in.member.Report
	if !in.member.Connected() || in.member.ByNodeAgent() || report == nil || report.Deployment == nil && (report.Leader || report.Nodes == nil) {
		return c, false // the agent is disconnected, no replica is the leader, or the leader has not checked yet
	}
	d, want := report.Deployment, in.deployed.digest
	answer := (*members.ResponseError)(nil)
	condition := func(status metav1.ConditionStatus, reason, message string) (metav1.Condition, bool) {
		return metav1.Condition{Status: status, Reason: reason, Message: message}, true
	}
	const untilChange = "; it is not tried again until spec.agent or the hub's configuration changes"
	switch {
	case in.profileDiffers():
		return condition(metav1.ConditionFalse, v1.ReasonAgentProfileDiffers, otherProfile(in))
	case d == nil || d.Unmanaged:
		return condition(metav1.ConditionUnknown, v1.ReasonAgentUnmanaged, unmanaged(in, d))
	case in.deployed.waiting && (want == "" || d.Digest == want && d.RolledOut):
		return condition(metav1.ConditionFalse, v1.ReasonAgentWaiting, waiting(in))
	case want == "":
		return c, false
	case d.Failed == want && d.Rejected:
		return condition(metav1.ConditionFalse, v1.ReasonAgentRejected, "The member's API server refuses the agent's Deployment: "+d.Message+untilChange)
	case d.Failed == want:
		return condition(metav1.ConditionFalse, v1.ReasonAgentRolledBack, "The agent's Deployment was put back: "+d.Message+untilChange)
	case in.deployed.refused() && errors.As(in.deployed.Err, &answer):
		return condition(metav1.ConditionFalse, v1.ReasonAgentRejected, capitalize(answer.Text)+"; apply "+manifestOf(in)+" in the member")
	case d.Digest != want && in.deployed.Err != nil:
		return condition(metav1.ConditionFalse, v1.ReasonAgentUpdating, "The agent could not be given its Deployment and will be asked again: "+
			protocol.Cut(in.deployed.Err.Error(), maxCause))
	case d.Digest != want:
		return condition(metav1.ConditionFalse, v1.ReasonAgentUpdating, "The agent's Deployment is being changed")
	case d.NotReady != "":
		return condition(metav1.ConditionFalse, v1.ReasonAgentNotReady, "The agent's Deployment is as spec.agent says, but its deadline has passed before all of its pods were ready: "+
			d.NotReady+". See in the member: kubectl -n "+protocol.AgentNamespace+" get pods")
	case d.RolledOut && d.NodeAgents != "":
		return condition(metav1.ConditionFalse, v1.ReasonNodeAgentsMissing, "The member has no node agents: "+d.NodeAgents+". Apply "+manifestOf(in)+" in the member")
	// a pod that is temporarily not ready does not change the Deployment
	case d.RolledOut, before != nil && before.Status == metav1.ConditionTrue:
		return condition(metav1.ConditionTrue, v1.ReasonAgentUpdated, "The agent's Deployment is as spec.agent says")
	}
	return condition(metav1.ConditionFalse, v1.ReasonAgentUpdating, "The agent's Deployment is as spec.agent says, but not all of its pods are ready")
}

// otherProfile returns a message about an agent whose profile differs from the spec. The message explains what to do
// and which profile applies in the meantime.
func otherProfile(in *input) string {
	message := fmt.Sprintf("spec.agent.profile is %s, and the agent was installed with another profile, which only its manifest can change. "+
		"Apply %s in the member", in.cluster.Spec.Agent.Profile, manifestOf(in))
	if in.cluster.Spec.Agent.Profile == v1.ProfileReadOnly {
		return message + ". Until then people keep the rights that the member itself gives them, the hub delivers nothing there, and the agent takes back what the hub delivered before"
	}
	return message + ". Until then the agent serves reads only, and the hub delivers nothing there"
}

// manifestOf returns a phrase that names the Secret with the member's manifest and the key of the manifest in that
// Secret.
func manifestOf(in *input) string {
	return "the manifest in Secret " + registration.RegistrationSecret(in.name).Name + ", key " + registration.KeyManifest + ","
}

// unmanaged returns a message about an agent that cannot update itself. The message includes advice. Older agents do
// not report the reason.
func unmanaged(in *input, d *protocol.Deployment) string {
	message := "The agent cannot change its own Deployment"
	if d != nil && d.Message != "" {
		message += ": " + d.Message
	}
	return message + "; if it runs as the one in its manifest, apply " + manifestOf(in) + " again"
}
