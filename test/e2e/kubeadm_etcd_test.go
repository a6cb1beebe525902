// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// TestEtcdOfAClusterByKubeadmIsRestored is run separately: DROVER_E2E_CLUSTERAPI=1 go test -exec "unshare --net --"
// ./test/e2e -run '^TestEtcdOfAClusterByKubeadmIsRestored$'. It uses three control planes that the real
// KubeadmControlPlane and kubeadm create, with static pods in containerd. Their etcd members lose their data.
func TestEtcdOfAClusterByKubeadmIsRestored(t *testing.T) {
	h := startRealHosts(t, realHosts{})
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"hosts join", h.joinThree},
		{"a file", func(t *testing.T) {
			if err := os.WriteFile(h.dir+"/before.yaml", []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: before, namespace: default}}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"three control planes", func(t *testing.T) {
			h.applyCluster(t, h.versions[0].version, "1", 3, 0)
			h.isWhole(t, h.versions[0].version, 3, 0)
		}},
		{"a snapshot, data destroyed, and a restore", h.restoresEtcd},
	} {
		start := time.Now()
		h.step(t, step.name, step.run)
		t.Logf("%s: %s", step.name, time.Since(start).Round(time.Second))
	}
}

func (h *realHosts) restoresEtcd(t *testing.T) {
	h.eventually(t, "a configmap is made", func(ctx context.Context) error {
		out, err := h.web(ctx, "apply", "-f", h.dir+"/before.yaml")
		if err != nil {
			return fmt.Errorf("%s (%w)", out, err)
		}
		return nil
	})
	snapshot := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "first"}, Spec: provisionv1.EtcdSnapshotSpec{ClusterRef: ofWeb}}
	create(t, h.hub.Plane, snapshot)
	h.eventually(t, "a snapshot is made", func(ctx context.Context) error {
		if err := h.hub.Client.Get(ctx, client.ObjectKeyFromObject(snapshot), snapshot); err != nil || snapshot.Status.Phase != provisionv1.SnapshotSucceeded {
			return fmt.Errorf("%+v (%w)", snapshot.Status, err)
		}
		return nil
	})
	t.Logf("%s has made %s: %s", snapshot.Status.Host, snapshot.Status.Snapshot, h.exec(t, snapshot.Status.Host, "ls", "-l", "/var/lib/drover/etcd/snapshots", "/var/lib/drover/etcd/bin"))
	for _, command := range []string{"create configmap after", "delete configmap before"} {
		h.eventually(t, command, func(ctx context.Context) error {
			out, err := h.web(ctx, strings.Fields(command)...)
			if err != nil && !strings.Contains(out+err.Error(), "AlreadyExists") && !strings.Contains(out+err.Error(), "NotFound") {
				return fmt.Errorf("%s (%w)", out, err)
			}
			return nil
		})
	}
	for _, host := range h.controlPlaneHosts(t) {
		h.exec(t, host, "sh", "-c", destroyEtcd)
	}
	restore := &provisionv1.EtcdRestore{ObjectMeta: metav1.ObjectMeta{Namespace: teamSpace, Name: "back"}, Spec: provisionv1.EtcdRestoreSpec{ClusterRef: ofWeb, SnapshotName: "first"}}
	create(t, h.hub.Plane, restore)
	began := time.Now()
	last := ""
	for _, phase := range []provisionv1.EtcdRestorePhase{provisionv1.RestoreStopping, provisionv1.RestoreSucceeded} {
		h.eventually(t, "the restore is "+string(phase), func(ctx context.Context) error {
			if err := h.hub.Client.Get(ctx, client.ObjectKeyFromObject(restore), restore); err != nil {
				return err
			}
			if message := restore.Status.Conditions[0].Message; message != last {
				last = message
				t.Logf("%s: %s: %s", time.Since(began).Round(time.Second), restore.Status.Phase, message)
			}
			if restore.Status.Phase == provisionv1.RestoreFailed {
				t.Fatal(last)
			}
			if restore.Status.Phase != phase && (phase != provisionv1.RestoreStopping || restore.Status.Phase == provisionv1.RestorePending) {
				return fmt.Errorf("%+v", restore.Status)
			}
			return nil
		})
		if phase == provisionv1.RestoreStopping {
			kill(t, h.hub.Manager)
			kill(t, h.hub.Provisioner.Process)
			startAgain(t, h.hub)
		}
	}
	h.eventually(t, "the tunnel is back", h.connected)
	if out, err := h.web(t.Context(), "get", "configmap", "before"); err != nil {
		t.Error(out, err)
	}
	if out, err := h.web(t.Context(), "get", "configmap", "after"); err == nil {
		t.Errorf("what was made after the snapshot: %s", out)
	}
	h.isWhole(t, h.versions[0].version, 3, 0)
	t.Logf("all is whole after %s", time.Since(began).Round(time.Second))
}
