// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
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

func testByNodeAgent(w *world) {
	agent, key := w.joined()
	w.leading(agent)
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	report := testkit.HealthyReport()
	report.Nodes, report.SettingsDigest = nil, w.settings.Digest()
	report.Deployment = &protocol.Deployment{Unmanaged: true} // only a leader knows this
	node := w.connectAs(members.Peer{Key: registration.KeyID(key), Instance: "node-1", NodeAgent: true}, report)
	w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	if s := w.cluster().Status; s.Agent.Replicas != 1 {
		w.t.Errorf("%d replicas are connected beside a node agent, want 1", s.Agent.Replicas)
	}

	_ = agent.Session.Close()
	w.until(func(s members.State) bool { return s.ByNodeAgent() })
	result := w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	if result.RequeueAfter <= 0 || result.RequeueAfter > 21*time.Second {
		w.t.Errorf("looks again after %s, want a replica of the agent to be awaited for 20 s", result.RequeueAfter)
	}
	w.clock.Advance(result.RequeueAfter)
	w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnectedByNodeAgent)
	w.expectEventOnce("Warning " + v1.ReasonConnectedByNodeAgent)
	s := w.cluster().Status
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionConnected); c.Status != metav1.ConditionTrue || c.Reason != v1.ReasonConnectedByNodeAgent {
		w.t.Errorf("Connected is %s %s, want True by a node agent", c.Status, c.Reason)
	}
	if c := meta.FindStatusCondition(s.Conditions, v1.ConditionReady); !strings.Contains(c.Message, "nothing is delivered there") || !strings.Contains(c.Message, "get deployment,pods") {
		w.t.Errorf("the message is %q, want what does not work and where to look", c.Message)
	}
	if s.Agent.Replicas != 0 || s.Nodes == nil || s.Nodes.Summary != "2/3" {
		w.t.Errorf("%d replicas, nodes %v, want none, and what was known before", s.Agent.Replicas, s.Nodes)
	}
	// unchanged, regardless of what a node agent reports about the Deployment
	w.agentIs(metav1.ConditionTrue, v1.ReasonAgentUpdated)
	if len(node.Deployments) > 0 {
		w.t.Error("the node agent was given a Deployment")
	}

	w.connect(key, testkit.HealthyReport())
	w.reconcile()
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
}

func testRemoveByNodeAgent(w *world) {
	agent, key := w.joined()
	node := testkit.ConnectNodeAgent(w.t, testkit.HealthyReport())
	peer := members.Peer{Key: registration.KeyID(key), Instance: "node-1", NodeAgent: true}
	peer.Cluster = protocol.ClusterRef{Namespace: w.name.Namespace, Name: w.name.Name, UID: string(w.cluster().UID)}
	w.registry.Add(peer, node.Session)
	agent.Kill()
	w.until(func(s members.State) bool { return s.ByNodeAgent() && s.Report != nil })
	w.delete()
	w.reconcile()
	w.until(func(members.State) bool { return w.registry.StartUninstall(w.name).Err != nil })
	if result := w.reconcile(); result.RequeueAfter <= 0 || result.RequeueAfter > 20*time.Second {
		w.t.Errorf("looks again after %s, want a replica of the agent to be awaited for 20 s", result.RequeueAfter)
	}
	w.ready(metav1.ConditionFalse, v1.ReasonRemoving)
	back := w.connect(key, testkit.HealthyReport())
	w.reconcile()
	<-back.Uninstalled
	w.until(func(members.State) bool { return w.registry.StartUninstall(w.name).Done() })
	w.reconcile()
	w.gone()
	if told := w.events(); strings.Contains(told, v1.ReasonLeftBehind) {
		w.t.Errorf("the events are %s", told)
	}
}
