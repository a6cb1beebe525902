// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
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

// planOfDrill is for the first member.
const planOfDrill = `
apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: k3s, namespace: default}
spec:
  clusterName: first
  version: v1.36.3+k3s1
  upgrade: {image: rancher/k3s-upgrade}
  retries: {limit: 2, backoff: 0s}
`

// TestLong_AHubsEtcdIsRestored is the drill of docs/operations/backup.md. The hub's etcd is restored from a snapshot in
// the same cluster, and the hub does not undo later changes.
func TestLong_AHubsEtcdIsRestored(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.playNodes(t, s.member, "node-a")
	first, agent := s.imported(t, "first", s.member, protocol.AgentNamespace)
	s.await(t, first, time.Minute, framework.Ready)
	create(t, s.hub.Plane, &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "watcher"}, Spec: v1.RoleTemplateSpec{
		Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}})
	s.bindFirst(t, "kept")
	s.bindFirst(t, "deleted")
	s.awaitBindings(t, "deleted", "kept")
	kill(t, agent.Process) // so that the plan of the backup has not begun
	if out, err := s.hub.Kubectl(t.Context(), []byte(planOfDrill), "apply", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	snapshot := s.snapshot(t)

	awaitLease(t, s.hub.Plane, managerLease(), snapshot.lease)
	s.startAgent(t, agent)
	awaitPlan(t, s.member, v1.ReasonComplete)
	jobs := s.jobs(t)
	for _, o := range []client.Object{
		&v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "k3s"}},
		&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "deleted"}},
	} {
		if err := s.hub.Client.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	s.bindFirst(t, "created")
	bound := s.awaitBindings(t, "created", "kept")
	t.Run("a hub that only restarts stops nothing", func(t *testing.T) {
		if err := errors.Join(s.hub.Manager.Kill(), s.hub.StartManager(within(t, time.Minute))); err != nil {
			t.Fatal(err)
		}
		s.bindFirst(t, "after-restart")
		s.awaitBindings(t, "after-restart", "created", "kept")
		if err := s.hub.Client.Delete(t.Context(), &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "after-restart"}}); err != nil {
			t.Fatal(err)
		}
		s.awaitBindings(t, "created", "kept")
	})

	s.restoreSnapshot(t, snapshot)
	t.Run("the Cluster shows what would change", func(t *testing.T) {
		s.await(t, first, 2*time.Minute, func(c *v1.Cluster) bool {
			r := c.Status.Restore
			return meta.IsStatusConditionFalse(c.Status.Conditions, v1.ConditionRestoreConfirmed) && r != nil &&
				slices.Equal(r.Add, []string{"crtb/deleted", "plan/k3s"}) && len(r.Change) == 0 && slices.Equal(r.Remove, []string{"crtb/created"})
		})
		if out, code := s.restored(t, "--all"); code != 1 || !strings.Contains(out, "add     crtb/deleted") || !strings.Contains(out, "remove  crtb/created") {
			t.Errorf("the list ends with %d:\n%s", code, out)
		}
		s.awaitHeld(t, "deleted")
	})
	t.Run("nothing has changed in the member", func(t *testing.T) {
		if now := s.awaitBindings(t, "created", "kept"); !maps.Equal(now, bound) {
			t.Errorf("bindings were %v and are %v", bound, now)
		}
		s.expectNoNewJob(t, jobs)
	})
	t.Run("what is corrected on the hub is no longer listed, and the rest is done once it is confirmed", func(t *testing.T) {
		for _, o := range []client.Object{
			&v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "k3s"}},
			&v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "deleted"}},
		} {
			if err := s.hub.Client.Delete(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		s.bindFirst(t, "new")
		s.await(t, first, time.Minute, func(c *v1.Cluster) bool {
			r := c.Status.Restore
			return r != nil && slices.Equal(r.Add, []string{"crtb/new"}) && slices.Equal(r.Remove, []string{"crtb/created"})
		})
		if out, code := s.restored(t, "first", "-w", "default", "--yes"); code != 0 || !strings.Contains(out, "Confirmed: 1.") {
			t.Fatalf("it ends with %d:\n%s", code, out)
		}
		s.awaitBindings(t, "kept", "new")
		s.await(t, first, time.Minute, func(c *v1.Cluster) bool { return c.Status.Restore == nil && framework.Ready(c) })
		s.expectNoNewJob(t, jobs)
	})
	t.Run("from then on a hub that restarts stops nothing", func(t *testing.T) {
		if err := errors.Join(s.hub.Manager.Kill(), s.hub.StartManager(within(t, time.Minute))); err != nil {
			t.Fatal(err)
		}
		s.bindFirst(t, "last")
		s.awaitBindings(t, "kept", "last", "new")
	})
}

// bindFirst creates a binding for the first member. An API server that has just started may not have discovered the
// kinds that its policies read. Until its next discovery, which runs every half minute, it rejects writes that these
// policies check.
func (s *system) bindFirst(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		err := s.hub.Client.Create(ctx, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
			Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: v1.ClusterTarget{ClusterName: "first"}, RoleTemplateName: "watcher",
				Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:" + name}}})
		if err != nil && !strings.Contains(err.Error(), "failed to configure policy") {
			t.Fatal(err)
		}
		return err
	})
}

// awaitBindings waits until the member has exactly the bindings of these names, sorted, and returns their UIDs.
func (s *system) awaitBindings(t *testing.T, names ...string) map[string]types.UID {
	t.Helper()
	return awaitBindingsIn(t, s.member, names...)
}

