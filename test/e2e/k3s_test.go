// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// k3sPatience bounds each wait for a condition. Up to five API servers and other tests share the processors, so a step
// that takes a minute alone takes five minutes beside them. No step checks a duration.
const k3sPatience = 10 * time.Minute

// ofProd and ofWeb refer to the installation with k3s, and to the cluster with kubeadm.
var (
	ofProd = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfInstallation, Name: "prod"}
	ofWeb  = provisionv1.EtcdClusterRef{Kind: provisionv1.EtcdOfDroverCluster, Name: "web"}
)

// k3sVersions are the versions of the cluster, in order.
var k3sVersions = []string{"v1.35.1+k3s1", "v1.36.0+k3s1"}

// TestLong_AClusterOfHostsIsInstalledByK3s creates a cluster of five machines, each in a separate network that cannot
// be reached from outside. The stand-in for k3s (test/k3s) has a real etcd and kube-apiserver on each server. The hub,
// the host agents, the cluster's agent and the connections through the hub are real.
func TestLong_AClusterOfHostsIsInstalledByK3s(t *testing.T) {
	t.Parallel()
	k := startK3s(t)
	k.step("machines join", func(t *testing.T) {
		for _, name := range []string{"s1", "s2", "s3", "w1", "w2"} {
			k.join(t, name)
		}
	})
	k.step("one server and the workers become a cluster, though the hub is killed in the middle", k.install)
	k.step("users reach it through the hub", k.reach)
	k.step("one server becomes three", k.grow)
	k.step("a snapshot for which the disk has no room has failed, and the next is made", k.snapshot)
	k.step("encryption keys are rotated", k.rotateKeys)
	k.step("data is changed, then destroyed on all servers", k.destroy)
	k.step("it comes back from the snapshot, though the hub is killed in the middle", k.restore)
	k.step("a file that is no snapshot leaves the data as it was", k.restoreNothing)
	k.step("another version comes to servers, then to workers, and to one without a way to the internet when it has it", k.update)
	k.step("a snapshot brings its version back, too", k.restoreVersion)
	k.step("certificates are rotated on each server once", k.rotate)
	k.step("a server that comes back after it was let go is reported, and leaves etcd before it is cleaned", k.comeBack)
	k.step("a worker that is gone is removed with its Host", k.lose)
	k.step("a server whose Host is deleted leaves etcd before it is cleaned", k.leave)
	k.step("the installation is deleted, and its Hosts are clean", k.remove)
}

func (k *k3s) step(name string, run func(t *testing.T)) {
	if !k.t.Run(name, run) {
		k.t.FailNow() // the next steps build on this one
	}
}

func k3sPool(name string, replicas int32, roles ...provisionv1.HostRole) provisionv1.HostPool {
	return provisionv1.HostPool{Name: name, Roles: roles, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"use": name}}, Replicas: &replicas}
}

func (k *k3s) install(t *testing.T) {
	create(t, k.hub.Plane, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "prod"}})
	create(t, k.hub.Plane, &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "demo"}, Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, RoleTemplateName: "cluster-owner", Subject: v1.Subject{Kind: "User", Name: "hub:demo"}}})
	create(t, k.hub.Plane, &provisionv1.ClusterInstallation{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "prod"}, Spec: provisionv1.ClusterInstallationSpec{
		ClusterName: "prod", Distribution: provisionv1.DistributionK3s, Version: k3sVersions[0], Installer: provisionv1.Installer{Path: "/usr/local/install.sh"}, MaxUnavailable: 1,
		ServerConfig: &runtime.RawExtension{Raw: []byte(`{"secrets-encryption":true}`)},
		Pools:        []provisionv1.HostPool{k3sPool("server", 1, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), k3sPool("worker", 2, provisionv1.RoleWorker)},
	}})
	testkit.Eventually(t, k3sPatience, func(context.Context) error {
		if got := k.ran(t, "s1"); !strings.Contains(got, "install") {
			return fmt.Errorf("s1 ran %q", got)
		}
		return nil
	})
	kill(t, k.hub.Manager)
	if err := k.hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	k.await(t, "3/3")
	for name, want := range map[string]string{"s1": "server", "w1": "agent", "w2": "agent"} {
		if got, want := k.ran(t, name), "install "+want+" "+k3sVersions[0]+" start "+want+" "+k3sVersions[0]; got != want {
			t.Errorf("%s ran %q, want %q", name, got, want)
		}
	}
	if got := k.ran(t, "s2"); got != "" {
		t.Errorf("s2, which is not wanted yet, ran %q", got)
	}
}

