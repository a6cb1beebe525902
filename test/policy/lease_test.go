// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// testLease checks that every authenticated user may read when a manager was last active, and nothing else.
func testLease(t *testing.T, h *fixture) {
	const system = "drover-system"
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: name}}
	}
	h.Apply(t, lease("drover-manager"))
	h.Apply(t, lease("another"))
	h.Apply(t, object(t, "{apiVersion: v1, kind: Secret, metadata: {namespace: drover-system, name: private}}"))
	user := h.as(t, "user")
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
		return user.Get(ctx, client.ObjectKeyFromObject(lease("drover-manager")), lease(""))
	})
	ours, patch := lease("drover-manager"), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"holderIdentity":"me"}}`))
	for what, try := range map[string]func() error{
		"read another Lease": func() error {
			return user.Get(t.Context(), client.ObjectKeyFromObject(lease("another")), lease(""))
		},
		"list Leases": func() error {
			return user.List(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(system))
		},
		"take the lead":    func() error { return user.Patch(t.Context(), ours, patch) },
		"delete the Lease": func() error { return user.Delete(t.Context(), ours) },
		"read a Secret": func() error {
			return user.Get(t.Context(), client.ObjectKey{Namespace: system, Name: "private"}, &corev1.Secret{})
		},
		"list pods": func() error { return user.List(t.Context(), &corev1.PodList{}, client.InNamespace(system)) },
		"list Leases elsewhere": func() error {
			return user.List(t.Context(), &coordinationv1.LeaseList{}, client.InNamespace(h.workspace))
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want Forbidden", what, err)
		}
	}
}
