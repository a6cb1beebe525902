// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

// memberPlan is a plan that a user applies in a member. It needs every right that an agent has for plans.
const memberPlan = `
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: k3s, namespace: drover-plans}
spec:
  version: v1.36.3+k3s1
  prepare: {image: rancher/k3s-upgrade, args: [prepare, other]}
  drain: {force: true, timeout: 60s}
  upgrade: {image: rancher/k3s-upgrade}
  secrets: [{name: token}]
  retries: {limit: 1, backoff: 0s}
  postCompleteLabels: {example.org/version: $(LATEST_VERSION)}
`

func TestAPlanOfAMemberWithoutAHub(t *testing.T) {
	t.Parallel()
	s := build(t)
	member, err := s.plane("member")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = member.Kill() })
	s.member = member
	s.playNodes(t, member, "node-a", "node-b")
	agent := s.agent(t, manifestWithoutHub(t), "member", member, protocol.AgentNamespace)
	logAtEnd(t, agent)
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error { // the agent brings the kind
		_, err := member.Kubectl(ctx, []byte(memberPlan), "apply", "-f", "-")
		return err
	})
	awaitPlan(t, member, v1.ReasonSecretNotFound)
	create(t, member, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: v1.PlansNamespace, Name: "token"}})
	awaitPlan(t, member, v1.ReasonComplete)
	expectUpgraded(t, member, "node-a", "node-b")
}

// playNodes simulates the nodes of a member. The first node has an application, and its first upgrade fails.
func (s *system) playNodes(t *testing.T, member *framework.Plane, names ...string) {
	t.Helper()
	failed := false
	sim := nodesim.Start(context.WithoutCancel(t.Context()), member.Client, func(p *corev1.Pod) nodesim.Script {
		if p.Labels["upgrade.cattle.io/plan"] == "" {
			return nodesim.Script{Hangs: true}
		}
		if !failed && p.Spec.NodeName == names[0] && strings.HasPrefix(p.Name, "apply-") {
			failed = true
			return nodesim.Script{Exit: 1, Log: "no space left on device"}
		}
		return nodesim.Script{}
	})
	t.Cleanup(sim.Close)
	for _, name := range names {
		if err := sim.AddNode(t.Context(), name, nil); err != nil {
			t.Fatal(err)
		}
	}
	create(t, member, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "app"}, Spec: corev1.PodSpec{
		NodeName: names[0], Containers: []corev1.Container{{Name: "main", Image: "app"}}, TerminationGracePeriodSeconds: new(int64(1)),
		AutomountServiceAccountToken: new(false),
	}})
}

// manifestWithoutHub returns the manifest of an agent whose hub does not exist.
func manifestWithoutHub(t *testing.T) []byte {
	t.Helper()
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
		Image: "drover", Trust: v1.TrustPinned, Token: strings.Repeat("t", 40),
		Settings: protocol.Settings{Servers: []string{"https://127.0.0.1:1"}, CABundle: string(ca.Cert)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return manifest
}

func logAtEnd(t *testing.T, agent *framework.Agent) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("agent log:\n%s", tail(agent.Log))
		}
	})
}

// awaitPlan waits until the Ready condition of the plan in a member has the given reason.
func awaitPlan(t *testing.T, member *framework.Plane, reason string) {
	t.Helper()
	testkit.Eventually(t, 90*time.Second, func(ctx context.Context) error {
		p := &v1.Plan{}
		if err := member.Client.Get(ctx, types.NamespacedName{Namespace: v1.PlansNamespace, Name: "k3s"}, p); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("the plan is %+v", p.Status)
		}
		return nil
	})
}

// expectUpgraded fails unless the nodes are in the state in which the plan leaves them, and the application was
// evicted.
func expectUpgraded(t *testing.T, member *framework.Plane, names ...string) {
	t.Helper()
	p := &v1.Plan{}
	if err := member.Client.Get(t.Context(), types.NamespacedName{Namespace: v1.PlansNamespace, Name: "k3s"}, p); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		n := &corev1.Node{}
		if err := member.Client.Get(t.Context(), types.NamespacedName{Name: name}, n); err != nil {
			t.Fatal(err)
		}
		key := v1.PlanLabel("k3s")
		if n.Labels[key] != p.Status.LatestHash || n.Labels["example.org/version"] != "v1.36.3-k3s1" || n.Spec.Unschedulable || n.Annotations[key] != "" {
			t.Errorf("node %s: labels %v, unschedulable %t, claim %q", name, n.Labels, n.Spec.Unschedulable, n.Annotations[key])
		}
	}
	app := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "app"}}
	if err := member.AwaitGone(within(t, 5*time.Second), app); err != nil {
		t.Error(errors.Join(errors.New("the application was not evicted"), err))
	}
}
