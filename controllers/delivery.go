// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/kinds"
)

// leaving returns a function that reports whether a Cluster is being deleted or no longer exists. The function reads
// from the controllers' cache, so it sees the same state as they do.
func leaving(hub client.Reader) func(context.Context, types.NamespacedName) bool {
	return func(ctx context.Context, name types.NamespacedName) bool {
		cluster := &v1.Cluster{}
		err := hub.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy)
		return apierrors.IsNotFound(err) || err == nil && !cluster.DeletionTimestamp.IsZero()
	}
}

// readOnly returns a function that reports whether a Cluster's spec has the ReadOnly profile. The function reads from
// the cache.
func readOnly(hub client.Reader) func(context.Context, types.NamespacedName) (bool, error) {
	return func(ctx context.Context, name types.NamespacedName) (bool, error) {
		cluster := &v1.Cluster{}
		err := hub.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy)
		return cluster.Spec.Agent.Profile == v1.ProfileReadOnly, client.IgnoreNotFound(err)
	}
}

// counter runs the delivery store. When the manager becomes the leader, counter lists the objects on the hub. Obsolete
// sets must not be removed until all of these objects have been reconciled.
type counter struct {
	*delivery.Store
	hub client.Reader
}

// recount is the interval at which the hub's objects are listed again. Repeated lists are needed because objects may be
// deleted before they are reconciled.
const recount = 5 * time.Second

// Start sends sets until ctx is canceled.
func (c counter) Start(ctx context.Context) error {
	if err := c.count(ctx); err != nil {
		return err
	}
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() {
		tick := time.NewTicker(recount)
		defer tick.Stop()
		defer c.awaits()
		for !c.Complete() {
			c.awaits()
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := c.count(ctx); err != nil {
					c.Log.Error(err, "sets that no object wants are not removed yet")
				}
			}
		}
	})
	return c.Store.Start(ctx)
}

// awaits tells the observer which owners the store is waiting for.
func (c counter) awaits() {
	if c.Observer.Awaited != nil {
		c.Observer.Awaited(c.Awaited())
	}
}

func (c counter) count(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	c.Expect(keys)
	return nil
}

// keys returns the keys of all objects that have sets.
func (c counter) keys(ctx context.Context) ([]delivery.Key, error) {
	var keys []delivery.Key
	for _, kind := range kinds.All() {
		if len(kind.Sets) == 0 {
			continue
		}
		names, err := listNames(ctx, c.hub, kind.List)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			for _, s := range kind.Sets {
				keys = append(keys, delivery.Key{Kind: s.Kind, Namespace: name.Namespace, Name: name.Name})
			}
		}
	}
	return keys, nil
}

func listNames(ctx context.Context, reader client.Reader, list client.ObjectList) ([]types.NamespacedName, error) {
	if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list %T: %w", list, err)
	}
	var names []types.NamespacedName
	err := meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, client.ObjectKeyFromObject(o.(client.Object)))
		return nil
	})
	return names, err
}
