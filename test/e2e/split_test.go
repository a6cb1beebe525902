// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
)

// applyThrough applies a manifest in the first member with a kubeconfig that leads through the hub, as described in
// docs/operations/moving.md.
func (s *system) applyThrough(t *testing.T, kubeconfig string, manifest []byte) {
	t.Helper()
	if out, err := framework.Kubectl(within(t, time.Minute), s.programs, kubeconfig, manifest, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
}

// orphan deletes a Cluster on a hub without changing its member.
func orphan(t *testing.T, hub *framework.Hub, cluster types.NamespacedName) {
	t.Helper()
	for _, args := range [][]string{
		{"-n", cluster.Namespace, "patch", "cluster.cluster.drover.dev", cluster.Name, "--type", "merge", "-p", `{"spec":{"deletionPolicy":"Orphan"}}`},
		{"-n", cluster.Namespace, "delete", "cluster.cluster.drover.dev", cluster.Name, "--timeout", "60s"},
	} {
		if out, err := hub.Kubectl(within(t, time.Minute), nil, args...); err != nil {
			t.Fatal(out, err)
		}
	}
}

// bindIn creates a binding to the role of a watcher for a Cluster.
func (s *system) bindIn(t *testing.T, cluster types.NamespacedName, name string) {
	t.Helper()
	create(t, s.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name},
		Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: v1.ClusterTarget{ClusterName: cluster.Name}, RoleTemplateName: "watcher",
			Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:" + name}}})
}

// TestLong_AMemberMovesToAnotherWorkspace is the drill "Move a member to another workspace" of
// docs/operations/moving.md. The agent stays in place.
func TestLong_AMemberMovesToAnotherWorkspace(t *testing.T) {
	t.Parallel()
	s := start(t)
	before, _ := s.imported(t, "first", s.member, protocol.AgentNamespace)
	s.await(t, before, time.Minute, framework.Ready)
	s.bindWatcher(t, "kept")
	s.bindWatcher(t, "left")
	bound := s.awaitBindings(t, "kept", "left")
	reach := s.kubeconfig(t, before, demoToken)

	after := types.NamespacedName{Namespace: "team-b", Name: "first"}
	create(t, s.hub.Plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: after.Namespace}})
	manifest, err := s.hub.CreateCluster(within(t, time.Minute), after)
	if err != nil {
		t.Fatal(err)
	}
	s.bindIn(t, after, "kept") // everything that must go on without a break exists before the agent comes
	s.applyThrough(t, reach, manifest)
	t.Run("while it is in the old workspace, the new one says so", func(t *testing.T) {
		s.await(t, after, 2*time.Minute, func(c *v1.Cluster) bool { return hasReason(c, v1.ReasonAlreadyImported) })
		if c := s.cluster(t, before); !framework.Ready(c) {
			t.Errorf("the old Cluster is no longer Ready: %+v", c.Status.Conditions)
		}
		if now := s.awaitBindings(t, "kept", "left"); !maps.Equal(now, bound) {
			t.Errorf("bindings were %v and are %v", bound, now)
		}
	})
	orphan(t, s.hub, before)
	s.await(t, after, 7*time.Minute, framework.Ready) // an agent that is refused tries again within five
	t.Run("what both have stays, and the rest is removed", func(t *testing.T) {
		if now := s.awaitBindings(t, "kept"); now["kept"] != bound["kept"] {
			t.Errorf("bindings were %v and are %v", bound, now)
		}
	})
	t.Run("users reach it in the new workspace alone", func(t *testing.T) {
		if out, err := framework.Kubectl(within(t, time.Minute), s.programs, reach, nil, "get", "namespaces"); err == nil {
			t.Errorf("through the old workspace: %s", out)
		}
		s.bindIn(t, after, "new")
		s.awaitBindings(t, "kept", "new")
	})
}

// hasReason reports whether the Ready condition of a Cluster has a reason.
func hasReason(c *v1.Cluster, reason string) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(has metav1.Condition) bool { return has.Type == v1.ConditionReady && has.Reason == reason })
}

// TestLong_AHubIsSplit is the drill "Split a hub" of docs/operations/moving.md. A second hub takes over one of two
// members, with its objects, and both hubs continue.
func TestLong_AHubIsSplit(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.hub
	moves, agent := s.imported(t, "first", s.member, protocol.AgentNamespace)
	stays, _ := s.imported(t, "stays", first.Plane, protocol.AgentNamespace)
	remaining := *s
	remaining.member = first.Plane
	s.await(t, moves, time.Minute, framework.Ready)
	s.await(t, stays, time.Minute, framework.Ready)
	s.bindWatcher(t, "moved")
	s.bindIn(t, stays, "stayed")
	moved, stayed := s.awaitBindings(t, "moved"), remaining.awaitBindings(t, "stayed")
	identity, err := s.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reach := s.kubeconfig(t, moves, demoToken)
	exported := s.backUp(t)

	second, err := s.plane("second")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Kill() })
	if s.hub, err = framework.InstallHub(within(t, 2*time.Minute), second); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
	if other, err := s.authority(t.Context()); err != nil || other.Identity == identity.Identity {
		t.Fatalf("%v: the identity of both hubs is %s", err, other.Identity)
	}
	for i := range exported {
		o := &exported[i]
		if o.GetKind() != "Secret" && o.GetName() != "stays" && o.GetName() != "stayed" {
			if err := s.hub.Client.Create(t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
				t.Fatal(err)
			}
		}
	}
	manifest, err := s.hub.Manifest(within(t, time.Minute), moves, s.cluster(t, moves).UID)
	if err != nil {
		t.Fatal(err)
	}
	s.applyThrough(t, reach, manifest)
	kill(t, agent.Process) // as the change of its Deployment does
	s.agent(t, manifest, "first", s.member, protocol.AgentNamespace)
	s.await(t, moves, 2*time.Minute, framework.Ready)
	orphan(t, first, moves)

	t.Run("each hub has its member, in which nothing was interrupted", func(t *testing.T) {
		if now := s.awaitBindings(t, "moved"); !maps.Equal(now, moved) {
			t.Errorf("bindings in the member that moved were %v and are %v", moved, now)
		}
		if now := remaining.awaitBindings(t, "stayed"); !maps.Equal(now, stayed) {
			t.Errorf("bindings in the member that stays were %v and are %v", stayed, now)
		}
		for _, hub := range []*system{s, &remaining} {
			if out, code := hub.restored(t, "--all"); code != 0 || !strings.Contains(out, "No member waits") {
				t.Errorf("a hub takes itself for restored: %d, %s", code, out)
			}
		}
		remaining.await(t, stays, time.Minute, framework.Ready)
	})
	t.Run("each hub goes on with its own", func(t *testing.T) {
		s.bindIn(t, moves, "new-there")
		remaining.bindIn(t, stays, "new-here")
		s.awaitBindings(t, "moved", "new-there")
		remaining.awaitBindings(t, "new-here", "stayed")
	})
}