func (k *k3s) reach(t *testing.T) {
	k.awaitCluster(t)
	k.nodes(t, "s1 w1 w2")
}

func (k *k3s) awaitCluster(t *testing.T) {
	t.Helper()
	k.system.await(t, types.NamespacedName{Namespace: teamSpace, Name: "prod"}, 2*time.Minute, framework.Ready)
}

// nodes waits until the cluster has the given nodes, as users see them.
func (k *k3s) nodes(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, k3sPatience, func(context.Context) error {
		out, err := k.kubectl(t, types.NamespacedName{Namespace: teamSpace, Name: "prod"}, demoToken, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}")
		if err == nil && out != want {
			err = fmt.Errorf("the nodes are %s, want %s", out, want)
		}
		return err
	})
}

func (k *k3s) change(t *testing.T, change func(*provisionv1.ClusterInstallationSpec)) {
	t.Helper()
	testkit.Update(t, k.hub.Client, &provisionv1.ClusterInstallation{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "prod"}}, func(i *provisionv1.ClusterInstallation) { change(&i.Spec) })
}

func (k *k3s) grow(t *testing.T) {
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.Pools[0].Replicas = new(int32(3)) })
	k.await(t, "5/5")
	k.nodes(t, "s1 s2 s3 w1 w2")
}

func (k *k3s) snapshot(t *testing.T) {
	k.set(t, "before")
	for _, name := range []string{"s1", "s2", "s3"} {
		if err := os.WriteFile(k.machines[name].path("full"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	full := k.makeSnapshot(t, "full", provisionv1.SnapshotFailed)
	ready := meta.FindStatusCondition(full.Status.Conditions, provisionv1.ConditionReady)
	if !strings.Contains(ready.Message, "is the disk full?") {
		t.Errorf("a snapshot of which k3s has saved nothing: %+v, want the disk to be named", ready)
	}
	for _, name := range []string{"s1", "s2", "s3"} {
		if err := os.Remove(k.machines[name].path("full")); err != nil {
			t.Fatal(err)
		}
	}
	snap := k.makeSnapshot(t, "before", provisionv1.SnapshotSucceeded)
	if got := k.ran(t, snap.Status.Host); !strings.HasSuffix(got, "etcd-snapshot save") {
		t.Errorf("%s, which has made the snapshot, ran %q", snap.Status.Host, got)
	}
	k.await(t, "5/5")
}

// makeSnapshot creates an EtcdSnapshot, and waits until it has ended.
func (k *k3s) makeSnapshot(t *testing.T, name string, want provisionv1.EtcdSnapshotPhase) *provisionv1.EtcdSnapshot {
	t.Helper()
	snap := &provisionv1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofProd}}
	create(t, k.hub.Plane, snap)
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		if err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(snap), snap); err != nil || snap.Status.Phase != want {
			return fmt.Errorf("snapshot %s is %+v: %w, want %s", name, snap.Status, err, want)
		}
		return nil
	})
	return snap
}

// rotateKeys rotates the keys that encrypt Secrets. No server starts with keys that are newer than those in etcd, so a
// restore of an earlier snapshot must also restore the keys.
func (k *k3s) rotateKeys(t *testing.T) {
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.EncryptionKeyRotation = 1 })
	k.await(t, "5/5")
	rotated := 0
	for _, name := range []string{"s1", "s2", "s3"} {
		rotated += strings.Count(k.ran(t, name), "rotate-keys")
		k.in(t, name, "grep", "-qx", "2", "/var/lib/rancher/k3s/server/cred/encryption-config.json")
	}
	if rotated != 1 {
		t.Errorf("keys were rotated %d times, want once", rotated)
	}
}

