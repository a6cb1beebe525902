// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func TestReplacedRegistrationSecretIsAConflict(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	w.create(v1.ClusterSpec{})
	w.reconcile()
	w.reconcile()
	w.settings.Servers = []string{"https://moved.example.com"} // the manifest is another one
	var theirs *corev1.Secret
	w.r.Client = testkit.Competing(w.Client, func(ctx context.Context, _ any) bool {
		theirs = w.Replace(ctx, t, registration.RegistrationSecret(w.name))
		return true
	})
	if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	w.WantUnchanged(t, theirs)
	w.r.Client = w.Client
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonSecretConflict)
	w.WantUnchanged(t, theirs)
}

// A restore leaves the Secret without an owner, and then no agent can join with it. Others may have learned its token
// since.
func TestTokenOfAFormerClusterIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testkit.Shared(t))
	w.create(v1.ClusterSpec{})
	w.reconcile()
	w.reconcile()
	secret, former := w.secret(registration.RegistrationSecret(w.name)), w.token()
	secret.OwnerReferences = nil
	if err := w.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.reconcile()
	now := w.secret(registration.RegistrationSecret(w.name))
	if w.token() == former || !registration.Owned(now, w.cluster()) {
		t.Errorf("the token is the former one %t, the owners are %+v: want a new token that the Cluster owns", w.token() == former, now.OwnerReferences)
	}
}
