// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	controllerconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func TestClusterInAFullWorkspaceWaitsForAPlace(t *testing.T) {
	w := newWorld(t, testkit.Start(t))
	w.r.Places, w.r.Now, w.r.Recorder = cluster.NewPlaces(1), time.Now, &events.FakeRecorder{}
	again := true // the test may run more than once in one process
	mgr, err := ctrl.NewManager(w.Config, ctrl.Options{Scheme: testkit.Scheme(t), Logger: logr.Discard(), HealthProbeBindAddress: "0",
		Metrics: server.Options{BindAddress: "0"}, Controller: controllerconfig.Controller{SkipNameValidation: &again}})
	if err != nil {
		t.Fatal(err)
	}
	w.r.Client = mgr.GetClient()
	if err := ctrl.NewControllerManagedBy(mgr).For(&v1.Cluster{}).Owns(&corev1.Secret{}, builder.MatchEveryOwner).Watches(&v1.Cluster{}, w.r.Places.Handler()).Complete(w.r); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	first := w.name
	w.create(v1.ClusterSpec{})
	becomes := func(name types.NamespacedName, reason string) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
			c := &v1.Cluster{}
			if err := w.Client.Get(ctx, name, c); err != nil {
				return err
			}
			ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady)
			if ready == nil || ready.Reason != reason {
				return fmt.Errorf("Ready is %+v, want %s", ready, reason)
			}
			if stalled := meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionStalled); stalled != (reason == v1.ReasonTooManyClusters) {
				return errors.New("Stalled differs")
			}
			err := w.Client.Get(ctx, registration.RegistrationSecret(name), &corev1.Secret{})
			if reason == v1.ReasonTooManyClusters != apierrors.IsNotFound(err) {
				return fmt.Errorf("its join token: %w", err)
			}
			return nil
		})
	}
	becomes(first, v1.ReasonAwaitingAgent)
	one := types.NamespacedName{Namespace: first.Namespace, Name: "one-more"}
	w.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name}})
	becomes(one, v1.ReasonTooManyClusters)
	if err := w.Client.Delete(t.Context(), w.cluster()); err != nil {
		t.Fatal(err)
	}
	becomes(one, v1.ReasonAwaitingAgent)
}
