// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package e2e

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/test/framework"
)

// TestClusterAPIMakesAClusterByKubeadm runs Cluster API's core and its providers for kubeadm with the true kubeadm, kubelet, containerd and static pods, on hosts
// that only dial out to the hub. Stand-ins are: systemd (package nodes), the package manager of a host (testdata/install-kubernetes.sh), and files in place of a network plugin's manifest.
func TestClusterAPIMakesAClusterByKubeadm(t *testing.T) {
	h := startRealHosts(t)
	h.step(t, "hosts join by one command each", func(t *testing.T) {
		for _, name := range []string{"m1", "m2", "m3"} {
			h.join(t, name)
		}
	})
	h.step(t, "one apply makes a control plane, and its agent connects as a pod", h.makesAControlPlane)
}

func (h *realHosts) makesAControlPlane(t *testing.T) {
	manifest, err := os.ReadFile("testdata/kubeadm-cluster.yaml")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	h.apply(t, strings.NewReplacer("@ENDPOINT@", h.address(t, balancerHost), "@VERSION@", h.versions[0].version).Replace(string(manifest)))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if _, err := h.hub.AwaitCluster(ctx, types.NamespacedName{Namespace: teamSpace, Name: "web"}, framework.Ready); err != nil {
		if hold := os.Getenv("HOLD"); hold != "" {
			t.Log(err)
			for h.has(t.Context(), "m1", "/go-on") != nil {
				time.Sleep(time.Second)
			}
		}
		t.Fatal(err)
	}
	t.Logf("connected after %s", time.Since(began))
}
