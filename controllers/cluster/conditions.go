// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// maxCause is the maximum length, in bytes, of an external error's text in a condition.
const maxCause = 1024

// lastChecked tells users how to find out when a condition was last checked. The condition itself does not contain this
// time, because that would require writes even for idle members. The leader renews its Lease in any case, so users can
// look at the Lease instead.
const lastChecked = "The leading manager of the hub watches it. Its Lease shows when it last did: kubectl -n drover-system get lease drover-manager -o yaml"

// conditionValue is the status, reason and message of a condition.
type conditionValue struct {
	ok      bool
	reason  string
	message string
	// stalled is true if manual action is required.
	stalled bool
}

// writeStatus writes the facts to the status, and adds an event for each change that is relevant to users.
func writeStatus(in *input, update *status.Update) {
	registered := decideRegistered(in)
	connected := decideConnected(in, registered)
	ready := decideReady(in, registered, connected)
	was := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionReady)
	// Three changes cause no event. The wait for a report is usually over almost immediately. A new Cluster that waits for
	// its agent already has an event about the token. If an agent was refused, the replica that refused it has already
	// emitted an event.
	first := was == nil || was.Status == metav1.ConditionUnknown
	skip := ready.reason == v1.ReasonAwaitingReport || first && ready.reason == v1.ReasonAwaitingAgent || in.repeats(ready)
	if (was == nil || was.Reason != ready.reason) && !skip {
		update.Event(status.Event{Warning: !ready.ok && ready.reason != v1.ReasonAwaitingAgent || ready.reason == v1.ReasonConnectedByNodeAgent,
			Reason: ready.reason, Action: "Observe", Message: ready.message})
	}
	set(in, v1.ConditionRegistered, registered)
	set(in, v1.ConditionConnected, connected)
	set(in, v1.ConditionReady, ready)
	if ready.stalled {
		set(in, v1.ConditionStalled, conditionValue{ok: true, reason: ready.reason, message: ready.message})
	} else {
		meta.RemoveStatusCondition(&in.cluster.Status.Conditions, v1.ConditionStalled)
	}
	in.cluster.Status.ObservedGeneration = in.cluster.Generation
	if in.member.Clones != nil {
		return // the two clusters take turns sending reports
	}
	writeAgentUpToDate(in, update)
	writeWithdrawn(in, update)
	writeMaintained(in, update)
	writeContinuous(in, update)
	writeFacts(in)
}

// repeats reports whether a condition merely repeats the reason why the hub refused the agent.
func (in *input) repeats(v conditionValue) bool {
	r := in.member.Refusal
	return r != nil && v.message == capitalize(r.Message)
}

// writeRemoving reports that a deleted Cluster is waiting for its agent.
func writeRemoving(in *input, update *status.Update) {
	ready := conditionValue{reason: v1.ReasonRemoving, message: fmt.Sprintf(
		"Waiting until %s for the agent to uninstall itself",
		in.cluster.DeletionTimestamp.Add(removalPatience).UTC().Format(time.TimeOnly))}
	if c := meta.FindStatusCondition(in.cluster.Status.Conditions, v1.ConditionReady); c == nil || c.Reason != ready.reason {
		update.Event(status.Event{Reason: ready.reason, Action: "Remove", Message: ready.message})
	}
	set(in, v1.ConditionReady, ready)
}

func set(in *input, kind string, v conditionValue) {
	state := metav1.ConditionFalse
	if v.ok {
		state = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&in.cluster.Status.Conditions, metav1.Condition{
		Type: kind, Status: state, Reason: v.reason, Message: v.message,
		ObservedGeneration: in.cluster.Generation, LastTransitionTime: metav1.NewTime(in.now),
	})
}

// decideRegistered determines whether an agent has joined. If no agent has joined, the result explains why.
func decideRegistered(in *input) conditionValue {
	secret := registration.RegistrationSecret(in.name).Name
	switch {
	case in.identity != nil:
		message := "The agent of the cluster with kube-system UID " + in.identity.ClusterUID + " has joined"
		if r := in.member.Refusal; r != nil && (r.Reason == v1.ReasonIdentityMismatch || r.Reason == v1.ReasonTokenUsed) {
			// other refusals matter only while the agent is disconnected; the Connected condition reports them
			message += ". Refused since: " + r.Message
		}
		if in.chosen.value != "" && in.chosen.value != in.token.Value {
			message += fmt.Sprintf(". The token in Secret %s is another one: for it to count, delete Secret %s", in.cluster.Spec.Registration.TokenSecretRef.Name, secret)
		}
		return conditionValue{ok: true, reason: v1.ReasonAgentJoined, message: message}
	case in.foreignSecret:
		return conditionValue{reason: v1.ReasonSecretConflict, stalled: true, message: fmt.Sprintf(
			"Secret %s exists and is not Drover's; rename or delete it, or rename the Cluster", secret)}
	case in.tooMany > 0:
		return conditionValue{reason: v1.ReasonTooManyClusters, stalled: true, message: fmt.Sprintf(
			"Workspace %s has %d older Clusters, which is the limit, so this one gets no join token; delete one that is not needed, or have limits.workspace.clusters raised in the manager's configuration",
			in.name.Namespace, in.tooMany)}
	case in.registerErr != nil && in.secret == nil:
		return conditionValue{reason: v1.ReasonRegistrationFailed, message: "The registration Secret could not be written: " + protocol.Cut(in.registerErr.Error(), maxCause)}
	case in.chosen.problem != "":
		return conditionValue{reason: v1.ReasonTokenInvalid, message: capitalize(in.chosen.problem), stalled: true}
	case in.token.Used:
		return conditionValue{reason: v1.ReasonTokenUsed, stalled: true, message: fmt.Sprintf(
			"The token in Secret %s was used by an agent that has been revoked; put a new one there", in.cluster.Spec.Registration.TokenSecretRef.Name)}
	case !in.now.Before(in.token.Expires()):
		what := "delete Secret " + secret + " for a new one"
		if ref := in.cluster.Spec.Registration.TokenSecretRef; ref != nil {
			what = "put a new one into Secret " + ref.Name
		}
		return conditionValue{reason: v1.ReasonTokenExpired, stalled: true, message: fmt.Sprintf(
			"No agent joined before the join token expired at %s; %s", in.token.Expires().UTC().Format(time.RFC3339), what)}
	}
	if r := in.member.Refusal; r != nil && r.Reason == v1.ReasonAlreadyImported {
		return conditionValue{reason: r.Reason, message: capitalize(r.Message), stalled: true}
	}
	message := fmt.Sprintf("Run in the cluster: the command in Secret %s, key %s", secret, registration.KeyCommand)
	if r := in.member.Refusal; r != nil {
		message += ". The hub refuses an agent: " + r.Message
	}
	return conditionValue{reason: v1.ReasonAwaitingAgent, message: message}
}