func (k *k3s) update(t *testing.T) {
	before := map[string]string{}
	for name := range k.machines {
		before[name] = k.ran(t, name)
	}
	ranSince := func(name, want string, times int) {
		t.Helper()
		if got := strings.TrimPrefix(k.ran(t, name), before[name]); strings.Count(got, want) != times {
			t.Errorf("%s ran %q, want %q in it %d times", name, got, want, times)
		}
	}
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.Version = k3sVersions[1] })
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		waiting := k.installation(t).Status.Waiting
		if len(waiting) != 1 || waiting[0].Host != airGapped || !strings.Contains(waiting[0].Message, "has failed") {
			return fmt.Errorf("%+v, want %s alone, which has the version of before\n%s", waiting, airGapped, k.overview(ctx))
		}
		return nil
	})
	host := &v1.Host{}
	if err := k.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: airGapped}, host); err != nil {
		t.Fatal(err)
	}
	if want := "this machine has k3s " + k3sVersions[0]; !strings.Contains(host.Status.Progress.Output, want) {
		t.Errorf("the Host says %+v, want %q", host.Status.Progress, want)
	}
	for name := range k.machines {
		if name != airGapped {
			ranSince(name, "start", 1)
			ranSince(name, "install", 1)
		}
	}
	k.putProgram(t, k3sVersions[1])
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.Installer.Path = "/usr/local/./install.sh" })
	k.await(t, "5/5")
	k.versions(t, k3sVersions[1])
	ranSince(airGapped, "start", 1)
}

// airGapped is a machine whose installer downloads nothing.
const airGapped = "w2"

// putProgram copies the program of a version to the machine whose installer downloads nothing.
func (k *k3s) putProgram(t *testing.T, version string) {
	t.Helper()
	k.in(t, airGapped, "sh", "-c", "echo "+version+" >/usr/local/k3s-version")
}

// versions waits until all nodes have a version.
func (k *k3s) versions(t *testing.T, want string) {
	t.Helper()
	testkit.Eventually(t, k3sPatience, func(context.Context) error {
		out, err := k.kubectl(t, types.NamespacedName{Namespace: teamSpace, Name: "prod"}, demoToken, "get", "nodes", "-o", "jsonpath={.items[*].status.nodeInfo.kubeletVersion}")
		if err == nil && out != strings.TrimSpace(strings.Repeat(want+" ", 5)) {
			err = errors.New("the nodes have " + out)
		}
		return err
	})
}

func (k *k3s) rotate(t *testing.T) {
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.CertificateRotation = 1 })
	k.await(t, "5/5")
	for name := range k.machines {
		if got, want := strings.Count(k.ran(t, name), "certificate rotate"), strings.Count(name, "s"); got != want {
			t.Errorf("%s has rotated certificates %d times, want %d", name, got, want)
		}
	}
}

func (k *k3s) lose(t *testing.T) {
	kill(t, k.machines["w2"].process)
	delete(k.machines, "w2")
	if err := k.hub.Client.Delete(t.Context(), &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "w2"}}); err != nil {
		t.Fatal(err)
	}
	k.nodes(t, "s1 s2 s3 w1")
	k.awaitReason(t, provisionv1.ReasonTooFewHosts)
}

func (k *k3s) leave(t *testing.T) {
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) {
		s.Pools[0].Replicas, s.Pools[1].Replicas = new(int32(2)), new(int32(1))
	})
	k.await(t, "3/3")
	var left []string
	for _, name := range []string{"s1", "s2", "s3"} {
		if strings.Contains(k.ran(t, name), "uninstall") {
			left = append(left, name)
		}
	}
	if len(left) != 1 {
		t.Fatalf("%v were cleaned, want one", left)
	}
	removed := 0
	for name := range k.machines {
		removed += strings.Count(k.ran(t, name), "remove "+left[0])
	}
	if removed != 1 {
		t.Errorf("%s was removed %d times from the cluster", left[0], removed)
	}
	if err := k.hub.Client.Delete(t.Context(), &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "w1"}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		err := k.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "w1"}, &v1.Host{})
		if err == nil {
			return errors.New("the Host w1 is there:\n" + k.overview(ctx))
		}
		return client.IgnoreNotFound(err)
	})
	if got := k.ran(t, "w1"); !strings.HasSuffix(got, "uninstall") {
		t.Errorf("w1 ran %q", got)
	}
	delete(k.machines, "w1")
	k.nodes(t, strings.Join(slices.DeleteFunc([]string{"s1", "s2", "s3"}, func(s string) bool { return s == left[0] }), " "))
}

