// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// TestLong_AHubIsRestoredIntoAnotherCluster is the drill of docs/operations/backup.md. The old hub is lost, and its
// objects are restored into a new control plane, as Velero does it.
func TestLong_AHubIsRestoredIntoAnotherCluster(t *testing.T) {
	t.Parallel()
	s := start(t)
	second, err := s.plane("second")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = second.Kill() })
	kept := map[string]types.NamespacedName{}
	for name, plane := range map[string]*framework.Plane{"first": s.member, "second": second} {
		kept[name], _ = s.imported(t, name, plane, protocol.AgentNamespace)
		s.await(t, kept[name], time.Minute, framework.Ready)
	}
	create(t, s.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}})
	create(t, s.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "watchers"},
		Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "first"}, RoleTemplateName: "watcher",
			Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:alice"}}})
	delivered := awaitDelivered(t, s.member)
	before, err := s.authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	saved := s.backUp(t)
	missed, _ := s.imported(t, "missed", second, agentNamespace("missed")) // it joins after the backup
	s.await(t, missed, time.Minute, framework.Ready)

	address := s.hub.Address
	if err := errors.Join(s.hub.Manager.Kill(), s.hub.Kill()); err != nil {
		t.Fatal(err)
	}
	s.restoreHub(t, saved, address)
	after, err := s.authority(t.Context())
	if err != nil || after.Identity != before.Identity || string(after.Active.Cert) != string(before.Active.Cert) {
		t.Fatalf("%v: the identity was %s and is %s", err, before.Identity, after.Identity)
	}
	t.Run("agents are refused, and the Cluster says what to do", func(t *testing.T) {
		for name, cluster := range kept {
			s.await(t, cluster, 3*time.Minute, func(c *v1.Cluster) bool {
				return strings.Contains(fmt.Sprint(c.Status.Conditions), "kubectl drover adopt "+name+" -w default")
			})
		}
	})
	t.Run("they are adopted and Ready", func(t *testing.T) {
		if out := s.adopt(t, "--all"); strings.Count(out, "   yes   ") != 2 || !strings.Contains(out, "run the command again with --yes") {
			t.Errorf("the list is\n%s", out)
		}
		if out := s.adopt(t, "--all", "--yes"); !strings.Contains(out, "Adopted: 2.") {
			t.Errorf("adopted:\n%s", out)
		}
		for _, cluster := range kept {
			s.await(t, cluster, 6*time.Minute, framework.Ready) // a refused agent waits up to five
		}
		if out := s.adopt(t, "--all", "--yes"); !strings.Contains(out, "Nothing was changed.") {
			t.Errorf("again:\n%s", out)
		}
	})
	if now := awaitDelivered(t, s.member); !maps.Equal(now, delivered) {
		t.Errorf("what was delivered was %v and is %v", delivered, now)
	}
	if err := s.hub.Client.Get(t.Context(), missed, &v1.Cluster{}); !apierrors.IsNotFound(err) {
		t.Errorf("a Cluster that is not in the backup: %v", err)
	}
}

// awaitDelivered returns the binding with the given name that is delivered to a member, with its UID. If the binding is
// deleted and created again, the UID changes.
func awaitDelivered(t *testing.T, member *framework.Plane) map[string]types.UID {
	t.Helper()
	found := map[string]types.UID{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		bindings := &rbacv1.ClusterRoleBindingList{}
		if err := member.Client.List(ctx, bindings); err != nil {
			return err
		}
		for _, b := range bindings.Items {
			if strings.HasPrefix(b.Name, "drover:crtb:") {
				found[b.Name] = b.UID
			}
		}
		if len(found) != 1 {
			return fmt.Errorf("there are %d bindings", len(found))
		}
		return nil
	})
	return found
}

// backUp returns the hub's objects as Velero restores them: without UIDs, owners and status.
func (s *system) backUp(t *testing.T) []unstructured.Unstructured {
	t.Helper()
	var saved []unstructured.Unstructured
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Secret"), v1.GroupVersion.WithKind("Cluster"), v1.GroupVersion.WithKind("RoleTemplate"),
		v1.GroupVersion.WithKind("ClusterRoleTemplateBinding"),
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		var options []client.ListOption
		if kind.Kind == "Secret" {
			options = append(options, client.HasLabels{v1.LabelSecretKind})
		}
		if err := s.hub.Client.List(t.Context(), list, options...); err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			for _, field := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "ownerReferences", "managedFields"} {
				unstructured.RemoveNestedField(o.Object, "metadata", field)
			}
			unstructured.RemoveNestedField(o.Object, "status")
			saved = append(saved, o)
		}
	}
	return saved
}

// restoreHub starts another hub at the address with the saved objects. The Secret with its CA is restored before the
// manager starts, and everything else afterwards.
func (s *system) restoreHub(t *testing.T, saved []unstructured.Unstructured, address string) {
	t.Helper()
	plane, err := s.plane("restored", lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	create(t, plane, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: authoritySecret().Namespace}})
	restore := func(isAuthority bool) {
		for i := range saved {
			if o := saved[i].DeepCopy(); (client.ObjectKeyFromObject(o) == authoritySecret()) == isAuthority {
				if err := plane.Client.Create(t.Context(), o); err != nil && !apierrors.IsAlreadyExists(err) { // as Velero does with existing objects
					t.Fatal(err)
				}
			}
		}
	}
	restore(true)
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{Replicas: 1, Address: address})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
	restore(false)
}

// adopt runs "kubectl drover adopt" on the hub as its administrator.
func (s *system) adopt(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.plugin(t, append([]string{"adopt"}, args...)...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// plugin runs "kubectl drover" on the hub as its administrator.
func (s *system) plugin(t *testing.T, args ...string) (string, error) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "hub.kubeconfig")
	if err := s.hub.WriteKubeconfig(kubeconfig); err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(within(t, time.Minute), filepath.Join(pluginDir(t), "kubectl-drover"), append(args, "--kubeconfig", kubeconfig)...)
	command.Env = os.Environ()
	out, err := command.CombinedOutput()
	return string(out), err
}
