// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// indexes contains the index functions that were added, by type and field.
type indexes map[string]client.IndexerFunc

// IndexField stores an index function.
func (x indexes) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	x[fmt.Sprintf("%T %s", object, field)] = values
	return nil
}

// matches reports whether an object has all requested values.
func (x indexes) matches(object runtime.Object, asked fields.Requirements) bool {
	o, ok := object.(client.Object)
	return ok && !slices.ContainsFunc(asked, func(r fields.Requirement) bool {
		return !slices.Contains(x[fmt.Sprintf("%T %s", o, r.Field)](o), r.Value)
	})
}

// Indexed returns a client that responds like a cache with the indexes that add registers. It reads from the API
// server, so it is never out of date.
func (e *Env) Indexed(t testing.TB, add func(context.Context, client.FieldIndexer) error) client.WithWatch {
	t.Helper()
	known := indexes{}
	if err := add(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	return interceptor.NewClient(e.Client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			asked := (&client.ListOptions{}).ApplyOptions(options)
			selector := asked.FieldSelector
			asked.FieldSelector = nil
			if err := c.List(ctx, list, asked); err != nil || selector == nil {
				return err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return err
			}
			return meta.SetList(list, slices.DeleteFunc(items, func(o runtime.Object) bool { return !known.matches(o, selector.Requirements()) }))
		},
	})
}
