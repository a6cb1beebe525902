// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// withWatcher imports the member, and creates the role that bindFirst binds.
func withWatcher(t *testing.T) (s *system, first types.NamespacedName, manifest []byte, agent *framework.Agent) {
	t.Helper()
	s = start(t)
	first, manifest = s.created(t, "first")
	agent = s.agent(t, manifest, "first", s.member, protocol.AgentNamespace)
	s.await(t, first, time.Minute, framework.Ready)
	create(t, s.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}})
	return s, first, manifest, agent
}

func (s *system) unbindFirst(t *testing.T, name string) {
	t.Helper()
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	if err := s.hub.Client.Delete(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// cloned reports whether a Cluster's conditions say that it is two clusters, and what this means for revoked rights.
func cloned(c *v1.Cluster) bool {
	ready, stalled := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady), meta.FindStatusCondition(c.Status.Conditions, v1.ConditionStalled)
	return ready != nil && ready.Reason == v1.ReasonIdentityMismatch && ready.Status == metav1.ConditionFalse && strings.Contains(ready.Message, "stays in force in the copy") &&
		stalled != nil && stalled.Status == metav1.ConditionTrue
}

// TestLong_ACopyOfAMemberIsServedNothing copies a member's etcd into another control plane, and starts the agent there,
// so that two clusters have the same identity.
func TestLong_ACopyOfAMemberIsServedNothing(t *testing.T) {
	t.Parallel()
	s, first, manifest, _ := withWatcher(t)
	s.bindFirst(t, "kept")
	s.bindFirst(t, "revoked")
	s.awaitBindings(t, "kept", "revoked")
	dir := copyEtcd(t, s.member)
	s.unbindFirst(t, "revoked")
	s.awaitBindings(t, "kept")

	plane, err := s.plane("copy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	replaceEtcd(t, plane, dir)
	second := s.agent(t, manifest, "copy", plane, protocol.AgentNamespace)
	t.Run("the Cluster says so within a minute", func(t *testing.T) { s.awaitWithin(t, first, time.Minute, cloned) })
	t.Run("neither serves users, who are told why", func(t *testing.T) {
		out, err := s.kubectl(t, first, demoToken, "get", "namespaces")
		if err == nil || !strings.Contains(err.Error(), "two clusters have the identity") {
			t.Errorf("kubectl printed %q and failed with %v, want that two clusters have the identity", out, err)
		}
	})
	t.Run("neither is given anything, and bindings say why", func(t *testing.T) {
		s.bindFirst(t, "created")
		s.awaitBinding(t, "created", v1.ReasonIdentityMismatch)
		s.awaitBindings(t, "kept")
		awaitBindingsIn(t, plane, "kept", "revoked")
	})
	t.Run("a hub that restarts does not forget it", func(t *testing.T) {
		if err := errors.Join(s.hub.Manager.Kill(), s.hub.StartManager(within(t, time.Minute))); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if _, err := s.kubectl(t, first, demoToken, "get", "namespaces"); err == nil || !strings.Contains(err.Error(), "two clusters have the identity") {
				return fmt.Errorf("kubectl fails with %w, want that two clusters have the identity", err)
			}
			if c := s.cluster(t, first); !cloned(c) {
				t.Fatalf("the conditions are %+v, want IdentityMismatch all the time", c.Status.Conditions)
			}
			return nil
		})
	})
	t.Run("once the agent of the copy is gone, the other is served", func(t *testing.T) {
		kill(t, second.Process)
		s.await(t, first, time.Minute, framework.Ready)
		s.awaitBindings(t, "created", "kept")
		if out, err := s.kubectl(t, first, demoToken, "get", "namespaces"); err != nil {
			t.Errorf("kubectl fails with %v, want the namespaces: %s", err, out)
		}
		awaitBindingsIn(t, plane, "kept", "revoked") // as documented: nothing takes it away there
	})
	t.Run("the copy becomes a Cluster of its own, and what is not for that is removed", func(t *testing.T) {
		own, manifest := s.created(t, "second")
		identity := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: protocol.IdentitySecret}}
		if err := plane.Client.Delete(t.Context(), identity); err != nil {
			t.Fatal(err)
		}
		s.agent(t, manifest, "own", plane, protocol.AgentNamespace)
		s.await(t, own, time.Minute, framework.Ready)
		awaitBindingsIn(t, plane)
		if c := s.cluster(t, first); !framework.Ready(c) {
			t.Errorf("the conditions of the original are %+v, want it Ready", c.Status.Conditions)
		}
		s.awaitBindings(t, "created", "kept")
	})
}

// awaitBinding waits until a binding is not ready for the given reason.
func (s *system) awaitBinding(t *testing.T, name, reason string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		b := &v1.ClusterRoleTemplateBinding{}
		if err := s.hub.Client.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, b); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady); ready == nil || ready.Reason != reason {
			return fmt.Errorf("binding %s is %+v, want the reason %s", name, ready, reason)
		}
		return nil
	})
}

// manyWrites is a number of writes after the snapshot. A watch from before the restore would wait for them forever.
const manyWrites = 1000

