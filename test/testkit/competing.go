// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// Competing returns a client beside which another writer is faster: act is called once, between what the caller has read and the first write to a main resource of which it returns true for
// the object. Statuses are written as ever.
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
