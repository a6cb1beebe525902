// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// in runs a command in a machine, beside its agent.
func (k *k3s) in(t *testing.T, name string, command ...string) {
	t.Helper()
	if err := k.try(t.Context(), name, command...); err != nil {
		t.Fatal(err)
	}
}

// try runs a command in a machine, beside its agent.
func (k *k3s) try(ctx context.Context, name string, command ...string) error {
	proc := fmt.Sprintf("/proc/%d/ns/", k.machines[name].process.PID())
	args := append([]string{"--mount=" + proc + "mnt", "--pid=" + proc + "pid_for_children", "--net=" + proc + "net"}, command...)
	if out, err := exec.CommandContext(ctx, "nsenter", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%v on %s: %w %s", command, name, err, out)
	}
	return nil
}

// cluster runs kubectl for the cluster through the hub.
func (k *k3s) cluster(t *testing.T, args ...string) string {
	t.Helper()
	var out string
	testkit.Eventually(t, k3sPatience, func(context.Context) (err error) {
		out, err = k.kubectl(t, types.NamespacedName{Namespace: teamSpace, Name: "prod"}, demoToken, args...)
		return err
	})
	return out
}

// settings returns the names of the ConfigMaps that the test has created.
func (k *k3s) settings(t *testing.T) string {
	t.Helper()
	return k.cluster(t, "get", "configmaps", "-n", "default", "-l", "of=test", "-o", "jsonpath={.items[*].metadata.name}")
}

func (k *k3s) set(t *testing.T, name string) {
	t.Helper()
	k.cluster(t, "create", "configmap", "-n", "default", name)
	k.cluster(t, "label", "configmap", "-n", "default", name, "of=test")
}

// crash kills k3s and everything that it runs, as if the machine had lost power.
const crash = `kill -9 -"$(cat /run/k3s.pid)"; rm -f /run/k3s.pid /run/k3s.up`

// corrupt overwrites the etcd database.
const corrupt = crash + `; head -c 65536 /dev/urandom | dd of=/var/lib/rancher/k3s/server/db/etcd/member/snap/db conv=notrunc 2>/dev/null`

func (k *k3s) destroy(t *testing.T) {
	k.set(t, "after")
	k.cluster(t, "delete", "configmap", "-n", "default", "before")
	if got := k.settings(t); got != "after" {
		t.Fatalf("the cluster has %q", got)
	}
	k.in(t, "s1", "sh", "-c", corrupt)
	for _, name := range []string{"s2", "s3"} {
		k.in(t, name, "sh", "-c", crash+`; rm -r /var/lib/rancher/k3s/server/db/etcd`)
	}
	for _, name := range []string{"s2", "w1"} { // as a machine has that was installed anew since the snapshot
		k.in(t, name, "sh", "-c", "printf other >/etc/rancher/node/password")
	}
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		ready := meta.FindStatusCondition(k.installation(t).Status.Conditions, provisionv1.ConditionReady)
		if ready.Status != metav1.ConditionFalse {
			return fmt.Errorf("it is %+v\n%s", ready, k.overview(ctx))
		}
		return nil
	})
}

// wanted creates an EtcdRestore of the snapshot.
func (k *k3s) wanted(t *testing.T, name string, configuration provisionv1.RestoredConfiguration) *provisionv1.EtcdRestore {
	t.Helper()
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofProd, SnapshotName: "before", Configuration: configuration}}
	create(t, k.hub.Plane, restore)
	return restore
}

// awaitRestore waits until a restore has succeeded.
func (k *k3s) awaitRestore(t *testing.T, restore *provisionv1.EtcdRestore) {
	t.Helper()
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		if err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore); err != nil || restore.Status.Phase != provisionv1.RestoreSucceeded {
			return fmt.Errorf("%+v: %w\n%s", restore.Status, err, k.overview(ctx))
		}
		return nil
	})
}

func (k *k3s) restore(t *testing.T) {
	restore := k.wanted(t, "back", "")
	by := ""
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		for _, name := range []string{"s1", "s2", "s3"} {
			if strings.Contains(k.ran(t, name), "cluster-reset") {
				by = name
				return nil
			}
		}
		err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore)
		return fmt.Errorf("no host restores it: %+v (%w)\n%s", restore.Status, err, k.overview(ctx))
	})
	kill(t, k.hub.Manager)
	kill(t, k.hub.Provisioner.Process)
	startAgain(t, k.hub)
	k.awaitRestore(t, restore)
	if restore.Status.Host != by {
		t.Errorf("%s has restored it, and the status says %s", by, restore.Status.Host)
	}
	k.await(t, "5/5")
	k.awaitCluster(t) // the tunnel is back
	if got := k.settings(t); got != "before" {
		t.Errorf("the cluster has %q, want what it had when the snapshot was made", got)
	}
	k.nodes(t, "s1 s2 s3 w1 w2")
	for _, name := range []string{"s1", "s2", "s3"} {
		want := "install server " + k3sVersions[0] + strings.Repeat(" start server "+k3sVersions[0], 2) + " stop cluster-reset start server " + k3sVersions[0]
		got := ""
		for word := range strings.FieldsSeq(k.ran(t, name)) {
			if !strings.HasPrefix(word, "/") && word != "etcd-snapshot" && word != "save" && word != "rotate-keys" {
				got = strings.TrimSpace(got + " " + word)
			}
		}
		if name != by {
			want = strings.ReplaceAll(want, " cluster-reset", "")
		}
		if got != want {
			t.Errorf("%s ran %q, want %q", name, got, want)
		}
	}
	k.members(t)
}

