// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
)

// TestClusterAPIUpdatesAClusterByKubeadmInPlace changes the minor version of a cluster on its existing machines, with
// the real kubeadm and kubelet: DROVER_E2E_CLUSTERAPI=versions make e2e-clusterapi. The stand-ins are the same as in
// TestClusterAPIMakesAClusterByKubeadm.
func TestClusterAPIUpdatesAClusterByKubeadmInPlace(t *testing.T) {
	if os.Getenv(envRealHosts) != twoVersions {
		t.Skip("it takes a further build of Kubernetes: DROVER_E2E_CLUSTERAPI=versions make e2e-clusterapi")
	}
	h := startRealHosts(t, realHosts{inPlace: true})
	var before []string
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"hosts join", func(t *testing.T) {
			h.joinThree(t)
			h.join(t, "m4")
		}},
		{"Cluster API finds the hooks", h.extension},
		{"three control planes and a worker", func(t *testing.T) {
			h.applyCluster(t, h.versions[0].version, "1", 3, 1)
			h.isWhole(t, h.versions[0].version, 3, 1)
			before = h.identities(t)
		}},
		{"the control planes are updated one by one, and the hub is killed while the first one is", h.updatesControlPlanes},
		{"the worker is updated, and its agent is killed at each step of the journal", h.updatesTheWorker},
		{"each machine is the one that it was, and was updated once", func(t *testing.T) {
			h.same(t, before)
			h.isBootstrapped(t, map[string]int{"m1": 2, "m2": 2, "m3": 2, "m4": 2})
			for _, name := range []string{"m1", "m2", "m3", "m4"} {
				h.keptItsPatches(t, name)
			}
		}},
		{"the cluster is deleted, and all hosts are free", h.removesTheCluster},
	} {
		start := time.Now()
		h.step(t, step.name, step.run)
		t.Logf("%s: %s", step.name, time.Since(start).Round(time.Second))
	}
}

// updatesControlPlanes changes only the version of the control plane, because kubelets must not be newer than their API
// servers.
func (h *realHosts) updatesControlPlanes(t *testing.T) {
	next := h.versions[1].version
	if _, err := h.hub.Kubectl(t.Context(), nil, "-n", teamSpace, "patch", "kubeadmcontrolplanes.controlplane.cluster.x-k8s.io", "web", "--type=merge", "-p", `{"spec": {"version": "`+next+`"}}`); err != nil {
		t.Fatal(err)
	}
	first := h.awaitTask(t, infrav1.TaskRunning).Status.HostName
	kill(t, h.hub.Manager)
	h.eventually(t, first+" is updated without the hub", func(ctx context.Context) error {
		_, err := h.try(ctx, first, "sh", "-c", "ls /var/lib/drover/host-agent/state/journal/task-update-*/result.json")
		return err
	})
	h.restartManager(t)
	h.eventually(t, "the control planes have "+next, func(ctx context.Context) error {
		return errors.Join(h.controlPlaneIs(ctx, next, 3), h.connected(ctx))
	})
}

func (h *realHosts) updatesTheWorker(t *testing.T) {
	next := h.versions[1].version
	worker := h.workerHost(t)
	journal := "journal/task-update-*"
	h.killAgentAtEachStep(t, worker, journal, journal+"/begun", journal+"/result.json")
	h.applyCluster(t, next, "1", 3, 1)
	h.isWhole(t, next, 3, 1)
}

// workerHost is the host that is not a control plane.
func (h *realHosts) workerHost(t *testing.T) string {
	t.Helper()
	planes := h.controlPlaneHosts(t)
	for _, name := range []string{"m1", "m2", "m3", "m4"} {
		if !slices.Contains(planes, name) {
			return name
		}
	}
	t.Fatalf("the control planes are %v, want one host that is none", planes)
	return ""
}

// keptItsPatches checks that the configuration of the kubelet still contains the patches of the KubeadmConfig.
func (h *realHosts) keptItsPatches(t *testing.T, host string) {
	t.Helper()
	if config := h.exec(t, host, "cat", "/var/lib/kubelet/config.yaml"); !strings.Contains(config, "cgroupDriver: cgroupfs") || !strings.Contains(config, "failSwapOn: false") {
		t.Errorf("the kubelet of %s is configured without the patches of its KubeadmConfig:\n%s", host, config)
	}
	version := h.versions[1].version
	if out := h.exec(t, host, "kubelet", "--version"); out != fmt.Sprintln("Kubernetes", version) {
		t.Errorf("%s has %q, want the kubelet %s", host, out, version)
	}
}