// decideConnected determines whether the agent's tunnel is open. If the tunnel is not open, the result explains why.
func decideConnected(in *input, registered conditionValue) conditionValue {
	switch {
	case !registered.ok:
		return registered
	case in.member.Clones != nil:
		message := clonesMessage(in.name.Name, in.member.Clones)
		return conditionValue{reason: v1.ReasonIdentityMismatch, message: message, stalled: true}
	case in.member.ByNodeAgent():
		return conditionValue{ok: true, reason: v1.ReasonConnectedByNodeAgent, message: "A node agent's tunnel is open. " + lastChecked}
	case in.member.Connected():
		return conditionValue{ok: true, reason: v1.ReasonConnected, message: "The agent's tunnel is open. " + lastChecked}
	case in.member.Refusal != nil && in.member.Refusal.Reason == v1.ReasonIdentityMismatch:
		return conditionValue{reason: v1.ReasonIdentityMismatch, message: capitalize(in.member.Refusal.Message), stalled: true}
	case in.member.Refusal != nil && (in.member.Refusal.Reason == v1.ReasonAgentTooFast || in.member.Refusal.Reason == v1.ReasonTooManyTunnels):
		return conditionValue{reason: in.member.Refusal.Reason, message: capitalize(in.member.Refusal.Message)}
	case in.awaitingTunnel():
		return conditionValue{reason: v1.ReasonAwaitingAgent, message: "The agent has joined and has not opened its tunnel yet"}
	}
	message := "The agent's tunnel has ended"
	if in.member.LostBecause != nil {
		message += ": " + in.member.LostBecause.Error()
	}
	if r := in.member.Refusal; r != nil {
		return conditionValue{reason: v1.ReasonTunnelLost, message: message + "; the hub refuses the agent: " + r.Message}
	}
	return conditionValue{reason: v1.ReasonTunnelLost, message: message + "; it comes back by itself. If it does not, see the log of the agent in the cluster: kubectl -n " +
		protocol.AgentNamespace + " logs deploy/" + protocol.AgentName}
}

// decideReady returns the Ready condition. If there are problems, it reports the first one.
func decideReady(in *input, registered, connected conditionValue) conditionValue {
	report := in.member.Report
	switch {
	case !registered.ok:
		return registered
	case !connected.ok:
		return connected
	case in.member.ReportErr != nil:
		return conditionValue{reason: v1.ReasonVersionSkew, message: capitalize(in.member.ReportErr.Error()) + "; upgrade the agent", stalled: true}
	case report == nil:
		return conditionValue{reason: v1.ReasonAwaitingReport, message: "The agent is connected and is inspecting its cluster"}
	case versionSkew(report) != "":
		return conditionValue{reason: v1.ReasonVersionSkew, message: versionSkew(report), stalled: true}
	case !report.Health.Healthy:
		return conditionValue{reason: v1.ReasonAPIServerUnhealthy, message: "The agent finds its API server unhealthy: " + report.Health.Message}
	}
	if in.member.ByNodeAgent() {
		return conditionValue{ok: true, reason: v1.ReasonConnectedByNodeAgent, message: "No replica of the agent is connected. Users reach the member through a node agent; " +
			"nothing is delivered there. See what keeps the agent from connecting, through the hub or in the member: kubectl -n " +
			protocol.AgentNamespace + " get deployment,pods"}
	}
	return conditionValue{ok: true, reason: v1.ReasonConnected, message: "The agent is connected and its API server is healthy"}
}

// versionSkew returns advice to upgrade either the hub or the agent. It returns "" if they have a protocol version in
// common.
func versionSkew(report *protocol.Report) string {
	switch {
	case report.Protocol < protocol.MinVersion:
		return fmt.Sprintf("Agent %s speaks protocol %d, the hub needs %d or newer; upgrade the agent", report.AgentVersion, report.Protocol, protocol.MinVersion)
	case report.MinProtocol > protocol.Version:
		return fmt.Sprintf("Agent %s needs protocol %d or newer, the hub speaks %d; upgrade the hub", report.AgentVersion, report.MinProtocol, protocol.Version)
	}
	return ""
}

func capitalize(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