func awaitBindingsIn(t *testing.T, plane *framework.Plane, names ...string) map[string]types.UID {
	t.Helper()
	found := map[string]types.UID{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		clear(found)
		bindings := &rbacv1.ClusterRoleBindingList{}
		if err := plane.Client.List(ctx, bindings); err != nil {
			return err
		}
		for _, b := range bindings.Items {
			if strings.HasPrefix(b.Name, "drover:crtb:") {
				found[strings.TrimPrefix(b.Labels[v1.LabelSet], "crtb.")] = b.UID
			}
		}
		if now := slices.Sorted(maps.Keys(found)); !slices.Equal(now, names) {
			return fmt.Errorf("the bindings are %v, want %v", now, names)
		}
		return nil
	})
	return found
}

// awaitHeld waits until a binding's conditions explain why it is not granted.
func (s *system) awaitHeld(t *testing.T, name string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		b := &v1.ClusterRoleTemplateBinding{}
		if err := s.hub.Client.Get(ctx, types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}, b); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady); ready == nil || ready.Reason != v1.ReasonHubRestored {
			return fmt.Errorf("binding %s is %+v", name, ready)
		}
		return nil
	})
}

// expectNoNewJob fails if the member has a Job of a plan that it did not have before. The Jobs of a deleted plan may
// have been removed.
func (s *system) expectNoNewJob(t *testing.T, before map[types.UID]string) {
	t.Helper()
	for uid, name := range s.jobs(t) {
		if before[uid] == "" {
			t.Errorf("Job %s is new", name)
		}
	}
}

// jobs returns the Jobs of plans in the member by UID.
func (s *system) jobs(t *testing.T) map[types.UID]string {
	t.Helper()
	list := &batchv1.JobList{}
	if err := s.member.Client.List(t.Context(), list, client.InNamespace(v1.PlansNamespace)); err != nil {
		t.Fatal(err)
	}
	found := map[types.UID]string{}
	for _, job := range list.Items {
		found[job.UID] = job.Name
	}
	return found
}

// etcdSnapshot is a copy of etcd's data.
type etcdSnapshot struct{ dir, lease string }

// snapshot copies the data of the hub's etcd, as a snapshot of its volume does.
func (s *system) snapshot(t *testing.T) etcdSnapshot {
	t.Helper()
	lease := leaseRevision(t, s.hub.Plane, managerLease())
	return etcdSnapshot{dir: copyEtcd(t, s.hub.Plane), lease: lease}
}

// copyEtcd copies the data of a plane's etcd, as a snapshot of its volume does.
func copyEtcd(t *testing.T, plane *framework.Plane) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "etcd")
	etcd := plane.Process(lab.Etcd)
	if err := etcd.Pause(); err != nil {
		t.Fatal(err)
	}
	err := os.CopyFS(dir, os.DirFS(etcdDir(plane)))
	if err := errors.Join(err, etcd.Resume()); err != nil {
		t.Fatal(err)
	}
	return dir
}

func etcdDir(plane *framework.Plane) string { return filepath.Join(plane.Dir(), "etcd") }

// restoreSnapshot stops the manager, restores the data of the snapshot, and starts the manager again.
func (s *system) restoreSnapshot(t *testing.T, taken etcdSnapshot) {
	t.Helper()
	kill(t, s.hub.Manager)
	s.restoreEtcd(t, taken)
	if err := s.hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// restoreEtcd restores the data of the snapshot. No manager runs.
func (s *system) restoreEtcd(t *testing.T, taken etcdSnapshot) {
	t.Helper()
	replaceEtcd(t, s.hub.Plane, taken.dir)
}

// replaceEtcd replaces a plane's data with the data of copyEtcd, and restarts the plane.
func replaceEtcd(t *testing.T, plane *framework.Plane, dir string) {
	t.Helper()
	if err := errors.Join(plane.Process(lab.ControllerManager).Kill(), plane.Process(lab.APIServer).Kill(), plane.Process(lab.Etcd).Kill(),
		os.RemoveAll(etcdDir(plane)), os.CopyFS(etcdDir(plane), os.DirFS(dir))); err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{lab.Etcd, lab.APIServer, lab.ControllerManager} {
		if err := plane.Restart(within(t, time.Minute), program); err != nil {
			t.Fatal(err)
		}
	}
}

func managerLease() types.NamespacedName {
	return types.NamespacedName{Namespace: authoritySecret().Namespace, Name: "drover-manager"}
}

func leaseRevision(t *testing.T, plane *framework.Plane, name types.NamespacedName) string {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := plane.Client.Get(t.Context(), name, lease); err != nil {
		t.Fatal(err)
	}
	return lease.ResourceVersion
}

// awaitLease waits until the leader has renewed its Lease twice, because the snapshot may contain the first renewal.
func awaitLease(t *testing.T, plane *framework.Plane, name types.NamespacedName, before string) {
	t.Helper()
	for range 2 {
		testkit.Eventually(t, 30*time.Second, func(context.Context) error {
			if leaseRevision(t, plane, name) == before {
				return fmt.Errorf("the Lease %s was not renewed", name)
			}
			return nil
		})
		before = leaseRevision(t, plane, name)
	}
}

// restored runs "kubectl drover restored" on the hub as its administrator.
func (s *system) restored(t *testing.T, args ...string) (string, int) {
	t.Helper()
	out, err := s.plugin(t, append([]string{"restored"}, args...)...)
	return out, exitCode(err)
}
