// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Replace deletes a Secret, and creates another one with the same name and without Drover's labels. Any user with write
// access to Secrets can do this.
func (e *Env) Replace(ctx context.Context, t testing.TB, name types.NamespacedName) *corev1.Secret {
	t.Helper()
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: map[string][]byte{"theirs": []byte("yes")}}
	if err := errors.Join(e.Client.Delete(ctx, theirs.DeepCopy()), e.Client.Create(ctx, theirs)); err != nil {
		t.Fatal(err)
	}
	return theirs
}

// WantUnchanged fails the test if a Secret was changed after its creation.
func (e *Env) WantUnchanged(t testing.TB, made *corev1.Secret) {
	t.Helper()
	now := &corev1.Secret{}
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(made), now); err != nil || now.UID != made.UID || now.ResourceVersion != made.ResourceVersion {
		t.Errorf("the Secret is %+v, %v: want it as the other writer left it", now.ObjectMeta, err)
	}
}

// Competing returns a client that simulates a faster writer. Before the caller's writes to main resources, it calls
// act, until act has returned true once. It does not affect writes of statuses.
func Competing(c client.WithWatch, act func(context.Context, any) bool) client.WithWatch {
	var mu sync.Mutex
	done := false
	first := func(ctx context.Context, object any) {
		mu.Lock()
		defer mu.Unlock()
		if !done {
			done = act(ctx, object)
		}
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, options ...client.ApplyOption) error {
			first(ctx, o)
			return c.Apply(ctx, o, options...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			first(ctx, o)
			return c.Create(ctx, o, options...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			first(ctx, o)
			return c.Update(ctx, o, options...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			first(ctx, o)
			return c.Patch(ctx, o, patch, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			first(ctx, o)
			return c.Delete(ctx, o, options...)
		},
	})
}
