// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// testUninstall manually removes only the agent of a member, twice. The first time, a new agent removes the rest, and
// the second time, the plugin does.
func testUninstall(t *testing.T, s *system) {
	former, agent := s.imported(t, "former", s.member, protocol.AgentNamespace)
	s.await(t, former, 30*time.Second, framework.Ready)
	guest := s.bind(t, former, "guest")
	kill(t, agent.Process)
	s.orphan(t, former)
	for _, object := range []client.Object{
		guest, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
	} {
		plane := s.member
		if object == guest {
			plane = s.hub.Plane
		}
		if err := plane.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		if err := plane.AwaitGone(within(t, time.Minute), object); err != nil {
			t.Fatal(err)
		}
	}
	if left := s.delivered(t); len(left) == 0 {
		t.Fatal("nothing was left behind")
	}
	next, agent := s.imported(t, "next", s.member, protocol.AgentNamespace)
	s.await(t, next, 30*time.Second, framework.Ready)
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if left := s.delivered(t); slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, ":guest:") }) {
			return fmt.Errorf("the new agent leaves %v", left)
		}
		return nil
	})
	s.bind(t, next, "second-guest")
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // an agent that was killed before has left none
		return s.member.Client.Get(ctx, types.NamespacedName{Name: v1.PlansNamespace}, &corev1.Namespace{})
	})
	// The agent creates these objects before the first Job of a Plan.
	if _, err := s.member.Kubectl(t.Context(), []byte(`
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: drover-plan, labels: {app.kubernetes.io/managed-by: drover}}}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: drover-plan, labels: {app.kubernetes.io/managed-by: drover}}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: drover-plan}}
`), "apply", "--server-side", "--force-conflicts", "--field-manager="+protocol.PlanManager, "-f", "-"); err != nil {
		t.Fatal(err)
	}
	kill(t, agent.Process)
	s.orphan(t, next)
	plugin := filepath.Join(pluginDir(t), "kubectl-drover")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, s.member.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	uninstall := func(more ...string) string {
		command := exec.CommandContext(t.Context(), plugin, append([]string{"uninstall", "--kubeconfig", kubeconfig}, more...)...)
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", command.Args, err, out)
		}
		return string(out)
	}
	before := s.delivered(t)
	if out := uninstall("--dry-run"); !strings.Contains(out, "ClusterRoleBinding drover:crtb:second-guest:") || !slices.Equal(before, s.delivered(t)) {
		t.Errorf("a dry run changes %v to %v and says\n%s", before, s.delivered(t), out)
	}
	command := exec.CommandContext(t.Context(), plugin, "uninstall", "--kubeconfig", kubeconfig)
	out, err := command.CombinedOutput()
	asks := strings.Contains(string(out), "from the cluster at https://") && strings.Contains(string(out), "Confirm with --yes")
	if err == nil || !asks || !slices.Equal(before, s.delivered(t)) {
		t.Errorf("without --yes: %v, %s, want it to change nothing and to name the cluster", err, out)
	}
	t.Log(uninstall("--yes"))
	if left := s.delivered(t); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.PlansNamespace}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: protocol.PlanAccount}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.PlanAccount}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName}},
	} {
		if err := s.member.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s is left: %v", object, object.GetName(), err)
		}
	}
	if err := s.member.Client.Get(t.Context(), types.NamespacedName{Name: "demo"}, &rbacv1.ClusterRoleBinding{}); err != nil {
		t.Errorf("what is not Drover's is gone: %v", err)
	}
	if out := uninstall(); !strings.Contains(out, "no objects of an agent are left in the cluster") {
		t.Errorf("the second time it says\n%s", out)
	}
}

// bind binds a user to a role in a Cluster, and waits until the member has the binding.
func (s *system) bind(t *testing.T, cluster types.NamespacedName, name string) *v1.ClusterRoleTemplateBinding {
	t.Helper()
	binding := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
	binding.Spec.ClusterName, binding.Spec.RoleTemplateName = cluster.Name, "cluster-owner"
	binding.Spec.Subject = v1.Subject{Kind: v1.SubjectUser, Name: "github:" + name}
	create(t, s.hub.Plane, binding)
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if have := s.delivered(t); !slices.ContainsFunc(have, func(have string) bool { return strings.Contains(have, ":"+name+":") }) {
			return fmt.Errorf("the member has %v", have)
		}
		return nil
	})
	return binding
}

// delivered returns the ClusterRoleBindings of the delivered sets.
func (s *system) delivered(t *testing.T) (names []string) {
	t.Helper()
	list := &rbacv1.ClusterRoleBindingList{}
	if err := s.member.Client.List(t.Context(), list, client.HasLabels{v1.LabelSet}); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// orphan deletes a Cluster without changing its agent.
func (s *system) orphan(t *testing.T, cluster types.NamespacedName) {
	t.Helper()
	c := s.cluster(t, cluster)
	if err := s.hub.Client.Patch(t.Context(), c, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"deletionPolicy":"Orphan"}}`))); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.Client.Delete(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.AwaitGone(within(t, 10*time.Second), c); err != nil {
		t.Fatal(err)
	}
}
