// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Queue holds the requests of a reconciler.
type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// Concerned returns the objects that a change affects. states are the object before and after, or one of them if it is new or gone.
type Concerned func(ctx context.Context, states ...client.Object) ([]types.NamespacedName, error)

// Wake enqueues the objects that a change affects. Changes of a status alone affect none.
func Wake(concerned Concerned) handler.EventHandler {
	enqueue := func(ctx context.Context, q Queue, states ...client.Object) {
		names, err := concerned(ctx, states...)
		if err != nil { // a cache that cannot be read is being stopped
			ctrl.LoggerFrom(ctx).Error(err, "reconciles not woken")
		}
		for _, name := range names {
			q.Add(reconcile.Request{NamespacedName: name})
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q Queue) { enqueue(ctx, q, e.Object) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q Queue) { enqueue(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q Queue) {
			if matters(e.ObjectOld, e.ObjectNew) {
				enqueue(ctx, q, e.ObjectOld, e.ObjectNew)
			}
		},
	}
}

// matters reports whether more than a status differs.
func matters(was, is client.Object) bool {
	return was.GetGeneration() != is.GetGeneration() || was.GetDeletionTimestamp().IsZero() != is.GetDeletionTimestamp().IsZero() ||
		was.GetUID() != is.GetUID() || !maps.Equal(was.GetLabels(), is.GetLabels()) ||
		is.GetGeneration() == 0 && was.GetResourceVersion() != is.GetResourceVersion() // a Secret has no generation
}

// labelsOf returns the labels of each state.
func labelsOf(states []client.Object) []map[string]string {
	all := make([]map[string]string, len(states))
	for i, state := range states {
		all[i] = state.GetLabels()
	}
	return all
}

// names is a list of names without duplicates.
type names struct {
	known map[types.NamespacedName]struct{}
	list  []types.NamespacedName
}

func (n *names) add(name types.NamespacedName) {
	if n.known == nil {
		n.known = map[types.NamespacedName]struct{}{}
	}
	if _, known := n.known[name]; !known {
		n.known[name] = struct{}{}
		n.list = append(n.list, name)
	}
}