func (k *k3s) remove(t *testing.T) {
	if err := k.hub.Client.Delete(t.Context(), k.installation(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		err := k.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: "prod"}, &provisionv1.ClusterInstallation{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there (%w):\n%s", err, k.overview(ctx))
		}
		return nil
	})
	for name, m := range k.machines {
		m.await(types.NamespacedName{Namespace: teamSpace, Name: name}, "free", because(v1.ReasonHostAvailable))
		if got := k.ran(t, name); !strings.HasSuffix(got, "uninstall") || strings.Count(got, "uninstall") != 1 {
			t.Errorf("%s ran %q, want it to be uninstalled once, at last", name, got)
		}
		k.in(t, name, "test", "!", "-e", "/etc/rancher/node") // the password of its node
	}
}

func (k *k3s) installation(t *testing.T) *provisionv1.ClusterInstallation {
	t.Helper()
	i := &provisionv1.ClusterInstallation{}
	if err := k.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: "prod"}, i); err != nil {
		t.Fatal(err)
	}
	return i
}

// await waits until the installation is Ready with the given summary.
func (k *k3s) await(t *testing.T, summary string) {
	t.Helper()
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		i := k.installation(t)
		ready := meta.FindStatusCondition(i.Status.Conditions, provisionv1.ConditionReady)
		if i.Status.Summary != summary || ready == nil || ready.Status != metav1.ConditionTrue || ready.ObservedGeneration != i.Generation {
			return fmt.Errorf("the installation is %s, %+v, %+v\n%s", i.Status.Summary, ready, i.Status.Waiting, k.overview(ctx))
		}
		return nil
	})
}

func (k *k3s) awaitReason(t *testing.T, reason string) {
	t.Helper()
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		ready := meta.FindStatusCondition(k.installation(t).Status.Conditions, provisionv1.ConditionReady)
		if ready == nil || ready.Reason != reason {
			return fmt.Errorf("the installation is %+v\n%s", ready, k.overview(ctx))
		}
		return nil
	})
}

// overview prints what a user would look at.
func (k *k3s) overview(ctx context.Context) string {
	out, err := k.hub.Kubectl(ctx, nil, "-n", teamSpace, "get", "clusterinstallations,etcdrestores,hosts,clusters", "-o", "wide")
	return fmt.Sprint(out, err)
}

// ran returns what a machine has run.
func (k *k3s) ran(t *testing.T, name string) string {
	t.Helper()
	return ran(t, k.machines[name].path("ran"))
}

// join creates a Host for a machine, and makes the machine join.
func (k *k3s) join(t *testing.T, name string) {
	t.Helper()
	use := map[bool]string{true: "server", false: "worker"}[strings.HasPrefix(name, "s")]
	create(t, k.hub.Plane, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name, Labels: map[string]string{"use": use}}})
	secret := &corev1.Secret{}
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		return k.hub.Client.Get(ctx, types.NamespacedName{Namespace: teamSpace, Name: name + v1.HostJoinSecretSuffix}, secret)
	})
	if name == airGapped {
		k.start(t, name, string(secret.Data["command"]), "INSTALL_K3S_SKIP_DOWNLOAD=true")
	} else {
		k.start(t, name, string(secret.Data["command"]))
	}
	k.machines[name].await(types.NamespacedName{Namespace: teamSpace, Name: name}, "available", because(v1.ReasonHostAvailable))
	if name == airGapped {
		k.putProgram(t, k3sVersions[0])
	}
}

// prerequisites skips the test if machines cannot be created.
func prerequisites(t *testing.T) {
	t.Helper()
	for _, program := range []string{"curl", "ip", "nsenter"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	if out, err := exec.Command("unshare", inNamespaces(t.TempDir(), "probe", "true")...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces of its own for a machine: %v %s", err, out)
	}
	if out, err := exec.Command("unshare", "--net", "ip", "link", "add", "br0", "type", "bridge").CombinedOutput(); err != nil {
		t.Skipf("no network of its own for a machine: %v %s", err, out)
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
}
