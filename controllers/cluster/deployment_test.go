// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// agentIs checks the status and reason of the AgentUpToDate condition, and returns its message.
func (w *world) agentIs(state metav1.ConditionStatus, reason string) string {
	w.t.Helper()
	c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionAgentUpToDate)
	if c == nil || c.Status != state || c.Reason != reason {
		w.t.Fatalf("AgentUpToDate is %+v, want %s %s", c, state, reason)
	}
	return c.Message
}

// digest returns the digest of the Deployment in the Cluster's manifest.
func (w *world) digest() string {
	w.t.Helper()
	_, rest, found := strings.Cut(string(w.secret(registration.RegistrationSecret(w.name)).Data[registration.KeyManifest]), v1.AnnotationAgentDigest+": ")
	if !found {
		w.t.Fatal("the manifest has no digest")
	}
	digest, _, _ := strings.Cut(rest, "\n")
	return digest
}

// leading makes an agent the leader with a rolled-out Deployment for the current spec.
func (w *world) leading(agent *testkit.Agent) {
	w.t.Helper()
	w.says(agent, protocol.Deployment{Digest: w.digest(), RolledOut: true})
}

// says makes the leader report its Deployment, and reconciles.
func (w *world) says(agent *testkit.Agent, d protocol.Deployment) {
	w.t.Helper()
	agent.Report(func(r *protocol.Report) { r.Leader, r.Deployment = true, &d })
	w.until(func(s members.State) bool { return s.Report.Deployment != nil && *s.Report.Deployment == d })
	w.reconcile()
}

// setAgent changes spec.agent, and reconciles until the agent has received the new Deployment.
func (w *world) setAgent(agent *testkit.Agent, image string) string {
	w.t.Helper()
	c := w.cluster()
	c.Spec.Agent.Image = image
	if err := w.Client.Update(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
	w.reconcile()
	return string(<-agent.Deployments)
}

func testDeploy(w *world) {
	agent, _ := w.joined()
	w.agentIs(metav1.ConditionUnknown, v1.ReasonAgentUnmanaged) // an agent that knows no leader
	w.says(agent, protocol.Deployment{Unmanaged: true, Message: "there is none"})
	if message := w.agentIs(metav1.ConditionUnknown, v1.ReasonAgentUnmanaged); !strings.Contains(message, "there is none") {
		w.t.Errorf("a member without a Deployment: %v, want that there is none", message)
	}
	old := w.digest()
	w.leading(agent)
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)

	if got := w.setAgent(agent, "drover:new"); !strings.Contains(got, `"image":"drover:new"`) || !strings.Contains(got, w.digest()) {
		w.t.Errorf("the agent was given %s", got)
	}
	w.agentIs(metav1.ConditionFalse, v1.ReasonAgentUpdating)
	w.says(agent, protocol.Deployment{Digest: w.digest()})
	w.agentIs(metav1.ConditionFalse, v1.ReasonAgentUpdating)
	w.leading(agent)
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	w.says(agent, protocol.Deployment{Digest: w.digest()})
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated) // a pod that is not ready for a while
	w.says(agent, protocol.Deployment{Digest: w.digest(), NotReady: "pod p was not scheduled on a node"})
	if message := w.agentIs(metav1.ConditionFalse, v1.ReasonAgentNotReady); !strings.Contains(message, "pod p was not scheduled on a node. See in the member") {
		w.t.Errorf("the message is %v, want the pod without a node, and where to look", message)
	}
	w.expectEventOnce("Warning " + v1.ReasonAgentNotReady)
	w.leading(agent)
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)

	w.says(agent, protocol.Deployment{Digest: w.digest(), RolledOut: true, NodeAgents: "daemonsets is forbidden"})
	if message := w.agentIs(metav1.ConditionFalse, v1.ReasonNodeAgentsMissing); !strings.Contains(message, "daemonsets is forbidden. Apply the manifest in Secret") {
		w.t.Errorf("the message is %v, want why there are no node agents, and to apply the manifest", message)
	}
	w.expectEventOnce("Warning " + v1.ReasonNodeAgentsMissing)

	w.says(agent, protocol.Deployment{Digest: old, RolledOut: true, Failed: w.digest(), Message: "ImagePullBackOff"})
	if message := w.agentIs(metav1.ConditionFalse, v1.ReasonAgentRolledBack); !strings.Contains(message, "ImagePullBackOff") {
		w.t.Errorf("the message is %v, want ImagePullBackOff as the cause", message)
	}
	w.says(agent, protocol.Deployment{Digest: old, RolledOut: true, Failed: w.digest(), Rejected: true, Message: "tolerations"})
	w.agentIs(metav1.ConditionFalse, v1.ReasonAgentRejected)
	w.expectEventOnce("Warning " + v1.ReasonAgentRejected)
	w.clock.Advance(time.Hour)
	w.reconcile()
	if len(agent.Deployments) > 0 {
		w.t.Error("what was put back was sent again")
	}
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	w.setAgent(agent, "drover:newer")
	w.agentIs(metav1.ConditionFalse, v1.ReasonAgentUpdating)
}