// TestLong_AMembersEtcdIsRestored restores the member's etcd from a snapshot. After the snapshot, a right was revoked,
// another right was granted, and the agent's key was replaced. The agent is not restarted.
func TestLong_AMembersEtcdIsRestored(t *testing.T) {
	t.Parallel()
	s, first, _, agent := withWatcher(t)
	s.bindFirst(t, "kept")
	s.bindFirst(t, "revoked")
	s.awaitBindings(t, "kept", "revoked")
	lease := types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.LeaderLease}
	written := leaseRevision(t, s.member, lease)
	dir := copyEtcd(t, s.member)

	s.unbindFirst(t, "revoked")
	s.bindFirst(t, "created")
	s.awaitBindings(t, "created", "kept")
	s.replaceKey(t, first)
	noise := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "noise"}}
	create(t, s.member, noise)
	for i := range manyWrites {
		noise.Data = map[string]string{"write": fmt.Sprint(i)}
		if err := s.member.Client.Update(t.Context(), noise); err != nil {
			t.Fatal(err)
		}
	}
	awaitLease(t, s.member, lease, written) // the agent knows a restored cluster by its Lease
	replaceEtcd(t, s.member, dir)
	t.Run("the Cluster says so within a minute, and what it meant", func(t *testing.T) {
		s.awaitWithin(t, first, time.Minute, func(c *v1.Cluster) bool {
			said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionContinuous)
			return said != nil && said.Reason == v1.ReasonMemberRestored && strings.Contains(said.Message, "rights that had been revoked since the backup were in force again")
		})
	})
	t.Run("the member has what it should have", func(t *testing.T) { s.awaitBindings(t, "created", "kept") })
	t.Run("the agent has its present key again, and serves", func(t *testing.T) {
		awaitLog(t, agent, time.Minute, "came from a backup; restored the newer one")
		s.await(t, first, time.Minute, framework.Ready)
		if out, err := s.kubectl(t, first, demoToken, "get", "namespaces"); err != nil {
			t.Errorf("kubectl fails with %v, want the namespaces: %s", err, out)
		}
	})
	t.Run("drift is repaired", func(t *testing.T) {
		for name := range s.awaitBindings(t, "created", "kept") {
			if name == "kept" {
				s.deleteBinding(t, name)
			}
		}
		s.awaitBindings(t, "created", "kept")
	})
}

// deleteBinding deletes a binding's objects in the member, as its administrator.
func (s *system) deleteBinding(t *testing.T, name string) {
	t.Helper()
	bindings := &rbacv1.ClusterRoleBindingList{}
	if err := s.member.Client.List(t.Context(), bindings); err != nil {
		t.Fatal(err)
	}
	for i := range bindings.Items {
		if b := &bindings.Items[i]; b.Labels[v1.LabelSet] == "crtb."+name {
			if err := s.member.Client.Delete(t.Context(), b); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("the member has nothing of the binding %s, want a ClusterRoleBinding", name)
}

// replaceKey makes the agent of a Cluster join again with a new key.
func (s *system) replaceKey(t *testing.T, cluster types.NamespacedName) {
	t.Helper()
	before := secret(t, s.hub.Plane, cluster.Namespace, registration.AgentSecret(cluster).Name)
	name := registration.RegistrationSecret(cluster).Name
	used := secret(t, s.hub.Plane, cluster.Namespace, name)
	if err := s.hub.Client.Delete(t.Context(), used); err != nil {
		t.Fatal(err)
	}
	var manifest []byte
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		fresh := &corev1.Secret{}
		if err := s.hub.Client.Get(ctx, types.NamespacedName{Namespace: cluster.Namespace, Name: name}, fresh); err != nil {
			return err
		}
		if manifest = fresh.Data[registration.KeyManifest]; fresh.UID == used.UID || len(manifest) == 0 {
			return errors.New("there is no new manifest")
		}
		return nil
	})
	if err := framework.ApplyManifest(within(t, time.Minute), s.member, manifest, protocol.AgentNamespace); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		now := secret(t, s.hub.Plane, cluster.Namespace, before.Name)
		for key, value := range before.Data {
			if !bytes.Equal(value, now.Data[key]) {
				return nil
			}
		}
		return errors.New("the agent has not joined with the new token")
	})
	s.await(t, cluster, time.Minute, framework.Ready)
}

// TestLong_AnAgentWithoutItsLeaseIsShown makes the member's API server reject each write of the agent's Lease, as a
// policy, a webhook or API Priority and Fairness can do.
func TestLong_AnAgentWithoutItsLeaseIsShown(t *testing.T) {
	t.Parallel()
	s, first, _, _ := withWatcher(t)
	name := metav1.ObjectMeta{Name: "frozen"}
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
			ResourceNames: []string{protocol.LeaderLease},
			RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
				Rule: admissionv1.Rule{
					APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"v1"}, Resources: []string{"leases"},
				},
			},
		}}},
		Validations: []admissionv1.Validation{{Expression: "false", Message: "the Lease is frozen"}},
	}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: name, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	create(t, s.member, policy)
	create(t, s.member, binding)
	s.await(t, first, 3*time.Minute, func(c *v1.Cluster) bool {
		said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionMaintained)
		return said != nil && said.Reason == v1.ReasonNoLeader && framework.Ready(c)
	})
	if out, err := s.kubectl(t, first, demoToken, "get", "namespaces"); err != nil {
		t.Errorf("kubectl fails with %v, want the namespaces, since users are served: %s", err, out)
	}
	s.bindFirst(t, "waits")
	s.awaitBinding(t, "waits", v1.ReasonNoLeader)
	if err := s.member.Client.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	s.awaitBindings(t, "waits")
	s.await(t, first, time.Minute, func(c *v1.Cluster) bool {
		return meta.FindStatusCondition(c.Status.Conditions, v1.ConditionMaintained) == nil
	})
}
