// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
)

// The provisioner caches no Secrets, so each read of instructions is a request to the API server.
func TestInstructionsAreReadOnceForEachReconcile(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.host("s1", "server", "10.1.0.1")
	w.host("w1", "worker", "10.1.0.2")
	w.reconcile(5)
	w.report("s1", v1.HostActive, v1.ReasonActive, "")
	w.reconcile(3)
	reads := 0
	counting := interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if _, secret := o.(*corev1.Secret); secret && strings.HasSuffix(key.Name, v1.HostInstructionsSecretSuffix) {
				reads++
			}
			return c.Get(ctx, key, o, options...)
		},
	})
	w.r.Client, w.r.Live = counting, counting
	if _, err := w.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: w.name}); err != nil {
		t.Fatal(err)
	}
	if reads != 2 {
		t.Errorf("the instructions of two hosts were read %d times, want 2", reads)
	}
}