func testDeployRefused(w *world) {
	agent, _ := w.joined()
	w.leading(agent)
	w.setAgent(agent, "refuse-me")
	testkit.Eventually(w.t, 10*time.Second, func(context.Context) error {
		w.reconcile() // as after the end of the call
		if c := meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionAgentUpToDate); c.Reason != v1.ReasonAgentRejected {
			return errors.New(c.Reason)
		}
		return nil
	})
	if message := w.agentIs(metav1.ConditionFalse, v1.ReasonAgentRejected); !strings.Contains(message, "its image") {
		w.t.Errorf("the message is %v, want the agent's reason, its image", message)
	}
	if result := w.reconcile(); result.RequeueAfter > 0 || len(agent.Deployments) > 0 {
		w.t.Errorf("it is asked again: %+v", result)
	}
}

// testOtherProfile: an agent that was installed with one profile is never sent the Deployment of the other profile,
// because its rights would not match its profile. The condition says what to do, and other changes wait until this is
// done.
func testOtherProfile(w *world) {
	agent, _ := w.joined()
	w.leading(agent)
	for _, tc := range []struct {
		spec      v1.AgentProfile
		installed string
		until     string
	}{
		{v1.ProfileReadOnly, "", "takes back what the hub delivered before"},
		{v1.ProfileFull, "ReadOnly", "the hub delivers nothing there"},
	} {
		agent.Report(func(r *protocol.Report) { r.Profile = tc.installed })
		w.until(func(s members.State) bool { return s.Report.Profile == tc.installed })
		c := w.cluster()
		c.Spec.Agent.Profile, c.Spec.Agent.Image = tc.spec, "drover:other"
		if err := w.Client.Update(w.t.Context(), c); err != nil {
			w.t.Fatal(err)
		}
		w.reconcile()
		w.clock.Advance(time.Hour)
		w.reconcile()
		message := w.agentIs(metav1.ConditionFalse, v1.ReasonAgentProfileDiffers)
		if !strings.Contains(message, "Apply the manifest in Secret member-registration, key manifest.yaml, in the member") || !strings.Contains(message, tc.until) {
			w.t.Errorf("the message is %v, want what to apply, and until when", message)
		}
		if len(agent.Deployments) > 0 {
			w.t.Errorf("the agent was handed %s", <-agent.Deployments)
		}
	}
	agent.Report(func(r *protocol.Report) { r.Profile = "" }) // the manifest has been applied
	w.until(func(s members.State) bool { return s.Report.Profile == "" })
	w.reconcile()
	w.agentIs(metav1.ConditionFalse, v1.ReasonAgentUpdating)
	if got := string(<-agent.Deployments); !strings.Contains(got, "drover:other") {
		w.t.Errorf("the agent was given %s", got)
	}
}

func testStillInForce(w *world) {
	agent, _ := w.joined()
	w.leading(agent)
	told := func(left ...string) *metav1.Condition {
		agent.Report(func(r *protocol.Report) { r.Profile, r.Left = "ReadOnly", left })
		w.until(func(s members.State) bool { return len(s.Report.Left) == len(left) })
		w.reconcile()
		return meta.FindStatusCondition(w.cluster().Status.Conditions, v1.ConditionWithdrawn)
	}
	c := told("crtb.alice-owns-prod", "project.web")
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1.ReasonStillInForce || !strings.Contains(c.Message, "crtb.alice-owns-prod, project.web") ||
		!strings.Contains(c.Message, "-A -l cluster.drover.dev/set && kubectl -n drover-agent") {
		w.t.Fatalf("the condition is %+v, want StillInForce with the sets and what to do", c)
	}
	if c = told(); c != nil {
		w.t.Errorf("the condition is %+v, want none once no set is in force", c)
	}
}

func testLeaderless(w *world) {
	agent, _ := w.joined()
	w.leading(agent)
	agent.Report(func(r *protocol.Report) { r.Leader, r.Deployment, r.Nodes, r.Distribution = false, nil, nil, "" })
	w.until(func(s members.State) bool { return !s.Report.Leader })
	before := w.cluster()
	w.reconcile()
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	c := w.cluster()
	if c.ResourceVersion != before.ResourceVersion || c.Status.Nodes.Summary != "2/3" || c.Status.Distribution != "k3s" || c.Labels[v1.LabelDistribution] != "k3s" {
		w.t.Errorf("something was written: %+v %v", c.Status, c.Labels)
	}
}
