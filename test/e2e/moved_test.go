// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"maps"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_AMemberMovesToAnotherHub is the drill "Move a member to another hub" of docs/operations/moving.md, which is
// also used to split a hub. The manifest of the second hub is applied through the first.
func TestLong_AMemberMovesToAnotherHub(t *testing.T) {
	t.Parallel()
	s := start(t)
	first := s.hub
	cluster, agent := s.imported(t, "first", s.member, protocol.AgentNamespace)
	s.await(t, cluster, time.Minute, framework.Ready)
	s.bindWatcher(t, "kept")
	s.bindWatcher(t, "left")
	before := s.awaitBindings(t, "kept", "left")
	through := s.kubeconfig(t, cluster, demoToken)

	second, err := s.plane("second", lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Kill() })
	if s.hub, err = framework.InstallHub(within(t, 2*time.Minute), second); err != nil {
		t.Fatal(err)
	}
	moved := s.hub
	t.Cleanup(func() { _ = moved.Manager.Kill() })
	_, manifest := s.created(t, "first")
	s.bindWatcher(t, "kept") // everything that must go on without a break exists before the agent comes
	if out, err := framework.Kubectl(within(t, time.Minute), s.programs, through, manifest, "apply", "--server-side", "--force-conflicts", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	kill(t, agent.Process) // as the change of its Deployment does
	s.agent(t, manifest, "first", s.member, protocol.AgentNamespace)
	s.await(t, cluster, 2*time.Minute, framework.Ready)
	t.Run("what both hubs have stays, and the rest is removed", func(t *testing.T) {
		if now := s.awaitBindings(t, "kept"); now["kept"] != before["kept"] {
			t.Errorf("bindings were %v and are %v", before, now)
		}
		if c := s.cluster(t, cluster); c.Status.Restore != nil || meta.FindStatusCondition(c.Status.Conditions, v1.ConditionRestoreConfirmed) != nil {
			t.Errorf("the second hub takes itself for restored: %+v", c.Status)
		}
	})
	t.Run("the first hub forgets it, and the member stays with the second", func(t *testing.T) {
		gone := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: cluster.Name}}
		testkit.Update(t, first.Client, gone, func(c *v1.Cluster) { c.Spec.DeletionPolicy = v1.DeletionPolicyOrphan })
		if err := errors.Join(first.Client.Delete(t.Context(), gone), first.AwaitGone(within(t, time.Minute), gone)); err != nil {
			t.Fatal(err)
		}
		kept := s.awaitBindings(t, "kept")
		s.bindWatcher(t, "new")
		if now := s.awaitBindings(t, "kept", "new"); now["kept"] != kept["kept"] || !maps.Equal(kept, map[string]types.UID{"kept": before["kept"]}) {
			t.Errorf("bindings are %v", now)
		}
	})
}

// bindWatcher creates the role of a watcher on the hub, if it does not exist, and a binding to it for the first member.
func (s *system) bindWatcher(t *testing.T, name string) {
	t.Helper()
	role := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}}
	if err := s.hub.Client.Create(t.Context(), role); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
	s.bindFirst(t, name)
}
