// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/testkit"
)

// everywhere is a runnable of every replica that ends when it is allowed to.
type everywhere struct{ stopping, end chan struct{} }

// NeedLeaderElection is false.
func (everywhere) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (e everywhere) Start(ctx context.Context) error {
	<-ctx.Done()
	close(e.stopping)
	<-e.end
	return nil
}

// A replica that drains for minutes must not lead meanwhile, and still needs its cache.
func TestLeaseIsReleasedWhileTheReplicaStillDrains(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	cfg, err := config.Parse(fmt.Appendf(nil, "{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, server: {urls: [\"https://127.0.0.1\"]}}", namespace))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	var alarms atomic.Int32
	options.Logger = funcr.New(func(_, line string) {
		if strings.Contains(line, "error") && strings.Contains(line, "leader election lost") {
			alarms.Add(1)
		}
	}, funcr.Options{})
	mgr, err := ctrl.NewManager(env.Config, options)
	if err != nil {
		t.Fatal(err)
	}
	leader, err := NewLeader(mgr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	leading := make(chan struct{})
	led := make(chan struct{})
	controller := manager.RunnableFunc(func(ctx context.Context) error {
		close(leading)
		<-ctx.Done()
		close(led)
		return nil
	})
	draining := everywhere{stopping: make(chan struct{}), end: make(chan struct{})}
	if err := errors.Join(leader.Manager.Add(controller), mgr.Add(leader), mgr.Add(draining)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	<-leading
	clients := kubernetes.NewForConfigOrDie(env.Config)
	holder := func() string {
		lease, err := clients.CoordinationV1().Leases(namespace).Get(t.Context(), "drover-manager", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return holderOf(lease)
	}
	if holder() == "" {
		t.Error("no replica holds the Lease while a controller runs")
	}
	cancel()
	<-draining.stopping
	<-led
	testkit.Eventually(t, 5*time.Second, func(context.Context) error {
		if by := holder(); by != "" {
			return fmt.Errorf("the Lease is held by %q", by)
		}
		return nil
	})
	if err := mgr.GetClient().Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "nothing"}, &corev1.Secret{}); err == nil || len(ended) > 0 {
		t.Errorf("the cache answers %v; ended %d", err, len(ended))
	}
	close(draining.end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if alarms.Load() > 0 {
		t.Error("a stop in good order is logged as an error")
	}
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
