// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/testkit"
)

// A replica that drains for minutes must not lead during this time, but still needs its cache.
func TestLeaseIsReleasedWhileTheReplicaStillDrains(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	cfg, err := config.Parse(fmt.Appendf(nil,
		"{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, server: {urls: [\"https://127.0.0.1\"]}}",
		namespace))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	alarms := make(chan string, 1) // the first
	options.Logger = funcr.New(func(_, line string) {
		if strings.Contains(line, "error") {
			select {
			case alarms <- line:
			default:
			}
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
	goOn := make(chan struct{})
	controller := manager.RunnableFunc(func(ctx context.Context) error {
		close(leading)
		<-ctx.Done()
		close(led)
		<-goOn
		return nil
	})
	if err := leader.Add(controller); err != nil {
		t.Fatal(err)
	}
	stopping, end := make(chan struct{}), make(chan struct{})
	drain := func(ctx context.Context) error {
		<-ctx.Done()
		close(stopping)
		<-end
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, mgr, leader.Start, drain) }()
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
	// The elector renews the Lease at once and then every two seconds. If a stop interrupts a renewal, it logs an error.
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		lease, err := clients.CoordinationV1().Leases(namespace).Get(ctx, "drover-manager", metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(lease.Spec.AcquireTime.Time) {
			err = errors.New("the Lease was not renewed yet")
		}
		return err
	})
	cancel()
	<-stopping
	<-led
	if holder() == "" {
		t.Error("the Lease was released while a controller was still running")
	}
	close(goOn)
	testkit.Eventually(t, 5*time.Second, func(context.Context) error {
		if by := holder(); by != "" {
			return fmt.Errorf("the Lease is held by %q", by)
		}
		return nil
	})
	if err := mgr.GetClient().Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: "nothing"},
		&corev1.Secret{}); err == nil || len(ended) > 0 {
		t.Errorf("the cache returned %v, and %d replicas ended, want NotFound and none", err, len(ended))
	}
	close(end)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	select {
	case line := <-alarms:
		t.Errorf("an orderly stop logged the error %s, want none", line)
	default:
	}
}

// A replica that loses its Lease must end, because its state may be out of date, and another replica leads.
func TestLostLeaseEndsTheReplica(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	cfg, err := config.Parse(fmt.Appendf(nil,
		"{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, server: {urls: [\"https://127.0.0.1\"]}, "+
			"leaderElection: {leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 200ms}}", namespace))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(env.Config, options)
	if err != nil {
		t.Fatal(err)
	}
	leader, err := NewLeader(mgr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	leading, led, drained := make(chan struct{}), make(chan struct{}), make(chan struct{})
	controller := manager.RunnableFunc(func(ctx context.Context) error {
		close(leading)
		<-ctx.Done()
		close(led)
		return nil
	})
	if err := leader.Add(controller); err != nil {
		t.Fatal(err)
	}
	drain := func(ctx context.Context) error {
		<-ctx.Done()
		close(drained)
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), mgr, leader.Start, drain) }()
	<-leading
	clients := kubernetes.NewForConfigOrDie(env.Config)
	testkit.Eventually(t, 5*time.Second, func(ctx context.Context) error {
		lease, err := clients.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		other, now := "another replica", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
		_, err = clients.CoordinationV1().Leases(namespace).Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
	if err := <-ended; !errors.Is(err, errLeaseLost) {
		t.Errorf("Run returned %v, want errLeaseLost", err)
	}
	<-led
	<-drained
}

// A replica that runs during a restore of the hub's etcd must end, whether it leads or not, because its caches may be
// newer than the hub.
func TestRestoredLeaseEndsTheReplica(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]bool{"that leads": false, "that waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := testkit.Shared(t)
			namespace := env.Workspace(t)
			cfg, err := config.Parse(fmt.Appendf(nil,
				"{apiVersion: config.drover.dev/v1, kind: ManagerConfig, namespace: %s, server: {urls: [\"https://127.0.0.1\"]}, "+
					"leaderElection: {retryPeriod: 200ms}}", namespace))
			if err != nil {
				t.Fatal(err)
			}
			options, err := cfg.ManagerOptions()
			if err != nil {
				t.Fatal(err)
			}
			mgr, err := ctrl.NewManager(env.Config, options)
			if err != nil {
				t.Fatal(err)
			}
			leader, err := NewLeader(mgr, cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := leader.Add(manager.RunnableFunc(func(ctx context.Context) error {
				<-ctx.Done()
				return nil
			})); err != nil {
				t.Fatal(err)
			}
			leases := kubernetes.NewForConfigOrDie(env.Config).CoordinationV1().Leases(namespace)
			if other {
				holder, now, duration := "another replica", metav1.NowMicro(), int32(3600)
				lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName,
					Annotations: map[string]string{v1.AnnotationTerms: "4/a/200"}},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, AcquireTime: &now, RenewTime: &now,
						LeaseDurationSeconds: &duration}}
				if _, err := leases.Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- Run(t.Context(), mgr, leader.Start) }()
			terms := "4/a/100"
			// the replica reads each of the two values at some point
			testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
				if len(ended) > 0 {
					return nil
				}
				lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
				if err != nil {
					return err
				}
				lease.Annotations[v1.AnnotationTerms], terms = terms, lease.Annotations[v1.AnnotationTerms]
				_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
				return errors.Join(errors.New("the replica is still running"), err)
			})
			if err := <-ended; !errors.Is(err, checkpoint.ErrRestored) {
				t.Errorf("Run returned %v, want ErrRestored", err)
			}
		})
	}
}

func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