// members waits until etcd has the three servers as its members, and each of them responds.
func (k *k3s) members(t *testing.T) {
	t.Helper()
	const listed = `curl -fsS -d '{}' http://127.0.0.1:2379/v3/cluster/member/list | grep -o '"name":"s[123]"' | ` +
		`sort -u | wc -l | grep -qx 3`
	for _, name := range []string{"s1", "s2", "s3"} {
		testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
			return k.try(ctx, name, "sh", "-c", listed)
		})
	}
}

func (k *k3s) restoreVersion(t *testing.T) {
	k.set(t, "later")
	k.putProgram(t, k3sVersions[0])
	restore := k.wanted(t, "version", provisionv1.ConfigurationRestore)
	k.awaitRestore(t, restore)
	k.await(t, "5/5")
	if got := k.installation(t).Spec.Version; got != k3sVersions[0] {
		t.Errorf("the version is %s, want that of the snapshot", got)
	}
	k.awaitCluster(t)
	if got := k.settings(t); got != "before" {
		t.Errorf("the cluster has %q, want what it had when the snapshot was made", got)
	}
	k.versions(t, k3sVersions[0])
}

// restoreNothing restores a file that is not a snapshot.
func (k *k3s) restoreNothing(t *testing.T) {
	k.set(t, "kept")
	k.in(t, "s2", "sh", "-c", `head -c 65536 /dev/urandom >/var/lib/rancher/k3s/server/db/snapshots/broken`)
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "broken"}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofProd, File: "broken", Host: "s2"}}
	create(t, k.hub.Plane, restore)
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		err := k.hub.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore)
		ready := meta.FindStatusCondition(restore.Status.Conditions, provisionv1.ConditionReady)
		if err != nil || restore.Status.Phase != provisionv1.RestoreFailed || !strings.Contains(ready.Message, "host s2: ") || !strings.Contains(ready.Message, "snapshot") {
			return fmt.Errorf("%+v: %w\n%s", ready, err, k.overview(ctx))
		}
		return nil
	})
	k.await(t, "5/5")
	k.awaitCluster(t)
	if got := k.settings(t); got != "before kept" {
		t.Errorf("the cluster has %q, want what it had before", got)
	}
	k.members(t)
}

// comeBack starts a server again that was released while its agent was paused.
func (k *k3s) comeBack(t *testing.T) {
	const name = "s4"
	k.join(t, name)
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.Pools[0].Replicas = new(int32(4)) })
	k.await(t, "6/6")
	secret := &corev1.Secret{}
	if err := k.hub.Client.Get(t.Context(), types.NamespacedName{Namespace: teamSpace, Name: name + v1.HostInstructionsSecretSuffix}, secret); err != nil {
		t.Fatal(err)
	}
	plan, err := protocol.ParseHostInstructions(secret.Data[v1.HostInstructionsKey])
	if err != nil {
		t.Fatal(err)
	}
	pauseAgent(t, k.machines[name].process.PID())
	if err := k.hub.Client.Delete(t.Context(), &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: name}}); err != nil {
		t.Fatal(err)
	}
	k.nodes(t, "s1 s2 s3 w1 w2")
	k.change(t, func(s *provisionv1.ClusterInstallationSpec) { s.Pools[0].Replicas = new(int32(3)) })
	k.await(t, "5/5")
	k.in(t, name, "/usr/local/sbin/systemctl", "restart", "k3s")
	k.nodes(t, "s1 s2 s3 s4 w1 w2")
	testkit.Eventually(t, k3sPatience, func(ctx context.Context) error {
		ready := meta.FindStatusCondition(k.installation(t).Status.Conditions, provisionv1.ConditionReady)
		if !strings.Contains(ready.Message, "has 6 nodes, and 5 of them are hosts") {
			return fmt.Errorf("it is %+v, want it to report the node that is no host\n%s", ready, k.overview(ctx))
		}
		return nil
	})
	k.in(t, name, plan.Clean[0].Command...) // what a machine does first that is cleaned because it has joined anew
	k.nodes(t, "s1 s2 s3 w1 w2")
	k.members(t)
	k.in(t, "s1", "sh", "-c", `curl -fsS -d '{}' http://127.0.0.1:2379/v3/cluster/member/list | grep -q '"name":"s4"' && exit 1 || exit 0`)
	kill(t, k.machines[name].process)
	delete(k.machines, name)
	k.await(t, "5/5")
}

// pauseAgent pauses the agent of a machine, which is the only child of its process, and no other processes.
func pauseAgent(t *testing.T, pid int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	agent, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err == nil {
		err = syscall.Kill(agent, syscall.SIGSTOP)
	}
	if err != nil {
		t.Fatalf("stop the agent: %v", err)
	}
}
