// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// daemonSet returns the DaemonSet of node agents, or nil if there is none.
func (m *fixture) daemonSet(ctx context.Context) (*appsv1.DaemonSet, error) {
	set := &appsv1.DaemonSet{}
	err := m.Client.Get(ctx, client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.NodeAgentName}, set)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return set, err
}

func (m *fixture) awaitNodeAgents(t *testing.T, image string) {
	t.Helper()
	testkit.Eventually(t, progressDeadline, func(ctx context.Context) error {
		switch set, err := m.daemonSet(ctx); {
		case err != nil:
			return err
		case image == "" && set == nil:
			return nil
		case set == nil:
			return errors.New("there is no DaemonSet")
		case set.Spec.Template.Spec.Containers[0].Image != image:
			return fmt.Errorf("the image of node agents is %s, want %q", set.Spec.Template.Spec.Containers[0].Image, image)
		}
		return nil
	})
}

// testNodeAgents runs with the rights from the manifest.
func testNodeAgents(t *testing.T, m *fixture, leadAgain func()) {
	give := func(image string, nodeAgent bool) {
		t.Helper()
		digest := m.hand(t, input(image, v1.Agent{NodeAgent: nodeAgent}))
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest })
	}
	give("drover:v4", true)
	if set, err := m.daemonSet(t.Context()); err != nil || set != nil {
		t.Errorf("got the DaemonSet %v and the error %v, want none before the Deployment is rolled out", set, err)
	}
	m.play(t, true)
	m.awaitNodeAgents(t, "drover:v4")
	m.await(t, "without a problem", func(d protocol.Deployment) bool { return d.RolledOut && d.NodeAgents == "" })
	set, err := m.daemonSet(t.Context())
	if err != nil || !set.Spec.Template.Spec.HostNetwork {
		t.Fatalf("got the error %v, want pods on the nodes' network", err)
	}

	give("drover:v5", true)
	m.awaitNodeAgents(t, "drover:v4") // the new image has not proved yet that it can connect
	m.play(t, true)
	m.awaitNodeAgents(t, "drover:v5")

	give("drover:v5", false)
	m.awaitNodeAgents(t, "")

	// A DaemonSet remains when another replica begins to lead, for example because the manifest was applied manually.
	m.stop()
	labels := map[string]string{"a": "b"}
	left := &appsv1.DaemonSet{}
	left.Namespace, left.Name = protocol.AgentNamespace, protocol.NodeAgentName
	left.Spec.Selector = set.Spec.Selector.DeepCopy()
	left.Spec.Selector.MatchLabels = labels
	left.Spec.Template.Labels, left.Spec.Template.Spec.Containers = labels, []corev1.Container{{Name: "a", Image: "b"}}
	if err := m.Client.Create(t.Context(), left); err != nil {
		t.Fatal(err)
	}
	leadAgain()
	m.awaitNodeAgents(t, "")
}

// testDirect runs with the rights from the manifest.
func testDirect(t *testing.T, m *fixture) {
	give := func(on bool) {
		t.Helper()
		in := input("drover:v6", v1.Agent{})
		in.APIServer = on
		digest := m.hand(t, in)
		m.await(t, "applied", func(d protocol.Deployment) bool { return d.Digest == digest })
		m.play(t, true)
	}
	there := func(want bool) {
		t.Helper()
		testkit.Eventually(t, progressDeadline, func(ctx context.Context) error {
			set := &appsv1.DaemonSet{}
			err := m.Client.Get(ctx, client.ObjectKey{Namespace: protocol.AgentNamespace, Name: protocol.DirectName}, set)
			if client.IgnoreNotFound(err) != nil {
				return err
			}
			if found := err == nil; found != want {
				return fmt.Errorf("the DaemonSet exists: got %t, want %t", found, want)
			}
			if pod := set.Spec.Template.Spec; want &&
				(pod.ServiceAccountName != protocol.DirectName || pod.Containers[0].Image != "drover:v6") {
				return fmt.Errorf("its account is %s and its image %s", pod.ServiceAccountName, pod.Containers[0].Image)
			}
			return nil
		})
	}
	give(true)
	there(true)
	m.await(t, "without a problem",
		func(d protocol.Deployment) bool { return d.RolledOut && d.Direct == "" && d.NodeAgents == "" })
	give(false)
	there(false)
}
