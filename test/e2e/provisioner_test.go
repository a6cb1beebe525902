// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
	"github.com/drover-dev/drover/test/traffic"
)

// TestLong_AProvisionerIsKilledWhileUsersWork kills the provisioner while users send requests to a member, as the
// kernel does when its memory limit is reached. No request fails, no agent loses its tunnel, and the provisioner
// continues where it was.
func TestLong_AProvisionerIsKilledWhileUsersWork(t *testing.T) {
	t.Parallel()
	s := startWith(t, (*system).startProvisioned)
	cluster, _ := s.ready(t, "used")
	create(t, s.member, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: trafficObjects}})
	create(t, s.member, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: trafficObjects, Name: "load"}})
	installation := s.installation(t)
	s.observed(t, installation)

	load, end := s.load(t, cluster)
	manager := s.hub.Manager.PID()
	for kills := range 3 {
		before := load.Result().Requests
		kill(t, s.hub.Provisioner.Process)
		testkit.Update(t, s.hub.Client, installation, func(i *provisionv1.ClusterInstallation) {
			i.Spec.Pools[0].Replicas = new(int32(kills + 2))
		})
		testkit.Eventually(t, time.Minute, func(context.Context) error { // they go on without it
			if n := load.Result().Requests - before; n < 50 {
				return fmt.Errorf("%d requests since the provisioner was killed, want 50", n)
			}
			return nil
		})
		if err := s.hub.Provisioner.Start(within(t, time.Minute)); err != nil {
			t.Fatal(err)
		}
		s.observed(t, installation)
	}
	end()
	for _, failure := range load.Result().Failures {
		t.Errorf("a request failed while the provisioner was killed: %s", failure)
	}
	if s.hub.Manager.PID() != manager {
		t.Error("the manager was started again, want it to run on")
	}
	got := &v1.Cluster{}
	if err := s.hub.Client.Get(t.Context(), cluster, got); err != nil || !framework.Ready(got) {
		t.Errorf("the Cluster has conditions %+v (%v), want it to be Ready", got.Status.Conditions, err)
	}
}

// startProvisioned starts a hub with a provisioner.
func (s *system) startProvisioned(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub",
		lab.User{Name: "demo", Token: demoToken}, lab.User{Name: "stranger", Token: strangerToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{
		Replicas: 1, Provisioner: &framework.Provisioner{Folders: []string{"config/provision"}},
	})
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.hub.Provisioner.Bind(t.Context(), metav1.NamespaceDefault); err != nil {
		t.Fatal(err)
	}
}

// installation creates an installation that waits for Hosts.
func (s *system) installation(t *testing.T) *provisionv1.ClusterInstallation {
	t.Helper()
	prod := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "prod"}
	create(t, s.hub.Plane, &v1.Cluster{ObjectMeta: prod})
	object := &provisionv1.ClusterInstallation{ObjectMeta: prod}
	object.Spec.ClusterName, object.Spec.Distribution, object.Spec.Version = "prod", "k3s", "v1.35.3+k3s1"
	object.Spec.Pools = []provisionv1.HostPool{{
		Name: "servers", Roles: []provisionv1.HostRole{provisionv1.RoleEtcd, provisionv1.RoleControlPlane},
		Selector: metav1.LabelSelector{MatchLabels: map[string]string{"use": "server"}}, Replicas: new(int32(1)),
	}}
	create(t, s.hub.Plane, object)
	return object
}

// observed waits until the provisioner has written a status for the current spec.
func (s *system) observed(t *testing.T, installation *provisionv1.ClusterInstallation) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if err := s.hub.Client.Get(ctx, client.ObjectKeyFromObject(installation), installation); err != nil {
			return err
		}
		if got := installation.Status; got.ObservedGeneration != installation.Generation {
			return fmt.Errorf("the status is of generation %d, want %d: %+v",
				got.ObservedGeneration, installation.Generation, got.Conditions)
		}
		return nil
	})
}

// load sends requests to a member until the returned function is called.
func (s *system) load(t *testing.T, cluster types.NamespacedName) (*traffic.Load, func()) {
	t.Helper()
	bundle, err := s.hub.Bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ways, err := traffic.Ways(traffic.Hub{URL: s.hub.URL(), Bundle: bundle, Token: demoToken}, http2Ways, http1Ways)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	load := &traffic.Load{
		Ways: ways, Clusters: []types.NamespacedName{cluster}, Namespace: trafficObjects, ConfigMap: "load",
		PerSecond: loadPerSecond, AtOnce: loadAtOnce,
	}
	running.Go(func() { load.Run(ctx) })
	end := func() { stop(); running.Wait() }
	t.Cleanup(end)
	return load, end
}
